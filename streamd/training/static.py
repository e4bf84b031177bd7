"""Static training (GNNFlow, section 3): the log as one graph whose edges have no time, from which
GraphSAGE, GAT or GCN learns to tell true edges from wrong ones.

The older edges are the graph, and are learned; the newer ones validate and test, and are not in it.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from streamd import __version__
from streamd.errors import SettingsError, StreamdError
from streamd.events import Int64
from streamd.gpu import choose_device, make_graph, memory_for
from streamd.graph.live import LiveGraph, read_back
from streamd.graph.neighborhood import Neighborhood, sample_neighborhood
from streamd.models import (
    ARCHITECTURES,
    LinkInputs,
    LinkModel,
    architecture_of,
    build_model,
    link_loss,
)
from streamd.models.inputs import link_inputs
from streamd.segments.reader import LogReader
from streamd.settings import ModelSettings, Settings
from streamd.storage import write_folder_durably
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.negatives import LEARNED_SEED, NUM_LEARNED, NUM_SCORED, SCORED_SEED, Pool
from streamd.training.scores import Measures, measures

SPLIT = (0.7, 0.85)
"""Shares of the edges, oldest first, that end training and validation."""
BATCH_EDGES = 600
"""Edges a step, as TGL and GNNFlow have it."""
SCORED_EDGES = 20_000
"""Most edges that a measure is taken over: of more, a seeded sample. MRR is then sure to 0.003."""
EMBEDDED_NODES = 4096
"""Nodes embedded in one go; more take more memory and no less time."""
FEATURE_ROWS = 262_144

Progress = Callable[[str, int, int, str], None]
"""Told (part of the work, done, in all, unit)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One pass. number: 0 is before the first; loss: mean over the edges, NaN then; valid: measures
    of the validation edges after it; seconds: that it took, measuring included."""

    number: int
    loss: float
    valid: Measures
    seconds: float


class StaticTraining:
    """A model over a static graph. Owner: one thread. The log is only read, as it was when opened.

    train, valid, test: int64, ids of the edges that are not deleted. epochs: those done.
    """

    def __init__(self, settings: Settings, log: LogReader, progress: Progress) -> None:
        """Raises: SettingsError where the model needs time; StreamdError where there are too few
        edges."""
        assert log.state is not None
        self._log = log
        self._progress = progress
        self._training = settings.training
        self.schema = replace(log.state.schema, label_dim=0)
        self.settings = _static(settings.model, log)
        self.train, self.valid, self.test = _split(log)
        self.epochs: list[Epoch] = []

        # The graph and the destinations that wrong edges lead to.
        device = choose_device(settings.device)
        self._end = int(self.train[-1]) + 1
        graph = make_graph(
            settings, device, log.first_edge, self.settings.direction, read_back(log)
        )
        self._live = LiveGraph(log, graph, self.settings)
        self._live.insert(self._end)
        self._live.take_features(self._end)
        _, dst, when = log.edges(log.first_edge, log.num_edges)
        self._pool = Pool.of(self._live.facts, dst, when, log.deletions.nodes)
        cut_us = log.time_of(self.valid[:1])
        self._known = int(self._pool.known_before(cut_us)[0])

        # The model, which knows how inputs are spread before it learns.
        self._transfer = DeviceTransfer(device, settings.gpu, self.schema.edge_feature_dim)
        self.model = build_model(self.settings, self.schema, settings.training.seed, device)
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
        """Measure, then learn so many epochs, each yielded as it is done; the weights of the best
        are kept."""
        for number in range(epochs + 1):
            begun = time.perf_counter()
            with memory_for("static training"):
                loss = self._epoch(number) if number else math.nan
                valid = self.measured(self.valid, f"epoch {number}, validation")
            done = Epoch(number=number, loss=loss, valid=valid, seconds=time.perf_counter() - begun)
            if not self.epochs or valid["mrr"] > self.best.valid["mrr"]:
                self._best = self._weights()
            self.epochs.append(done)
            yield done

    @property
    def best(self) -> Epoch:
        """The epoch of the highest MRR on the validation edges."""
        return max(self.epochs, key=lambda epoch: epoch.valid["mrr"])

    def tested(self) -> Measures:
        """Measures of the test edges under the best weights."""
        self.model.restore(self._best)
        return self.measured(self.test, "test")

    def write(self, folder: Path, test: Measures) -> None:
        """Write the best weights and what they are as a folder: model.safetensors, manifest.json."""
        manifest = {
            "model": self.settings.model_dump(mode="json"),
            "schema": asdict(self.schema),
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
        """One pass over the training edges in a seeded order. Returns: mean loss."""
        _, dst, _ = self._ends(self.train)
        train = self.train[self._pool.has_others(dst, np.full(len(dst), self._known))]
        order = np.random.default_rng([self._training.seed, number]).permutation(len(train))
        steps = [train[order[a : a + BATCH_EDGES]] for a in range(0, len(order), BATCH_EDGES)]
        self.model.train()
        total = 0.0
        numbered = [(number * len(steps) + i, events) for i, events in enumerate(steps)]
        for done, inputs in enumerate(self._transfer.ahead(numbered, self.prepared), 1):
            with self._transfer.autocast():
                logits_EC = self.model(inputs, inputs.no_state_MD)
            loss = link_loss(logits_EC.float(), inputs.weight_E)
            self._optimizer.zero_grad()
            (loss / inputs.num_events).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += float(loss.detach())
            self._progress(f"epoch {number}", done, len(steps), "steps")
        self.model.eval()
        return total / len(order)

    def prepared(self, step: tuple[int, Int64]) -> LinkInputs:
        """Edges of a step with their wrong destinations and neighbourhoods, on the device. They are
        taken out of what is sampled: a model that saw the edge it is asked for would learn to look
        it up."""
        number, event = step
        src, dst, _ = self._ends(event)
        known = np.full(len(event), self._known)
        wrong = self._pool.draw(event, dst, known, NUM_LEARNED, LEARNED_SEED + number)
        asked = np.concatenate([src[:, None], dst[:, None], wrong], 1)
        nodes, place = np.unique(asked, return_inverse=True)
        place = place.reshape(asked.shape)
        around = self._around(nodes, self._training.seed + number)
        none = np.zeros((len(event), asked.shape[1] - 1, 0), np.float32)
        inputs = link_inputs(event, none, place[:, 0], place[:, 1:], around)
        hops = tuple(
            replace(hop, mask_UK=hop.mask_UK & ~torch.isin(hop.eid_UK, inputs.event_E))
            for hop in inputs.hops
        )
        return self._transfer.inputs(replace(inputs, hops=hops))

    @torch.no_grad()
    def measured(self, event: Int64, part: str) -> Measures:
        """Of edges, each against 100 destinations known before it."""
        if len(event) > SCORED_EDGES:
            rng = np.random.default_rng([self._training.seed, int(event[0])])
            event = np.sort(rng.choice(event, SCORED_EDGES, replace=False))
        src, dst, when = self._ends(event)
        known = self._pool.known_before(when)
        kept = self._pool.has_others(dst, known)
        event = event[kept]
        src = src[kept]
        dst = dst[kept]
        known = known[kept]
        wrong = self._pool.draw(event, dst, known, NUM_SCORED, SCORED_SEED)
        candidate_EC = np.concatenate([dst[:, None], wrong], 1)

        # Nothing moves between two edges, so each node is embedded once.
        nodes = np.unique(np.concatenate([src, candidate_EC.ravel()]))
        heads = self._heads(nodes, part)
        score_EC = np.empty(candidate_EC.shape, np.float32)
        for a in range(0, len(event), BATCH_EDGES):
            rows = slice(a, a + BATCH_EDGES)
            src_at = torch.from_numpy(np.searchsorted(nodes, src[rows]))
            dst_at = torch.from_numpy(np.searchsorted(nodes, candidate_EC[rows]))
            logits = self.model.residual_of(heads[0][src_at][:, None], heads[1][dst_at])
            score_EC[rows] = logits.cpu().numpy()
        return measures(score_EC, self._pool.holds(dst, known))

    def _heads(self, nodes: Int64, part: str) -> Tensor:
        """What the head makes of nodes as sources and as destinations: float32[2, N, D]."""
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
        """Neighbourhoods drawn among all edges of the graph, whatever their time."""
        live = self._live
        draws = [
            replace(draw, strategy="uniform", seed=seed + hop)
            for hop, draw in enumerate(self._plan.hops)
        ]
        plan = replace(self._plan, hops=tuple(draws))
        return sample_neighborhood(
            live.graph, self._log.columns, live.features, nodes, self._end, 0, plan
        )

    def _ends(self, event: Int64) -> tuple[Int64, Int64, Int64]:
        """src, dst, time of edges."""
        return (
            self._log.gather("src", event),
            self._log.gather("dst", event),
            self._log.time_of(event),
        )


def _static(model: ModelSettings, log: LogReader) -> ModelSettings:
    """The graph layers alone, and a learned vector a node where nothing else tells nodes apart."""
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
    """Begin with vectors that differ: where a live stream's begin at zero, for the sake of new
    nodes, a closed graph is learned in a third of the epochs, and better."""
    vectors = model.encoder.id_vectors
    if vectors is not None:
        drawn = torch.randn(vectors.weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            vectors.weight.copy_(drawn)


def _split(log: LogReader) -> tuple[Int64, Int64, Int64]:
    """Ids of the edges that are not deleted, in order of time, that train, validate and test; equal
    times stay together."""
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
