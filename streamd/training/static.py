"""Static training (GNNFlow, section 3): the log as one graph, with edges without time.

GraphSAGE, GAT or GCN learns to distinguish true edges from negatives. The older edges are the graph
and the training set; the newer ones validate and test, and are not in the graph.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from streamd import __version__
from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64
from streamd.gpu import make_graph, memory_for
from streamd.graph.blocks.draws import Draw
from streamd.graph.live import LiveGraph, read_back
from streamd.graph.negatives import LEARNED_SEED, NUM_LEARNED, NUM_SCORED, SCORED_SEED, Pools
from streamd.graph.neighborhood import Neighborhood, sample_neighborhood
from streamd.graph.ranking import among_candidates, is_candidate, ranks
from streamd.models import (
    ARCHITECTURES,
    LinkInputs,
    LinkModel,
    architecture_of,
    build_model,
    link_loss,
)
from streamd.models.inputs import link_inputs
from streamd.settings.tree import ModelSettings
from streamd.storage import write_folder_durably
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.learning_settings import LearningSettings
from streamd.training.measures import Measures, measures

SPLIT = (0.7, 0.85)
"""Shares of the edges, oldest first, at which training and validation end: 70, 15 and 15 %, the
split of TGL."""
BATCH_EDGES = 600
"""Edges of a training step, as in TGL and GNNFlow."""
SCORED_EDGES = 20_000
"""The most edges for a measure; of more, a seeded sample is taken. MRR is then exact to 0.003."""
EMBEDDED_NODES = 4096
"""Nodes embedded in one pass; more would take more memory and no less time."""
FEATURE_ROWS = 262_144
"""Rows of edge features read at once for their statistics: it bounds the memory for a long log."""

Progress = Callable[[str, int, int, str], None]
"""Called with (part of the work, units done, units in all, name of the unit)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The result of one epoch over the training edges.

    number: 0 is the state before the first epoch.
    loss: mean over the edges, NaN for number 0.
    valid: measures of the validation edges after the epoch.
    seconds: wall time, measuring included.
    """

    number: int
    loss: float
    valid: Measures
    seconds: float


class StaticTraining:
    """Trains a model on a static graph. It only reads the log, as it was when opened.

    train, valid, test: int64 event ids of the edges that are not deleted.
    epochs: the finished epochs.

    Owner: one thread.
    """

    def __init__(self, settings: LearningSettings, log: LogReader, progress: Progress) -> None:
        """Raises: SettingsError if the model needs time; StreamdError if there are too few
        edges."""
        assert log.state is not None
        self._log = log
        self._progress = progress
        self._training = settings.training
        self.schema = replace(log.state.schema, label_dim=0)
        self.settings = _static(settings.model, log)
        self.train, self.valid, self.test = _split(log)
        self.epochs: list[Epoch] = []

        # The graph, and the pools from which negatives are drawn.
        self._end = int(self.train[-1]) + 1
        graph = make_graph(
            settings.graph,
            settings.gpu,
            settings.device,
            log.first_edge,
            self.settings.direction,
            read_back(log),
        )
        self._live = LiveGraph(log, graph, self.settings)
        self._live.insert(self._end)
        self._live.take_features(self._end)
        _, dst, when = log.edges(log.first_edge, log.num_edges)
        self._pool = Pools(self._live.facts, dst, when, log.deletions.nodes)
        self._cut_us = log.time_of(self.valid[:1])

        # The model; its input statistics are computed before the training.
        self._transfer = DeviceTransfer(settings.device, settings.gpu, self.schema.edge_feature_dim)
        self.model = build_model(
            self.settings, self.schema, settings.training.seed, settings.device
        )
        _draw_id_vectors(self.model, settings.training.seed)
        self._optimizer = self.model.optimizer(settings.training.learning_rate)
        self._plan = architecture_of(self.settings).plan(self.settings)
        for a in range(0, len(self.train), FEATURE_ROWS):
            rows = log.features_of(self.train[a : a + FEATURE_ROWS])
            self.model.edge_stats.update(torch.from_numpy(rows))
        self.model.node_stats.update(
            torch.from_numpy(self._live.features.of(np.arange(log.num_nodes)))
        )
        self._best = self._weights()

    def run(self, epochs: int) -> Iterator[Epoch]:
        """Measure, then train for `epochs` epochs, yielding each when it is finished.

        The weights of the best epoch are kept.
        """
        for number in range(epochs + 1):
            begun = time.perf_counter()
            with memory_for("static training"):
                loss = self._epoch(number) if number else math.nan
                valid = self.measure(self.valid, f"epoch {number}, validation")
            done = Epoch(number=number, loss=loss, valid=valid, seconds=time.perf_counter() - begun)
            if not self.epochs or valid["mrr"] > self.best.valid["mrr"]:
                self._best = self._weights()
            self.epochs.append(done)
            yield done

    @property
    def best(self) -> Epoch:
        """The epoch with the highest MRR on the validation edges."""
        return max(self.epochs, key=lambda epoch: epoch.valid["mrr"])

    def test_best(self) -> Measures:
        """Restore the best weights in the model, and measure the test edges."""
        self.model.restore(self._best)
        return self.measure(self.test, "test")

    def write(self, folder: Path, test: Measures) -> None:
        """Write a folder with the best weights, model.safetensors, and their manifest.json. test:
        measures of the test edges."""
        manifest = {
            "model": self.settings.model_dump(mode="json"),
            "schema": self.schema.fields(),
            "edges": {
                "first": self._log.first_edge,
                "train_end": self._end,
                "test_first": int(self.test[0]),
                "end": self._log.num_edges,
            },
            "seed": self._training.seed,
            "learning_rate": self._training.learning_rate,
            "epoch": self.best.number,
            "scores": {"valid": self.best.valid, "test": test},
            "code": __version__,
            "created": time.time(),
        }
        files = {
            "model.safetensors": save(self._best),
            "manifest.json": msgspec.json.encode(manifest),
        }
        write_folder_durably(folder, files)

    def _weights(self) -> dict[str, Tensor]:
        return {name: t.detach().cpu().clone() for name, t in self.model.state_dict().items()}

    def _epoch(self, number: int) -> float:
        """Train on the edges once, in a seeded order. Returns: mean loss."""
        # Edges with a negative, in a different order for each epoch.
        _, dst, _ = self._ends(self.train)
        train = self.train[self._pool.has_others(dst, self._num_destinations(dst))]
        order = np.random.default_rng([self._training.seed, number]).permutation(len(train))
        steps = [train[order[a : a + BATCH_EDGES]] for a in range(0, len(order), BATCH_EDGES)]

        # Steps, numbered over all epochs: the number seeds a step's negatives.
        self.model.train()
        # A tensor on the device: reading each loss would wait for the GPU.
        total = torch.zeros((), dtype=torch.float64, device=self._transfer.device)
        numbered = [(number * len(steps) + i, events) for i, events in enumerate(steps)]
        for done, inputs in enumerate(self._transfer.ahead(numbered, self.prepare), 1):
            with self._transfer.autocast():
                logits_EC = self.model(inputs, inputs.no_state_MD)
            loss = link_loss(logits_EC.float(), inputs.weight_E, inputs.is_candidate_EC)
            self._optimizer.zero_grad()
            (loss / inputs.num_events).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += loss.detach()
            self._progress(f"epoch {number}", done, len(steps), "steps")
        self.model.eval()
        return float(total) / len(order)

    def _asked_sets(self, event: Int64, num_candidates: int) -> Float32:
        """The inputs in the columns of the facts, which a static graph does not have: one-hot edge
        set of each event, float32[E, C, sets]; width 0 if there is only one set."""
        sets = self.schema.num_edge_sets
        if sets == 1:
            return np.zeros((len(event), num_candidates, 0), np.float32)
        one_hot = np.eye(sets, dtype=np.float32)[self._log.edge_sets_of(event)]
        return one_hot[:, None].repeat(num_candidates, 1)

    def _num_destinations(self, dst: Int64) -> Int64:
        """Number of nodes of each destination's set that are destinations of training edges."""
        return self._pool.known_before(np.broadcast_to(self._cut_us, dst.shape), dst)

    def prepare(self, step: tuple[int, Int64]) -> LinkInputs:
        """Make the inputs of a step's edges on the device, with negatives and neighborhoods.

        The step's own edges are masked in the neighborhoods: a model that sees them would learn to
        look the answer up. step: its number, and int64 event ids.
        """
        # Negatives.
        number, event = step
        src, dst, _ = self._ends(event)
        known = self._num_destinations(dst)
        negatives = self._pool.draw(event, dst, known, NUM_LEARNED, LEARNED_SEED + number)
        asked = np.concatenate([src[:, None], dst[:, None], negatives], 1)

        # Neighborhoods of sources, destinations and negatives.
        nodes, index = np.unique(asked, return_inverse=True)
        index = index.reshape(asked.shape)
        around = self._around(nodes, self._training.seed + number)
        sets = self._asked_sets(event, asked.shape[1] - 1)
        inputs = link_inputs(event, sets, index[:, 0], index[:, 1:], around)

        # Mask the step's own edges.
        hops = tuple(
            replace(hop, mask_UK=hop.mask_UK & ~torch.isin(hop.eid_UK, inputs.event_E))
            for hop in inputs.hops
        )
        return self._transfer.inputs(replace(inputs, hops=hops))

    @torch.no_grad()
    def measure(self, event: Int64, part: str) -> Measures:
        """Measure edges, each against 100 destinations known before it. part: name for the
        progress."""
        # Edges with a negative; a sample if there are too many.
        if len(event) > SCORED_EDGES:
            rng = np.random.default_rng([self._training.seed, int(event[0])])
            event = np.sort(rng.choice(event, SCORED_EDGES, replace=False))
        src, dst, when = self._ends(event)
        known = self._pool.known_before(when, dst)
        kept = self._pool.has_others(dst, known)
        event = event[kept]
        src = src[kept]
        dst = dst[kept]
        known = known[kept]

        # Candidates, the true destination first.
        negatives = self._pool.draw(event, dst, known, NUM_SCORED, SCORED_SEED)
        candidate_EC = np.concatenate([dst[:, None], negatives], 1)

        # Embed each node once, since no state changes between edges.
        nodes = np.unique(np.concatenate([src, candidate_EC.ravel()]))
        heads = self._heads(nodes, part)
        score_EC = np.empty(candidate_EC.shape, np.float32)
        for a in range(0, len(event), BATCH_EDGES):
            rows = slice(a, a + BATCH_EDGES)
            src_at = torch.from_numpy(np.searchsorted(nodes, src[rows]))
            dst_at = torch.from_numpy(np.searchsorted(nodes, candidate_EC[rows]))
            src_E1D = heads[0][src_at][:, None]
            if self.model.head_set is not None:
                sets = torch.from_numpy(self._asked_sets(event[rows], 1))
                src_E1D = src_E1D + self.model.asked_set(sets.to(src_E1D.device))
            logits = self.model.head_logits(src_E1D, heads[1][dst_at])
            score_EC[rows] = logits.cpu().numpy()
        score_EC = among_candidates(score_EC, is_candidate(candidate_EC))
        # Novelty needs time, so only known destinations get a separate mean.
        scores = measures(score_EC)
        is_known_E = self._pool.holds(dst, known)
        if is_known_E.any():
            scores["mrr_known"] = float((1 / ranks(score_EC[is_known_E])).mean())
        return scores

    def _heads(self, nodes: Int64, part: str) -> Tensor:
        """Projections of nodes as sources and as destinations by the model's head, float32[2, N,
        D]."""
        out = []
        none = np.zeros((0, 1), np.int64)
        for a in range(0, len(nodes), EMBEDDED_NODES):
            around = self._around(nodes[a : a + EMBEDDED_NODES], self._training.seed)
            inputs = self._transfer.inputs(
                link_inputs(
                    none[:, 0], none[..., None].astype(np.float32), none[:, 0], none, around
                )
            )
            z_UD = self.model.embed(inputs, inputs.no_state_MD)
            out.append(torch.stack([self.model.head_src(z_UD), self.model.head_dst(z_UD)]))
            self._progress(part, min(a + EMBEDDED_NODES, len(nodes)), len(nodes), "nodes")
        return torch.cat(out, 1)

    def _around(self, nodes: Int64, seed: int) -> Neighborhood:
        """Sample neighborhoods uniformly among all edges of the graph, regardless of time."""
        live = self._live
        draws = []
        for hop, draw in enumerate(self._plan.hops):
            assert isinstance(draw, Draw), "static models draw a hop at once"
            draws.append(replace(draw, strategy="uniform", seed=seed + hop))
        plan = replace(self._plan, hops=tuple(draws))
        return sample_neighborhood(
            live.graph, self._log.columns, live.features, nodes, self._end, 0, plan
        )

    def _ends(self, event: Int64) -> tuple[Int64, Int64, Int64]:
        """Source, destination and time (microseconds) of edges, int64[E] each."""
        return (
            self._log.gather("src", event),
            self._log.gather("dst", event),
            self._log.time_of(event),
        )


