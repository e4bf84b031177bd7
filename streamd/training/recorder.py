"""The log's side of learning: moves graph and facts over a window and records the inputs of every event in it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streamd.events import Int64
from streamd.graph import BlockGraph, PairFacts
from streamd.graph.neighborhood import look_around
from streamd.graph.node_features import NodeFeatures
from streamd.models import EdgeRows, LinkInputs
from streamd.models.inputs import link_inputs
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.training.negatives import NUM_LEARNED, negatives
from streamd.windows import Window, canonical_chunks


@dataclass(frozen=True)
class RecordedChunk:
    """One canonical chunk. score: all candidates (true + 100); learn: the same events, true + 10. None: not scored."""

    edges: EdgeRows
    score: LinkInputs | None
    learn: LinkInputs | None


class Recorder:
    """Owns a graph, facts and node features at a place in the log, and moves them. Owner: one thread."""

    def __init__(self, settings: Settings, log: LogReader) -> None:
        assert log.state is not None
        self._settings, self._log = settings, log
        self.graph = BlockGraph(log.first_edge, settings.graph.max_block_entries)
        self.facts = PairFacts(settings.model.half_lives_seconds, settings.model.max_pairs)
        self.features = NodeFeatures(log.state.schema.node_feature_dim)
        self.edge = log.first_edge
        self._uses_graph = settings.model.name == "tgn"

    def rebuild(self, until_edge: int, slice_edges: int = 100_000) -> None:
        """Move over events without recording them, as after a restart."""
        while self.edge < until_edge:
            end = min(self.edge + slice_edges, until_edge)
            src, dst, time = self._log.edges(self.edge, end)
            self.graph.insert(src, dst)
            self.facts.advance(src, dst, time)
            self.edge = end

    def rows(self, first: int, end: int) -> EdgeRows:
        src, dst, time = self._log.edges(first, end)
        return EdgeRows(first, src, dst, time, self._log.features_of(np.arange(first, end)))

    def chunks(self, window: Window, standing: bool = False, pool: Int64 | None = None) -> Iterator[RecordedChunk]:
        """Record a window chunk by chunk, facts as of each event; afterwards the state is at the window's end.

        standing: facts and neighbours stay as they are now (a nightly model's view); nothing moves.
        pool: nodes negatives are drawn from, by default all destinations before the window.
        """
        rows = self.rows(window.first_edge, window.end_edge)
        pool = self.facts.destinations() if pool is None else pool
        chosen = np.arange(window.num_edges) if len(pool) >= 2 else np.zeros(0, np.int64)
        limit = self._settings.windows.max_events
        if len(chosen) > limit:
            rng = np.random.default_rng([self._settings.training.seed, window.first_edge])
            chosen = np.sort(rng.choice(window.num_edges, limit, replace=False))
        standing_edge = self.edge
        if not standing:
            self.graph.insert(rows.src_E, rows.dst_E)
        for a, b in canonical_chunks(rows.time_E, self._settings.model.memory_chunk):
            part = rows.cut(a, b)
            asked = chosen[np.searchsorted(chosen, a): np.searchsorted(chosen, b)] - a
            dst = part.dst_E[asked]
            wrong = negatives(pool, part.first_edge + asked, dst) if len(asked) else np.zeros((0, 100), np.int64)
            candidates = np.concatenate([dst[:, None], wrong], 1)
            before_edge = standing_edge if standing else part.first_edge
            self.features.advance(self._log.feature_node, self._log.feature_edge, self._log.feature_values, before_edge)
            if standing:
                facts = self.facts.rows(part.src_E[asked], part.time_E[asked], candidates)
            else:
                facts = self.facts.advance_scoring(part.src_E, part.dst_E, part.time_E, asked, candidates)
            score = learn = None
            if len(asked):
                query_us = int(self._log.time_of(np.array([max(before_edge - 1, self._log.first_edge)]))[0])
                src = part.src_E[asked]
                score, learn = self._inputs(facts, src, candidates, before_edge, query_us)
            yield RecordedChunk(part, score, learn)
        if not standing:
            self.edge = window.end_edge

    def _inputs(
        self, facts: np.ndarray[tuple[int, ...], np.dtype[np.float32]], src: Int64, candidates: Int64, before_edge: int,
        query_us: int
    ) -> tuple[LinkInputs, LinkInputs]:
        nodes, place = np.unique(np.concatenate([src, candidates.ravel()]), return_inverse=True)
        src_at, candidate_at = place[: len(src)], place[len(src):].reshape(candidates.shape)
        if not self._uses_graph:
            nodes = nodes[:0]
        around = look_around(self.graph, self._log, self.features, nodes, before_edge, query_us,
                             self._settings.model.neighbors)
        score = link_inputs(facts, src_at, candidate_at, around)
        kept = 1 + NUM_LEARNED
        few, place = np.unique(np.concatenate([src_at, candidate_at[:, :kept].ravel()]), return_inverse=True)
        around = around.subset(few) if self._uses_graph else around
        learn = link_inputs(np.ascontiguousarray(facts[:, :kept]), place[: len(src)],
                            place[len(src):].reshape(len(src), kept), around)
        return score, learn
