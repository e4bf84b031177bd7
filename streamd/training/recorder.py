"""The recorder moves graph and facts over a window and records the inputs of its events."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.gpu import free_device_memory, make_graph
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.facts.columns import NUM_FACTS
from streamd.graph.live import CATCH_UP_EDGES, LiveGraph, read_back
from streamd.graph.negatives import (
    LEARNED,
    NUM_SCORED,
    SCORED,
    SCORED_SEED,
    Pools,
)
from streamd.graph.neighborhood import Neighborhood, sample_neighborhood
from streamd.graph.new_negatives import draw_new
from streamd.graph.node_features import FeatureRows, NodeFeatures
from streamd.graph.recent_negatives import RecentDestinations, draw_for_learning
from streamd.graph.temporal import TemporalGraph
from streamd.models import EdgeRows, LinkInputs, architecture_of
from streamd.models.inference.new_rates import asked_sets, log_sum_odds
from streamd.models.inputs import link_inputs
from streamd.models.labels import LabelInputs, label_inputs
from streamd.ranks import ALONE, Ranks
from streamd.ranks.ranked_graph import RankedFeatures, RankedGraph
from streamd.training.event_view import EventView, FreshView
from streamd.training.learning_settings import LearningSettings
from streamd.windows import Window, canonical_chunks
from streamd.windows.novelty import Novelty

MAX_LABELS = 2_000
"""The most labels of one chunk that are scored and trained on: all labels of a day may have the
same time."""
LONG_CHUNK = 4
"""A chunk with more scored events than this multiple of `model.memory_chunk` is recorded, scored
and trained on in slices. Only many events of equal time make such chunks. A lower value would slice
ordinary chunks too. A higher one would take more memory, also in replay, which is bounded by the
number of chunks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The recorded inputs of one canonical chunk, or of a slice of a chunk with very many events.

    All slices of a chunk see graph and memory before the chunk; its last slice updates memory.

    first_edge: id of its first event.
    edges: the rows of all events of the canonical chunk, which update memory afterwards; none for
    a slice that is not its chunk's last.
    score: the events with all their candidates: the true one, 100 negatives for scoring and 10 for
    training (`SCORED` and `LEARNED` are their columns), fewer in a log of few destinations
    (`LinkInputs.is_candidate_EC`); None if no event is scored.
    learn: the same events with the candidates for training.
    known_E: bool[E], whether each event's destination was a destination before. Of other events the
    negatives for training were never seen before either (`draw_new`); without such they have weight
    0: an unseen destination would be true by construction, and the model would learn to rank
    unknown nodes first. In a backtest with older facts, events have weight 0 too if those facts
    lack the destination.
    num_others_E: int64[E], number of other destinations of its set known before each event.
    labels: labels with a time after the previous chunk's last event and up to this chunk's last
    one, with inputs at the chunk's start; they come with the last slice.
    num_events, num_labels: over all ranks; each rank has its even share of both, in order.
    """

    first_edge: int
    edges: EdgeRows
    score: LinkInputs | None
    learn: LinkInputs | None
    known_E: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    num_others_E: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: LabelInputs | None = None
    num_events: int = 0
    num_labels: int = 0

    @property
    def edge_set_E(self) -> Int64:
        """Number of the edge set of each scored event, int64[E]."""
        num_sets = self.scored_facts.shape[-1] - 2 * NUM_FACTS
        if num_sets < 0:
            return np.zeros(len(self.scored_facts), np.int64)
        sets: Int64 = self.scored_facts[:, 0, -num_sets:].argmax(1)
        return sets

    @property
    def novelty(self) -> Novelty:
        """Novelty of the scored events, from their facts. The chunk must be scored."""
        return Novelty.of(self.scored_facts[:, 0], self.known_E)

    def new_counts(self, logits_EC: Float32, num_edge_sets: int, has_learned: bool) -> Tensor:
        """Counts of the scored events for `NewDestinations`, float64[3, S].

        logits_EC, has_learned: as in `log_sum_odds`.
        """
        of_known_E = log_sum_odds(logits_EC, self.known_E, self.num_others_E, has_learned)
        columns = (np.ones(len(self.known_E)), ~self.known_E, of_known_E)
        set_E = np.broadcast_to(
            asked_sets(self.scored_facts[:, 0], num_edge_sets), self.known_E.shape
        )
        rows = [np.bincount(set_E, column, num_edge_sets) for column in columns]
        return torch.from_numpy(np.stack(rows))

    @property
    def is_candidate_EC(self) -> Bools:
        """Which columns of the scored candidates are filled, bool[E, 101]. The chunk must be
        scored."""
        assert self.score is not None
        return self.score.is_candidate_EC.numpy()[:, SCORED]

    @property
    def num_negatives_E(self) -> Int64:
        """Number of negatives against which each event is scored, int64[E]."""
        out: Int64 = self.is_candidate_EC.sum(1) - 1
        return out

    @property
    def scored_facts(self) -> Float32:
        """Facts of the candidates for scoring, float32[E, 101, F]. The chunk must be scored."""
        assert self.score is not None
        return self.score.facts_ECF.numpy()[:, SCORED]


def prefetch(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the same chunks, while another thread records the next one.

    Meanwhile the caller must neither move the recorder nor refresh its log; it may read the log's
    counts and deletes.
    """
    with ThreadPoolExecutor(1, "recorder") as pool:
        coming = pool.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, chunks, None)
            yield chunk


