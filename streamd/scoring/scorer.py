"""The scorer ranks events by the version that serves, as the prequential scores of windows do:
among the same candidates, with facts strictly before each event, and memory and neighbors as of
the start of its canonical chunk."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import structlog

from streamd.eventlog.log_changes import LogSubscriber
from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64, split_key
from streamd.graph.negatives import NUM_SCORED, SCORED_SEED, Pools
from streamd.graph.ranking import among_candidates, is_candidate, ranks
from streamd.registry import Registry
from streamd.scoring.rarity import surprise
from streamd.scoring.record import ScoreRecord
from streamd.scoring.scoring_graph import ScoringGraph
from streamd.serving.champion import read_champion
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.serving_settings import ServingSettings
from streamd.serving.swap import CatchingUp, Swap, Swapped
from streamd.settings.loading import ModelSettings
from streamd.windows import closed_chunks

logger = structlog.get_logger()
MAX_BATCH = 64
"""Maximum number of events scored in one pass: more save little, and the first of them would wait
for the last."""
CATCH_UP_SECONDS = 0.01
"""Time for the next version between two passes: in several slices it reaches the next event to
score, even if each pass scores some."""
CHUNKS_AT_ONCE = 20
"""Maximum number of chunks that memory processes between two heartbeats."""


class Scored(NamedTuple):
    """An event's record, and its node ids, by which deletes find it.

    surprise: as in `rarity`. facts_F: float32[F], of the pair before the event. alarm: the encoded
    alarm, None for none.
    """

    record: ScoreRecord
    src: int
    dst: int
    surprise: float
    facts_F: Float32
    alarm: bytes | None = None


class Batch(NamedTuple):
    """The events [first, end) before they are scored.

    asked_A: ids of the events to score, int64[A]. src_A: int64[A]. candidates_AC: int64[A, 101],
    the true destination first, and again after the others if those are fewer. known_A: whether the
    true destination was a destination before. facts_ACF: float32[A, 101, F].
    """

    first: int
    end: int
    asked_A: Int64
    src_A: Int64
    candidates_AC: Int64
    known_A: Bools
    facts_ACF: Float32


class Scorer:
    """Owns the role's graph, facts, memory and version. Owner: the role's loop.

    skipped: called with a reason and a number of events that get no score.
    """

    def __init__(
        self,
        settings: ServingSettings,
        registry: Registry,
        reader: LogReader,
        skipped: Callable[[str, int], None],
        stop_at: int,
        followers: Sequence[LogSubscriber] = (),
    ) -> None:
        """stop_at: the event to reach before any is scored. followers: follow the log of each graph
        that scores."""
        self._skipped = skipped
        self._served: LoadedVersion | None = None
        self._stop_at = stop_at
        self._said: set[str] = set()
        """Versions for which a score that is not finite was logged."""

        def make_view(reader: LogReader, model: ModelSettings) -> ScoringGraph:
            return ScoringGraph(settings, reader, model, lambda: self.position)

        self._followers = followers
        self.view = make_view(reader, read_champion(registry, settings.model)[1])
        self._register_followers()
        self._swap = Swap(settings, registry, make_view)

    def _register_followers(self) -> None:
        """Let the followers apply the changes of the log of the graph that scores now."""
        for follower in self._followers:
            self.view.log.follow(follower)

    @property
    def position(self) -> int:
        """Id of the next event to score."""
        return self.view.position

    @property
    def reached(self) -> int:
        """The event that facts or memory have reached: from their stored state, earlier events
        cannot be scored."""
        memory = 0 if self._served is None else self._served.memory.edge
        return max(self.view.live.edge, memory)

    @property
    def version(self) -> str:
        """Name of the version that scores, "" if there is none."""
        return "" if self._served is None else self._served.manifest.name

    @property
    def served(self) -> LoadedVersion | None:
        return self._served

    def rebuild(self) -> bool:
        """Move one slice towards the event at which scoring starts. Returns: whether there is
        more."""
        view = self.view
        behind = view.live.graph.next_event < view.live.edge
        return (behind or self.position < self._stop_at) and view.pass_over(self._stop_at) > 0

    def follow_versions(self) -> bool:
        """Advance the swap of versions by a slice. Returns: whether the swap should continue at
        once."""
        until = time.monotonic() + CATCH_UP_SECONDS
        state = self._swap.step(self.view, self.version or None, until)
        if isinstance(state, Swapped):
            assert isinstance(state.view, ScoringGraph)
            self._served = state.served
            if state.view is not self.view:
                self.view = state.view
                self._register_followers()
            logger.info(
                "scoring_version_changed", version=self.version or "none", from_event=self.position
            )
        if not isinstance(state, CatchingUp):
            return False
        # A version that has trained on unscored events waits for the scorer.
        return state.served is None or state.served.memory.edge <= self.position

    @property
    def waits(self) -> bool:
        """Whether the first version is being loaded: events wait for it."""
        return self._served is None and self._swap.is_under_way

    def pass_over(self, until: int, reason: str | None) -> None:
        """Skip events without a score, in slices. reason: None if they are not counted."""
        before = self.position
        while self.position < until and self.view.pass_over(until):
            pass
        if reason is not None and self.position > before:
            self._skipped(reason, self.position - before)

    def step(self, most: int = MAX_BATCH) -> list[Scored]:
        """Score the next events, at most `most`, and move past them.

        Returns: those that have a score; none if memory has to catch up first.
        """
        if self._served is None:
            if not self.waits:
                self.pass_over(self.view.log.num_edges, "no_version")
            elif (ahead := self._version_ahead()) > self.position:
                self.pass_over(ahead, "no_version")
            return []
        served = self._served
        end = min(self.view.log.num_edges, self.position + min(most, MAX_BATCH))
        if end <= self.position or not self._at_chunk(served):
            return []
        batch = self._begin(served, end)
        scored = self._finish(served, batch) if len(batch.asked_A) else []
        self.view.move(batch.end)
        return scored

    def _version_ahead(self) -> int:
        """The event that the memory of the first version has reached, 0 if it is not loaded yet."""
        state = self._swap.state
        if not isinstance(state, CatchingUp) or state.served is None:
            return 0
        return min(state.served.memory.edge, self.view.log.num_edges)

    def _at_chunk(self, served: LoadedVersion) -> bool:
        """Move memory to the start of the next event's chunk, and node features with it.

        Returns: False if there is more to process.
        """
        view = self.view
        # The event closes the chunks before it, as any later event would: its time is enough.
        now_us = int(view.log.time_of(np.array([self.position]))[0])
        if served.follow(view.log, self.position + 1, now_us, CHUNKS_AT_ONCE) == CHUNKS_AT_ONCE:
            return False
        view.live.take_features(served.memory.edge)
        return True

    def _begin(self, served: LoadedVersion, end: int) -> Batch:
        """Draw the candidates of the next events of one chunk and compute their facts, which moves
        the facts to the newest run of equal times."""
        view = self.view
        log = view.log
        first = self.position

        # Only events of one chunk see the same memory.
        cut = served.memory.edge
        times = log.edges(cut, end)[2]
        width_us = served.manifest.window_seconds * 1_000_000
        chunks = closed_chunks(times, int(times[-1]), width_us, served.model.settings.memory_chunk)
        end = min(end, cut + chunks[0][1]) if chunks else end

        # Facts end before the newest run of equal times. Events between their end and the first
        # event are of its run, or of an older one that is complete now.
        begin = first
        if view.live.edge < first and times[first - cut] != times[end - 1 - cut]:
            begin = view.live.edge
        elif view.live.edge < first:
            newest = int(log.time_of(np.array([view.live.edge]))[0])
            begin = first if newest == times[first - cut] else view.live.edge
        src_E, dst_E, time_E = log.edges(begin, end)

        # Deleted events cannot be scored, nor can any before there is a second node.
        deletions = log.deletions
        pools = Pools(view.facts, dst_E, time_E, deletions.nodes)
        known_E = pools.known_before(time_E, dst_E)
        hidden_E = deletions.hides(begin, src_E, dst_E)
        possible_E = pools.has_others(dst_E, known_E)
        own_E = np.arange(len(src_E)) >= first - begin
        self._count("deleted", hidden_E & own_E)
        self._count("no_candidates", ~possible_E & ~hidden_E & own_E)
        asked = np.flatnonzero(possible_E & ~hidden_E & own_E)

        # Candidates by the same hash as the windows', and facts strictly before each event.
        event, dst, known = begin + asked, dst_E[asked], known_E[asked]
        drawn = pools.draw(event, dst, known, NUM_SCORED, SCORED_SEED)
        candidates = np.concatenate([dst[:, None], drawn], 1)
        is_known = pools.holds(dst, known)
        facts = self._facts(end, event, src_E[asked], time_E[asked], candidates)
        return Batch(first, end, event, src_E[asked], candidates, is_known, facts)

    def _facts(
        self, end: int, event_A: Int64, src_A: Int64, time_A: Int64, candidates_AC: Int64
    ) -> Float32:
        """Facts of the events below `end`, strictly before each: float32[A, C, F]."""
        view = self.view
        at = view.live.edge
        held = max(view.run_start(end), at)
        passed = int(np.searchsorted(event_A, held))
        # Facts take in complete runs; events within a run see the facts before it.
        before = view.live.advance_scoring(
            *view.log.edges(at, held), event_A[:passed] - at, candidates_AC[:passed]
        )
        now = view.live.facts_now(
            event_A[passed:], src_A[passed:], time_A[passed:], candidates_AC[passed:]
        )
        return np.concatenate([before, now])

    def _finish(self, served: LoadedVersion, batch: Batch) -> list[Scored]:
        """Score a batch; if that fails, score its events one by one."""
        try:
            score_AC = self._scores(served, batch)
        except Exception as error:  # noqa: BLE001 - one event must not keep the others from their scores
            logger.exception(
                "batch_not_scored",
                first=batch.first,
                end=batch.end,
                error=str(error),
                meaning="its events are scored one by one",
            )
            score_AC = np.concatenate(
                [self._one_by_one(served, _row(batch, i)) for i in range(len(batch.asked_A))]
            )

        # Scores that are not finite have no rank.
        fine = np.asarray(np.isfinite(score_AC).all(1))
        if not fine.all():
            self._say_not_finite(batch.asked_A[~fine])
        self._count("not_finite", ~fine)
        is_candidate_AC = is_candidate(batch.candidates_AC)
        ranked_AC = among_candidates(score_AC, is_candidate_AC)
        rank_A = ranks(ranked_AC)
        num_others_A = is_candidate_AC.sum(1) - 1
        return [
            Scored(
                self._record(
                    batch, i, float(score_AC[i, 0]), float(rank_A[i]), int(num_others_A[i])
                ),
                int(batch.src_A[i]),
                int(batch.candidates_AC[i, 0]),
                surprise(ranked_AC[i]),
                batch.facts_ACF[i, 0],
            )
            for i in np.flatnonzero(fine).tolist()
        ]

    def _scores(self, served: LoadedVersion, batch: Batch) -> Float32:
        """The logits of a batch, float32[A, 101]."""
        count, width = batch.candidates_AC.shape
        facts = batch.facts_ACF.reshape(count * width, -1)
        src = np.repeat(batch.src_A, width)
        dst = batch.candidates_AC.ravel()
        return served.scores(facts, src, dst, self.view.live).reshape(count, width)

    def _one_by_one(self, served: LoadedVersion, batch: Batch) -> Float32:
        """The scores of one event, NaN if they fail."""
        try:
            return self._scores(served, batch)
        except Exception as error:  # noqa: BLE001 - logged, and the others continue
            logger.error(
                "event_not_scored",
                event_id=int(batch.asked_A[0]),
                error=str(error),
                meaning="the topic gets no score of it; counted as not_finite",
            )
            return np.full(batch.candidates_AC.shape, np.nan, np.float32)

    def _say_not_finite(self, events: Int64) -> None:
        if self.version in self._said:
            return
        self._said.add(self.version)
        logger.error(
            "score_not_finite",
            version=self.version,
            event_id=int(events[0]),
            meaning="such events get no score, the others do; logged once for each version",
        )

    def _record(
        self, batch: Batch, i: int, score: float, rank: float, num_others: int
    ) -> ScoreRecord:
        log = self.view.log
        served = self._served
        assert served is not None
        event = int(batch.asked_A[i])
        src, dst = int(batch.src_A[i]), int(batch.candidates_AC[i, 0])
        src_key, dst_key = log.keys[src], log.keys[dst]
        assert src_key is not None and dst_key is not None, "deleted nodes hide their events"
        at = np.array([event])
        return ScoreRecord(
            event=event,
            src=split_key(src_key)[1],
            dst=split_key(dst_key)[1],
            edge_set=log.state.schema.edge_set_names[int(log.edge_sets_of(at)[0])],
            time_us=int(log.time_of(at)[0]),
            version=served.manifest.name,
            memory_event=served.memory.edge,
            known=bool(batch.known_A[i]),
            score=score,
            rank=rank,
            candidates=num_others,
            scored_at=time.time(),
        )

    def _count(self, reason: str, which: Bools) -> None:
        if number := int(which.sum()):
            self._skipped(reason, number)


def _row(batch: Batch, i: int) -> Batch:
    """One event of a batch."""
    return batch._replace(
        asked_A=batch.asked_A[i : i + 1],
        src_A=batch.src_A[i : i + 1],
        candidates_AC=batch.candidates_AC[i : i + 1],
        known_A=batch.known_A[i : i + 1],
        facts_ACF=batch.facts_ACF[i : i + 1],
    )