def _static(model: ModelSettings, log: LogReader) -> ModelSettings:
    """The model's settings for a static graph: graph layers only.

    If nodes have no features, each gets a learned vector, since the model could not distinguish
    them otherwise. Raises: SettingsError if the architecture needs time.
    """
    if not architecture_of(model).static:
        names = [name for name, row in ARCHITECTURES.items() if row.static]
        raise SettingsError(
            f"model.name is {model.name}, which does not learn a static graph.",
            f"choose one of {', '.join(names)}, by --model or model.name.",
        )
    assert log.state is not None
    known_apart = model.id_rows or log.state.schema.node_feature_dim
    return model.model_copy(
        update={
            "pair_facts": False,
            "labels": "none",
            "id_rows": model.id_rows if known_apart else log.num_nodes,
        }
    )


def _draw_id_vectors(model: LinkModel, seed: int) -> None:
    """Draw the nodes' learned vectors at random.

    In a live stream they start at zero, because new nodes appear. A static graph needs a third of
    the epochs, with better results, if the vectors differ from the start.
    """
    vectors = model.encoder.id_vectors
    if vectors is not None:
        drawn = torch.randn(vectors.weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            vectors.weight.copy_(drawn)


def _split(log: LogReader) -> tuple[Int64, Int64, Int64]:
    """Split the edges that are not deleted by time. Returns: int64 ids to train, validate, test.

    Edges of equal time stay together. Raises: StreamdError if a part would be empty.
    """
    first, end = log.first_edge, log.num_edges
    event = first + np.flatnonzero(~log.hidden(first, end))
    cuts = []
    for share in SPLIT:
        at = event[int(share * len(event)) : int(share * len(event)) + 1]
        cuts.append(log.lower_bound(int(log.time_of(at)[0])) if len(at) else end)
    train, valid, test = np.split(event, np.searchsorted(event, cuts))
    if not (len(train) and len(valid) and len(test)):
        raise StreamdError(
            f"{len(event)} edges cannot be split into training, validation and test.",
            "train on a log with more edges at different times.",
        )
    return train, valid, test
