"""A version as it serves: weights, and memory carried along the log; swapped as one reference."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from streamd.events import Int64
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import Neighborhood, look_around
from streamd.models import EdgeRows, LinkModel, Memory, build_model, sampling_of
from streamd.models.inputs import link_inputs
from streamd.models.labels import label_inputs
from streamd.registry.registry import Manifest, Version
from streamd.segments.reader import LogReader
from streamd.server.checkpoint import StoredMemory
from streamd.windows import closed_chunks

UNKNOWN = -1


@dataclass
class Served:
    """Owner: the engine thread. Embeddings are as of memory's cut and kept until it moves."""

    manifest: Manifest
    model: LinkModel
    memory: Memory
    _cache: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    _cached: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    _ahead: "Served | None" = None
    _updated: Tensor | None = None

    @classmethod
    def restored(cls, version: Version) -> "Served":
        """Build model and memory from what the registry holds."""
        model = build_model(version.manifest.model_settings(), version.manifest.log_schema(), 0)
        model.load_state_dict(version.weights)
        model.eval()
        memory = Memory.restored(version.memory, version.manifest.edge, version.manifest.memory_us)
        return cls(version.manifest, model, memory)

    def take_memory(self, stored: StoredMemory | None, num_edges: int) -> None:
        """Go on from stored memory where it is this version's, and further than the version's own."""
        own = stored is not None and stored.version == self.manifest.name
        if stored is not None and own and self.memory.edge < stored.memory.edge <= num_edges:
            self.memory = stored.memory

    def follow(self, log: LogReader, until_edge: int, watermark: int, max_chunks: int) -> int:
        """Advance memory over chunks that are closed among edges below `until_edge`. Returns: how many it advanced."""
        first = self.memory.edge
        if until_edge <= first:
            return 0
        end = min(until_edge, first + 4 * self._chunk_edges * max(1, max_chunks))
        times = log.edges(first, end)[2]
        known = watermark if end == until_edge else int(times[-1])
        closed = closed_chunks(times, known, self._width_us, self._chunk_edges)[:max_chunks]
        self._advance(log, first, closed)
        return len(closed)

    def _advance(self, log: LogReader, first: int, chunks: list[tuple[int, int]]) -> None:
        for a, b in chunks:
            src, dst, time = log.edges(first + a, first + b)
            rows = EdgeRows(first + a, src, dst, time, log.features_of(np.arange(first + a, first + b)),
                            log.deletions.of_nodes)
            self.model.advance(self.memory, rows)
        if chunks:
            self._ahead = None
            self.forget_embeddings()

    def ahead(self, log: LogReader, until_edge: int, as_of_us: int) -> "Served":
        """This version as a query at `as_of_us` sees it, a time behind every event there is: a chunk that is open only
        because the next event might be of the same time, or of the same window, is closed for it.

        Returns: itself where that changes nothing, else a copy, kept until the log goes on.
        """
        first = self.memory.edge
        times = log.edges(first, until_edge)[2] if until_edge > first else np.zeros(0, np.int64)
        if not len(times) or as_of_us <= times[-1]:
            return self
        with_query = closed_chunks(np.append(times, as_of_us), as_of_us, self._width_us, self._chunk_edges)
        closed = [(a, b) for a, b in with_query if b <= len(times)]
        if not closed:
            return self
        if self._ahead is None or self._ahead.memory.edge != first + closed[-1][1]:
            twin = Served(self.manifest, self.model, self.memory.copy())
            twin._advance(log, first, closed)
            self._ahead = twin
        return self._ahead

    @property
    def _width_us(self) -> int:
        return self.manifest.window_seconds * 1_000_000

    @property
    def _chunk_edges(self) -> int:
        return self.model.settings.memory_chunk

    def forget_embeddings(self) -> None:
        """Compute embeddings anew when they are next asked for: memory moved, or something was deleted."""
        self._cached[:] = False
        self._updated = None
        if self._ahead is not None:
            self._ahead.forget_embeddings()

    @torch.no_grad()
    def embed(self, nodes: Int64, live: LiveGraph) -> Tensor:
        """Embeddings of distinct nodes, float32[U, D], as of memory's cut; UNKNOWN is a node never seen."""
        if not self.model.has_graph:
            return torch.zeros(len(nodes), 0)
        places = torch.from_numpy(nodes + 1)
        top = int(places.max()) + 1
        if top > len(self._cached):
            size = max(top, 2 * len(self._cached), 1024)
            self._cache = torch.zeros(size, self.model.settings.dim)
            self._cached = torch.zeros(size, dtype=torch.bool)
        missing = nodes[~self._cached[places].numpy()]
        if len(missing):
            around = look_around(live.graph, live.log.columns, live.features, missing, self.memory.edge, self.memory.now_us,
                                 sampling_of(self.model.settings))
            self._cache[torch.from_numpy(missing + 1)] = self._embed(around)
            self._cached[torch.from_numpy(missing + 1)] = True
        return self._cache[places]

    def nearest(self, node: int, pool: Int64, count: int, live: LiveGraph) -> Int64:
        """Of the nodes of a pool whose embedding is at hand, those most like a node's by their cosine; at most `count`."""
        if not self.model.has_graph or node == UNKNOWN:
            return pool[:0]
        z_D = self.embed(np.array([node]), live)[0]
        known = pool[pool + 1 < len(self._cached)]
        known = known[self._cached[torch.from_numpy(known + 1)].numpy()]
        z_PD = self._cache[torch.from_numpy(known + 1)]
        likeness = (z_PD @ z_D) / z_PD.norm(dim=1).clamp_min(1e-9)
        found: Int64 = known[likeness.topk(min(count, len(known))).indices.numpy()]
        return found

    def _embed(self, around: Neighborhood) -> Tensor:
        none = np.zeros((0, 1), np.int64)
        inputs = link_inputs(none[:, 0], np.zeros((0, 1, 1), np.float32), none[:, 0], none, around)
        return self.model.embed(inputs, self._states(inputs.node_M))

    def _states(self, node_M: Tensor) -> Tensor:
        """Memory of nodes with pending messages applied: those are applied once for each cut of the memory."""
        if self._updated is None:
            self._updated = self.model.updated(self.memory)
        return self.memory.rows(node_M, self._updated)

    @torch.no_grad()
    def labels(self, node: int, live: LiveGraph) -> tuple[float, ...] | None:
        """What the label head predicts of a node now, None where the model has none."""
        if self.model.label_head is None:
            return None
        inputs = label_inputs(live, sampling_of(self.model.settings), np.array([node]), np.zeros(1, np.int64),
                              np.zeros((1, self.model.schema.label_dim), np.float32), self.memory.edge, self.memory.now_us)
        state = self._states(inputs.around.node_M)
        return tuple(self.model.label_head.predict(self.model.labels(inputs, state))[0].tolist())

    @torch.no_grad()
    def logits(self, facts_RF: Tensor, z_UD: Tensor, src_R: Tensor, dst_R: Tensor) -> Tensor:
        """Logit per row, float32[R]. facts_RF: float32[R, 19]; src_R, dst_R: int64 places among the U embeddings."""
        out = self.model.pair_logits(facts_RF[:, None])[:, 0]
        if self.model.has_graph:
            out = out + self.model.residual(z_UD, src_R, dst_R[:, None])[:, 0]
        return out
