"""A version that serves: its weights, and its memory, which advances with the log."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import structlog

from streamd.errors import VersionError
from streamd.eventlog.log_changes import Changes
from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64, Schema
from streamd.graph.label_rows import label_rows
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import Neighborhood, SamplingPlan, sample_neighborhood
from streamd.models import Architecture, EdgeRows, Memory, architecture_of
from streamd.models.device_arrays import Array, on_host
from streamd.models.inference.inference import Inference
from streamd.models.loading import load_inference
from streamd.models.memory.files import MemoryReader, read_memory
from streamd.registry.manifest import Manifest
from streamd.registry.stored_versions import Version
from streamd.serving.embeddings import Embeddings
from streamd.serving.memory_store import MemoryStore
from streamd.windows import closed_chunks

logger = structlog.get_logger()
UNKNOWN = -1
"""Node id of an unknown key. Its embedding is cached like any other."""
RATE_WINDOWS = 24
"""Number of windows after a version's own during which its rate of new destinations is used: a day
of hours. Usually a new version comes with each window. If all are refused or the trainer is
stopped, the rate may be out of date."""


@dataclass
class LoadedVersion:
    """A version's weights and memory, and the answers computed from them. The engine swaps it as
    one reference. Owner: the engine.

    Embeddings are as of the memory's cut, and cached until the memory advances.
    """

    manifest: Manifest
    model: Inference
    memory: Memory
    _at_query: "LoadedVersion | None" = None
    _followed: tuple[int, int] = (-1, -1)
    """End of the events and watermark at which no further chunk was closed."""
    _updated: Array | None = None
    """States of the nodes with pending messages at the memory's cut, None until they are
    computed."""
    _closed_by_query: tuple[tuple[int, int, int], list[tuple[int, int]]] = field(
        default_factory=lambda: ((-1, -1, -1), [])
    )
    """The chunks that a query closes, with the memory's cut, the number of events and the time that
    it was computed for. Most queries share them."""

    def __post_init__(self) -> None:
        self._embeddings = Embeddings(self.model.widths, self.model.device)
        self._forget_old_rate()

    @classmethod
    def restored(
        cls,
        version: Version,
        schema: Schema,
        device: str = "cpu",
        memories: MemoryReader | None = None,
    ) -> "LoadedVersion":
        """Build model and memory on a device from a version of the registry.

        schema: of the log. memories: as in `load_model`. Raises: VersionError.
        """
        return cls(version.manifest, *load_inference(version, schema, device, memories))

    def take_memory(self, store: MemoryStore, num_edges: int) -> None:
        """Replace the memory by the stored one, if that belongs to this version and has advanced
        further. A damaged one is logged and ignored.

        num_edges: of the log.
        """
        stored = store.stored()
        if stored is None or stored.version != self.manifest.name:
            return
        if not self.memory.edge < stored.edge <= num_edges:
            return
        widths = self.memory.dim, self.memory.pending_features.shape[1]
        if stored.feature_dim not in (None, widths[1]):
            # It was stored before the log got further sets or features.
            return
        try:
            self.memory = read_memory(
                store.files_of(stored),
                stored.edge,
                stored.now_us,
                widths,
                self.model.device,
                like=self.memory,
            )
        except VersionError as error:
            logger.error(
                "stored_memory_unreadable",
                version=stored.version,
                error=str(error),
                meaning="ignored; the memory is replayed from the version's own event id",
            )
        self._forget_old_rate()

    def follow(self, log: LogReader, until_event: int, watermark: int, max_chunks: int) -> int:
        """Advance the memory over at most `max_chunks` closed chunks of the events below
        `until_event`.

        watermark: event time in microseconds up to which all events are known. Returns: number of
        chunks.
        """
        first = self.memory.edge
        if until_event <= first or (until_event, watermark) == self._followed:
            return 0
        times = self._next_times(log, until_event, max_chunks)
        end = first + len(times)

        # Before the end of the log, events are known only up to the time of the last one that was
        # read.
        known = watermark if end == until_event else int(times[-1])
        closed = closed_chunks(times, known, self._width_us, self._chunk_edges)[:max_chunks]
        self.advance(log, first, closed)
        self._followed = (-1, -1) if closed or end < until_event else (until_event, watermark)
        return len(closed)

    def follow_until(self, until: float, log: LogReader, until_event: int, watermark: int) -> bool:
        """Advance the memory like `follow`, by at least one chunk. until: monotonic seconds.
        Returns: whether chunks may be left."""
        while self.follow(log, until_event, watermark, 1):
            if time.monotonic() >= until:
                return True
        return False

    def _next_times(self, log: LogReader, until_event: int, max_chunks: int) -> Int64:
        """Times of the events after the memory's cut, int64, enough for `max_chunks` chunks.

        The last one is later than the times of the last chunk, if there is such an event: a chunk
        of equal times can be longer than others.
        """
        first = self.memory.edge
        end = min(until_event, first + 4 * self._chunk_edges * max(1, max_chunks))
        last_us = int(log.time_of(np.array([end - 1]))[0])
        end = min(until_event, log.lower_bound(last_us + 1) + 1)
        return log.edges(first, end)[2]

    def advance(self, log: LogReader, first: int, chunks: list[tuple[int, int]]) -> None:
        for a, b in chunks:
            rows = EdgeRows.of(log, first + a, first + b)
            self.model.advance(self.memory, rows)
        if chunks:
            self._at_query = None
            self.forget_embeddings()
            self._forget_old_rate()

    def _forget_old_rate(self) -> None:
        """Stop using the rate of new destinations once the memory is RATE_WINDOWS past the
        version's window. This depends on the log alone, so all servers do so at the same event."""
        if self.memory.now_us > self.manifest.window_end_us + RATE_WINDOWS * self._width_us:
            self.model.forget_rate()

    def ahead(self, log: LogReader, until_event: int, as_of_us: int) -> "LoadedVersion":
        """This version as seen by a query at `as_of_us`, a time after every event in the graph.

        A chunk may be open only because the next event might have the same time or belong to the
        same window. The query's time closes such a chunk, so the memory advances over it for this
        query. If the memory lags further behind the graph, the answer is as of the memory's cut:
        catching up is left to `follow`, which does it once for all queries.

        Returns: this object if no chunk is closed, otherwise a copy, which is kept until the log
        grows.
        """
        # The chunks that the query closes, cached for the next query.
        asked = (self.memory.edge, until_event, as_of_us)
        if asked != self._closed_by_query[0]:
            self._closed_by_query = asked, self._closed_by(log, until_event, as_of_us)
        closed = self._closed_by_query[1]
        if not closed:
            return self

        # A copy of the memory advances over them; the version's own memory stays at its cut.
        first = self.memory.edge
        if self._at_query is None or self._at_query.memory.edge != first + closed[-1][1]:
            at_query = LoadedVersion(self.manifest, self.model, self.memory.copy())
            at_query.advance(log, first, closed)
            self._at_query = at_query
        return self._at_query

    def has_followed(self, until_event: int, watermark: int) -> bool:
        """Whether the memory includes all chunks that are closed. Arguments: as of `follow`."""
        return until_event <= self.memory.edge or (until_event, watermark) == self._followed

    @contextmanager
    def supposing(
        self, log: LogReader, until_event: int, follows: bool, new_nodes: Int64
    ) -> Iterator["LoadedVersion"]:
        """Yield this version as after it followed the events that the log supposes.

        follows: whether the memory follows them; a memory that lags does not. new_nodes: the ids
        that the log supposes.
        """
        # A copy with the same memory and embeddings, but with caches of its own for the queries.
        one = copy.copy(self)
        one._at_query, one._followed = None, (-1, -1)
        one._closed_by_query = (-1, -1, -1), []
        first = self.memory.edge
        closed: list[tuple[int, int]] = []
        if follows and first < until_event:
            times = log.edges(first, until_event)[2]
            closed = closed_chunks(times, int(times[-1]), self._width_us, self._chunk_edges)
        try:
            with self.model.keeping_rate():
                if closed:
                    one = LoadedVersion(self.manifest, self.model, self.memory.copy())
                    one.advance(log, first, closed)
                yield one
        finally:
            self._embeddings.forget_nodes(new_nodes)
            if one.memory is self.memory:
                self._updated = one._updated

    def _closed_by(self, log: LogReader, until_event: int, as_of_us: int) -> list[tuple[int, int]]:
        """The open chunk that a query closes, as a range of rows counted from the memory's cut;
        empty if the memory lags further behind."""
        first = self.memory.edge
        if until_event <= first:
            return []
        times = self._next_times(log, until_event, 1)
        if first + len(times) < until_event or as_of_us <= times[-1]:
            return []
        with_query = closed_chunks(
            np.append(times, as_of_us), as_of_us, self._width_us, self._chunk_edges
        )
        # If the memory has caught up, the remaining events are one open chunk.
        closed = [(a, b) for a, b in with_query if b <= len(times)]
        return closed if closed == [(0, len(times))] else []

    @property
    def _architecture(self) -> Architecture:
        return architecture_of(self.model.settings)

    @property
    def _plan(self) -> SamplingPlan:
        """The sampling of the neighbors that the model reads."""
        return self._architecture.plan(self.model.settings)

    @property
    def has_embeddings(self) -> bool:
        """Whether the model scores a pair by embeddings of its two nodes, which can be cached and
        searched."""
        return self._architecture.score == "vectors"

    @property
    def _width_us(self) -> int:
        return self.manifest.window_seconds * 1_000_000

    @property
    def _chunk_edges(self) -> int:
        return self.model.settings.memory_chunk

    def apply(self, changes: Changes) -> None:
        """Drop the embeddings if they may depend on deleted events."""
        if changes.has_deletes:
            self.forget_embeddings()

    def forget_embeddings(self) -> None:
        """Drop all embeddings, because the memory advanced or events were deleted."""
        self._embeddings.forget()
        self._updated = None
        if self._at_query is not None:
            self._at_query.forget_embeddings()

    def embed(self, nodes: Int64, live: LiveGraph) -> None:
        """Compute the embeddings of nodes that are not cached, as of the memory's cut.

        nodes: int64 ids or UNKNOWN.
        """
        # All missing nodes in one pass.
        missing = self._embeddings.missing(nodes)
        if len(missing):
            around = self._around(missing, live)
            parts = self.model.embed(self.memory, self._pending(), around)
            self._embeddings.keep(missing, parts)

    def _around(self, nodes: Int64, live: LiveGraph) -> Neighborhood:
        """The neighborhood of distinct nodes as of the memory's cut."""
        return sample_neighborhood(
            live.graph,
            live.log.columns,
            live.features,
            nodes,
            self.memory.edge,
            self.memory.now_us,
            self._plan,
        )

    def embedding_of(self, node: int, live: LiveGraph) -> Float32:
        """The embedding of a node, float32[D]; empty if the model has no embeddings."""
        if not self.has_embeddings:
            return np.zeros(0, np.float32)
        z_D: Float32 = self.embeddings_of(np.array([node]), live)[0]
        return z_D

    def embeddings_of(self, nodes: Int64, live: LiveGraph) -> Float32:
        """The embeddings of nodes by a model that has some: float32[N, D]."""
        self.embed(nodes, live)
        z_ND: Float32 = on_host(self._embeddings.of(0, nodes))
        return z_ND

    def likeness(self, node: int, nodes: Int64, live: LiveGraph) -> Float32:
        """The cosine similarity of a node's embedding and those of other nodes: float32[N]."""
        self.embed(np.append(nodes, node), live)
        z_D = self._embeddings.of(0, np.array([node]))[0]
        z_ND = self._embeddings.of(0, nodes)
        norms_N = ((z_ND * z_ND).sum(1) ** 0.5) * ((z_D * z_D).sum() ** 0.5)
        likeness_N: Float32 = on_host((z_ND @ z_D) / norms_N.clip(1e-9))
        return likeness_N

    def nearest(
        self, node: int, allows: Callable[[Int64], Bools], count: int, live: LiveGraph
    ) -> Int64:
        """The nodes with the most similar embeddings by cosine, among those that `allows` accepts.

        At most `count`, most similar first. The search is exact over the cached embeddings, and
        ignores other nodes; it takes a millisecond. An index would have to be rebuilt whenever the
        memory advances, and takes a hundred times longer to build.
        """
        if not self.has_embeddings or node == UNKNOWN:
            return np.zeros(0, np.int64)
        self.embed(np.array([node]), live)
        known, likeness_K = self._embeddings.likeness(node)

        # Usually few are rejected, so the most similar ones are tried first.
        for most in (2 * count, len(known)):
            best = np.arange(len(known))
            if most < len(known):
                best = np.argpartition(-likeness_K, most)[:most]
            best = best[allows(known[best])]
            if len(best) >= count:
                break
        return known[best[np.argsort(-likeness_K[best], kind="stable")[:count]]]

    def _pending(self) -> Array:
        """States of the nodes with pending messages, computed once for each cut of the memory."""
        if self._updated is None:
            self._updated = self.model.updated(self.memory)
        return self._updated

    def labels(self, node: int, node_set: int, live: LiveGraph) -> tuple[float, ...] | None:
        """The prediction of its node set's label head for a node now, None if the model has no
        label heads."""
        if not self.model.has_labels:
            return None

        # As of the memory's cut.
        nodes, sets = np.array([node]), np.array([node_set])
        edge, now_us = self.memory.edge, self.memory.now_us
        rows = label_rows(live, self._plan, nodes, sets, edge, now_us)
        out_UT = self.model.labels(self.memory, self._pending(), rows, sets)
        return tuple(out_UT[0].tolist())

    def scores(self, facts_RF: Float32, src_R: Int64, dst_R: Int64, live: LiveGraph) -> Float32:
        """Score pairs, float32[R] logits.

        facts_RF: float32[R, F], with the edge set if there are several. src_R, dst_R: int64 node
        ids or UNKNOWN.
        """
        if not self.has_embeddings:
            return self.model.pair_logits(facts_RF)
        self.embed(np.concatenate([src_R, dst_R]), live)
        ends = self._embeddings.of(1, src_R), self._embeddings.of(2, dst_R)
        return self.model.logits(facts_RF, *ends)

    # For explanations

    @property
    def mean_facts(self) -> Float32:
        """The mean of each fact over the version's training data, float32[F]: 0 once
        standardized."""
        return self.model.mean_facts

    def pair_logits(self, facts_RF: Float32) -> Float32:
        """Logits from the facts alone, float32[R]."""
        return self.model.pair_logits(facts_RF)

    def residual(
        self, facts_RF: Float32, src_1: Int64, dst_1: Int64, live: LiveGraph
    ) -> Float32 | None:
        """The graph's contribution to the logit of one pair for each of several rows of facts,
        float32[R]; None if the model uses no graph."""
        if not self.has_embeddings:
            return None
        self.embed(np.concatenate([src_1, dst_1]), live)
        number = len(facts_RF)
        src_R, dst_R = src_1.repeat(number), dst_1.repeat(number)
        ends = self._embeddings.of(1, src_R), self._embeddings.of(2, dst_R)
        return self.model.residual(facts_RF, *ends)

    def looked_at(self, nodes: Int64, live: LiveGraph) -> tuple[Neighborhood, tuple[Float32, ...]]:
        """The neighborhood from which the embeddings of distinct nodes are computed, and the weight
        of each neighbor as `Inference.neighbor_weights` returns it."""
        around = self._around(nodes, live)
        return around, self.model.neighbor_weights(self.memory, self._pending(), around)