def graph_of(
    settings: LearningSettings, log: LogReader, ranks: Ranks
) -> tuple[TemporalGraph, FeatureRows | None]:
    """Make an empty graph for a log, and, if several ranks share its nodes, the rows of their
    features."""
    direction = settings.model.direction
    if ranks.num_shards == 1:
        graph = make_graph(
            settings.graph,
            settings.gpu,
            settings.device,
            log.first_edge,
            direction,
            read_back(log),
        )
        return graph, None
    own = BlockGraph(
        log.first_edge,
        settings.graph.max_block_entries,
        (direction,),
        read_back(log),
        owned=ranks.owned,
    )
    features = NodeFeatures(log.state.schema, log.node_sets_of, ranks.owned)
    return RankedGraph(own, ranks.recording), RankedFeatures(features, ranks.recording)


class Recorder:
    """Moves a `LiveGraph` over windows and records inputs. Owner: one thread.

    With several ranks, each records its share of a chunk's events and requests neighbors and
    features from the others: all record the same chunks at the same time.

    view: the view of graph and facts for the events; backtests replace it.
    """

    def __init__(self, settings: LearningSettings, log: LogReader, ranks: Ranks = ALONE) -> None:
        self._settings = settings
        self._log = log
        self._ranks = ranks
        graph, features = graph_of(settings, log, ranks)
        self.live = LiveGraph(
            log,
            graph,
            settings.model,
            settings.graph.keep_in_memory_seconds * 1_000_000,
            features,
        )
        self.view: EventView = FreshView(self.live)
        architecture = architecture_of(settings.model)
        self._sampling = architecture.plan(settings.model)
        # As of `NewScore`: only such models distinguish new destinations.
        self._learns_new = (
            architecture.score == "vectors"
            and settings.model.pair_facts
            and log.state.schema.node_feature_dim > 0
        )

    @property
    def edge(self) -> int:
        """Id of the first event that is neither recorded nor skipped yet."""
        return self.live.edge

    def rebuild(
        self,
        until_event: int,
        slice_edges: int = 100_000,
        catch_up_edges: int = CATCH_UP_EDGES,
        on_slice: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Move up to event `until_event` without recording, as after a restart.

        slice_edges, catch_up_edges: as in `LiveGraph.step`.
        on_slice: called with the graph's next event id after each slice.
        """
        while self.live.step(until_event, slice_edges, catch_up_edges):
            on_slice(self.live.graph.next_event)

    def free_device_memory(self) -> bool:
        """Move graph data off the GPU if possible. Returns: whether any was moved."""
        return free_device_memory(self.live.graph)

    def cut(self, window: Window) -> Iterator[EdgeRows]:
        """Yield the rows of each canonical chunk of a window."""
        rows = EdgeRows.of(self._log, window.first_edge, window.end_edge)
        for a, b in canonical_chunks(rows.time_E, self._settings.model.memory_chunk):
            yield rows.cut(a, b)

    def chunks(
        self,
        window: Window,
        recorded: bool = True,
        max_events: int | None = None,
        first_recorded: int = 0,
    ) -> Iterator[Chunk]:
        """Record a window chunk by chunk, long chunks slice by slice.

        Afterwards graph and facts are at the window's end.

        recorded: False only moves graph and facts.
        max_events: the most events that are scored; None for `windows.max_events`.
        first_recorded: events with a lower id only move graph and facts.
        """
        # Choose the events to score.
        rows = EdgeRows.of(self._log, window.first_edge, window.end_edge)
        pool = self.view.pool_of(window)
        known_E = pool.known_before(rows.time_E, rows.dst_E)
        chosen = np.zeros(0, np.int64)
        if recorded:
            possible = pool.has_others(rows.dst_E, known_E)
            possible[: max(0, first_recorded - rows.first_edge)] = False
            chosen = self._chosen(rows, possible, max_events or self._settings.windows.max_events)

        # Recent destinations, for a share of the negatives for training.
        share = self._settings.training.recent_negatives if len(chosen) else 0.0
        recent = RecentDestinations.until(self._log, window.end_edge, share)

        self.view.enter(window)
        for a, b in canonical_chunks(rows.time_E, self._settings.model.memory_chunk):
            part = rows.cut(a, b)
            chosen_A = chosen[np.searchsorted(chosen, a) : np.searchsorted(chosen, b)] - a

            # Node features as of the chunk, then its labels, which use them.
            before_event = self.view.edge_before(part)
            self.live.take_features(before_event)
            labels = self._labels(part, before_event) if recorded else (None, 0)

            # The chosen events, slice by slice, of each slice this rank's share.
            for cut in self._slices(chosen_A, b - a):
                whole = chosen_A[slice(*np.searchsorted(chosen_A, cut))]
                own = whole[self._ranks.share(len(whole))]
                chunk = self._slice(
                    part, cut, own, known_E[a + own], pool, recent, before_event, len(whole)
                )
                yield (
                    chunk
                    if cut[1] < b - a
                    else replace(chunk, labels=labels[0], num_labels=labels[1])
                )
        self.view.leave(rows)

    def _slices(self, chosen_A: Int64, num_rows: int) -> list[tuple[int, int]]:
        """Cut a chunk of `num_rows` rows into ranges with about equally many chosen events, at most
        LONG_CHUNK times `model.memory_chunk`. chosen_A: int64[A], the rows of the chosen events,
        ascending."""
        most = LONG_CHUNK * self._settings.model.memory_chunk
        count = max(1, -(-len(chosen_A) // most))
        cuts = [0, *chosen_A[len(chosen_A) * np.arange(1, count) // count].tolist(), num_rows]
        return list(pairwise(cuts))

    def _slice(
        self,
        part: EdgeRows,
        rows: tuple[int, int],
        chosen_A: Int64,
        known: Int64,
        pool: Pools,
        recent: RecentDestinations,
        before_event: int,
        num_events: int,
    ) -> Chunk:
        """Record the rows [first, until) of a chunk, without its labels.

        chosen_A: int64[A], this rank's share of the chosen rows. known: int64[A], number of
        destinations known at each. num_events: chosen rows of all ranks.
        """
        first, until = rows
        last = until == len(part.src_E)
        event = part.first_edge + chosen_A
        dst = part.dst_E[chosen_A]
        is_known = pool.holds(dst, known)

        # Candidates: the true destination, negatives known before the event, and negatives for
        # training.
        scored = pool.draw(event, dst, known, NUM_SCORED, SCORED_SEED)
        learned, log_draws = draw_for_learning(pool, recent, event, dst)
        is_learned = is_known.copy()
        new = np.flatnonzero(~is_known)
        if self._learns_new and len(new):
            learned[new], is_learned[new] = self._draw_new(pool, event[new], dst[new], known[new])
            log_draws[new] = 0.0
        candidates = np.concatenate([dst[:, None], scored, learned], 1)

        # Facts at each event; this call advances them.
        facts = self.view.facts(part, until, chosen_A, candidates)

        # Neighborhoods. Events that cannot be learned get weight 0.
        score = learn = None
        if num_events:
            query_us = self._time_before(before_event)
            src = part.src_E[chosen_A]
            score, learn = self._inputs(event, facts, src, candidates, before_event, query_us)
            is_learned &= ~is_known | self.view.knows_destination(facts[:, 0])
            learn = replace(
                learn,
                weight_E=torch.from_numpy(is_learned).float(),
                log_draws_EC=torch.from_numpy(log_draws),
            )
        return Chunk(
            first_edge=part.first_edge + first,
            edges=part if last else part.cut(0, 0),
            score=score,
            learn=learn,
            known_E=is_known,
            num_others_E=pool.num_others(dst, known),
            num_events=num_events,
        )

    def _draw_new(self, pool: Pools, event: Int64, dst: Int64, known: Int64) -> tuple[Int64, Bools]:
        """Draw the negatives of events with a new destination, as `draw_new`."""
        positions, deleted = self.live.features.positions, self._log.deletions.nodes
        return draw_new(pool, positions, deleted, event, dst, known)

    def _time_before(self, edge: int) -> int:
        """Event time, microseconds, of the event before `edge`, or of the log's first event."""
        return int(self._log.time_of(np.array([max(edge - 1, self._log.first_edge)]))[0])

    def _labels(self, part: EdgeRows, before_event: int) -> tuple[LabelInputs | None, int]:
        """Record this rank's share of the chunk's labels, with inputs at its start; a seeded sample
        if there are more than MAX_LABELS.

        Returns: the labels, and their number over all ranks; None and 0 if there are none, or the
        model has no head for them.
        """
        if self._settings.model.labels == "none" or not self._settings.label_dim:
            return None, 0

        # Labels after the previous chunk's last event; for the log's first chunk all earlier ones.
        after = (
            self._time_before(part.first_edge)
            if part.first_edge > self._log.first_edge
            else -(2**62)
        )
        node, _, target = self._log.labels_between(after, int(part.time_E[-1]))

        # Skip labels of deleted nodes.
        kept = np.flatnonzero(~self._log.deletions.is_gone(node))
        if len(kept) > MAX_LABELS:
            rng = np.random.default_rng([self._settings.training.seed, 3, part.first_edge])
            kept = np.sort(rng.choice(kept, MAX_LABELS, replace=False))
        num_labels = len(kept)
        if not num_labels:
            return None, 0
        kept = kept[self._ranks.share(num_labels)]
        nodes, index = np.unique(node[kept], return_inverse=True)
        labels = label_inputs(
            self.live,
            self._sampling,
            nodes,
            self._log.node_sets_of(nodes),
            index,
            target[kept],
            before_event,
            self._time_before(before_event),
        )
        return labels, num_labels

    def _chosen(self, rows: EdgeRows, possible_E: Bools, limit: int) -> Int64:
        """Rows of the window's events to score and train on, int64, ascending.

        Deleted events are skipped. If more than `limit` remain, a seeded sample is taken.
        """
        chosen = np.flatnonzero(
            possible_E & ~self._log.deletions.hides(rows.first_edge, rows.src_E, rows.dst_E)
        )
        if len(chosen) > limit:
            rng = np.random.default_rng([self._settings.training.seed, rows.first_edge])
            chosen = np.sort(rng.choice(chosen, limit, replace=False))
        return chosen

    def _inputs(
        self,
        event: Int64,
        facts: Float32,
        src: Int64,
        candidates: Int64,
        before_event: int,
        query_us: int,
    ) -> tuple[LinkInputs, LinkInputs]:
        """Sample the neighborhoods of all nodes. Returns: inputs for scoring, and inputs for
        training.

        candidates: int64[E, 111]. facts: float32[E, 111, F].
        """
        src_at, candidate_at, around = self._around(src, candidates, before_event, query_us)
        score = link_inputs(event, facts, src_at, candidate_at, around)

        # Training needs only the neighborhoods of its own candidates.
        few, index = np.unique(
            np.concatenate([src_at, candidate_at[:, LEARNED].ravel()]), return_inverse=True
        )
        learn = link_inputs(
            event,
            np.ascontiguousarray(facts[:, LEARNED]),
            index[: len(src)],
            index[len(src) :].reshape(len(src), len(LEARNED)),
            around.subset(few),
        )
        return score, learn

    def inputs_before(
        self, event: Int64, facts: Float32, src: Int64, candidates: Int64, before_event: int
    ) -> LinkInputs:
        """Inputs of events with their neighbors before `before_event`, which may be much older.

        Node features are the present ones. candidates: int64[E, C]. facts: float32[E, C, F].
        """
        query_us = self._time_before(before_event)
        return link_inputs(event, facts, *self._around(src, candidates, before_event, query_us))

    def _around(
        self, src: Int64, candidates: Int64, before_event: int, query_us: int
    ) -> tuple[Int64, Int64, Neighborhood]:
        """Returns: indices of sources and candidates among the distinct nodes, and the
        neighborhoods of those."""
        # Sample each node once, however often it is a candidate.
        nodes, index = np.unique(np.concatenate([src, candidates.ravel()]), return_inverse=True)
        around = sample_neighborhood(
            self.live.graph,
            self._log.columns,
            self.live.features,
            nodes,
            before_event,
            query_us,
            self._sampling,
        )
        return index[: len(src)], index[len(src) :].reshape(candidates.shape), around
