"""Alarms: the rarest events, as many a day as wanted, each source at most once in a while.

`docs/alarms.md` lists the fields of a record for consumers.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import msgspec
import structlog

from streamd.eventlog.log_changes import Changes
from streamd.graph.facts.groups import group_words
from streamd.roles import SCORE, make_folder
from streamd.scoring.rarity import (
    MIN_EVENTS,
    RarityCalibration,
    StoredRarity,
    counted_surprises,
    ties_of,
)
from streamd.scoring.scorer import Scored
from streamd.scoring.source_evidence import (
    NO_EVIDENCE,
    REFERENCE,
    SourceEvidence,
    StoredEvidence,
)
from streamd.settings.server import ServerSettings
from streamd.storage import write_durably
from streamd.telemetry import score_metrics

logger = structlog.get_logger()
SCHEMA = 1
"""Number of the record's schema, as of `ScoreRecord`."""
FILE = "rarity"
MAX_P = 0.01
"""An event with a greater p-value never raises an alarm: on a stream with few events a day, the
wanted number would call common events rare."""
MAX_EVENT_P = math.exp(-REFERENCE)
"""An event with a greater p-value of its own reduces the evidence, so it raises no alarm."""
MAX_FIRSTS = 200
"""Number of newest rare events that give the share of those that raise an alarm."""
PRIOR_FIRSTS = 5
"""As many rare events that raised an alarm are supposed before the first."""
MAX_TIMES = 10_000
"""Number of newest events that give the number of events a day."""
MAX_SOURCES = 100_000
"""Number of sources with a remembered last alarm."""
STORE_SECONDS = 60.0
"""Time between two writes of the file."""
DAY_US = 86_400_000_000
REASONS = ("frequency", "popularity", "candidate", "paths", "sequence")
"""Groups of facts that an alarm has in words."""


class AlarmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A rare event. The fields up to `known` are those of `ScoreRecord`.

    surprise, usual_surprise, p_value: as in `Rarity`. source_p_value: as of `SourceEvidence`.
    reasons: facts of the pair before the event, in words. repeats: events of this source that were
    as rare since its last alarm, without one.
    """

    event: int
    src: str | int
    dst: str | int
    edge_set: str
    time_us: int
    version: str
    score: float
    rank: float
    candidates: int
    known: bool
    surprise: float
    usual_surprise: float
    p_value: float
    source_p_value: float
    reasons: tuple[str, ...]
    repeats: int
    schema: int = SCHEMA


@dataclass(slots=True)
class _Last:
    """A source's last alarm. repeats: rare events since then."""

    event: int
    time_us: int
    repeats: int = 0


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content.

    times: of the newest events. last: node id, and event, time and repeats of its last alarm.
    firsts: as of `Alarms`. Older releases wrote neither firsts nor evidence.
    """

    rarity: StoredRarity
    times: list[int]
    last: list[tuple[int, int, int, int]]
    firsts: list[bool] = []
    evidence: StoredEvidence = NO_EVIDENCE


class Alarms:
    """Rates scored events and raises alarms. Owner: the scoring role's loop.

    Its state outlives a stop, in a file that is written once in STORE_SECONDS and at the end. After
    a kill, events since the last write are rated by somewhat older ones.
    """

    def __init__(self, data_dir: Path, settings: ServerSettings) -> None:
        self._path = make_folder(data_dir, SCORE) / FILE
        self._is_on = bool(settings.alarm_topic)
        self._per_day = settings.alarms_per_day
        self._quiet_us = int(settings.alarm_quiet_seconds * 1_000_000)
        stored = self._read()
        self._rarity = RarityCalibration(stored.rarity)
        self._times = deque(stored.times, MAX_TIMES)
        self._last = OrderedDict((node, _Last(*last)) for node, *last in stored.last)
        self._firsts = deque(stored.firsts, MAX_FIRSTS)
        """Whether each of the newest rare events was the first of its source in a quiet time."""
        self._evidence = SourceEvidence(self._quiet_us, stored.evidence)
        self._stored_at = -math.inf
        self._failing = False

    def begin(self, num_events: int) -> None:
        """Continue with a log of `num_events` events. A restored log may end before the events of
        the file; the next ones are then other events."""
        self._rarity.next_event = min(self._rarity.next_event, num_events)
        for node in [node for node, last in self._last.items() if last.event >= num_events]:
            del self._last[node]

    def rate(self, scored: Scored) -> Scored:
        """Add rarity to a record, and an alarm if there is enough evidence against its source."""
        record = scored.record
        # An event that is scored again is not a further event of the day.
        is_new = record.event >= self._rarity.next_event
        if is_new:
            self._times.append(record.time_us)
        counts = counted_surprises(scored.facts_F)
        rarity = self._rarity.rate(
            record.event, record.edge_set, scored.src, scored.surprise, counts
        )
        record = replace(record, surprise=rarity.surprise, p_value=rarity.p_value)
        scored = scored._replace(record=record)
        if rarity.p_value is None:
            return scored

        # The evidence is great enough and this event adds to it. It is not a repeat.
        score_metrics.p_values.observe(rarity.p_value)
        tie = float(ties_of(record.event)[5])
        source_p = self._evidence.rate(scored.src, record.time_us, rarity.p_value, tie, is_new)
        if not self._is_on or source_p is None or source_p > self.threshold:
            return scored
        # An event that reduces the evidence is no reason to act now.
        if rarity.p_value > MAX_EVENT_P:
            return scored
        repeats = self._begin_quiet(scored.src, record.event, record.time_us)
        if is_new:
            self._firsts.append(repeats is not None)
        score_metrics.alarms.labels("repeated" if repeats is None else "sent").inc()
        if repeats is None:
            return scored
        facts_F = scored.facts_F
        alarm = AlarmRecord(
            event=record.event,
            src=record.src,
            dst=record.dst,
            edge_set=record.edge_set,
            time_us=record.time_us,
            version=record.version,
            score=record.score,
            rank=record.rank,
            candidates=record.candidates,
            known=record.known,
            surprise=rarity.surprise,
            usual_surprise=rarity.usual,
            p_value=rarity.p_value,
            source_p_value=source_p,
            reasons=tuple(group_words(name, facts_F) for name in REASONS),
            repeats=repeats,
        )
        return scored._replace(alarm=msgspec.json.encode(alarm))

    @property
    def threshold(self) -> float:
        """The greatest p-value that raises an alarm: the wanted number of alarms a day over the
        number of events a day, of which the newest MAX_TIMES give the mean, and over the share of
        rare events that are the first of their source in a quiet time, which raise alarms. That
        share is the extremal index of Leadbetter, "Extremes and local dependence in stationary
        sequences", 1983."""
        if len(self._times) < 2:
            return 0.0
        # Times in the log ascend: late events have the newest time.
        days = (self._times[-1] - self._times[0]) / DAY_US
        share = (sum(self._firsts) + PRIOR_FIRSTS) / (len(self._firsts) + PRIOR_FIRSTS)
        return min(MAX_P, self._per_day * days / (len(self._times) - 1) / share)

    def fields(self) -> dict[str, int]:
        """Fields of the heartbeat: the number of sources with an alarm within the last day of event
        time; none without a topic for alarms."""
        if not self._is_on:
            return {}
        begin_us = (self._times[-1] if self._times else 0) - DAY_US
        # The sources are in the order of their last alarms.
        newest = takewhile(lambda last: last.time_us > begin_us, reversed(self._last.values()))
        return {"alarmed_sources": sum(1 for _ in newest)}

    def _begin_quiet(self, src: int, event: int, time_us: int) -> int | None:
        """Begin a quiet time of a source. Returns: the rare events of its last one; None if this
        event is in it."""
        # Count a repeat.
        last = self._last.get(src)
        # An event that is scored again had its alarm before, which may not be in the topic.
        if last is not None and event > last.event and time_us < last.time_us + self._quiet_us:
            last.repeats += 1
            return None

        # Raise an alarm, and forget the source that raised none for longest.
        repeats = last.repeats if last is not None and event > last.event else 0
        self._last[src] = _Last(event, time_us)
        self._last.move_to_end(src)
        if len(self._last) > MAX_SOURCES:
            self._last.popitem(last=False)
        return repeats

    def apply(self, changes: Changes) -> None:
        """Forget deleted sources, as a follower of the log."""
        self._rarity.forget(changes.nodes)
        self._evidence.forget(changes.nodes)
        for node in changes.nodes.tolist():
            self._last.pop(node, None)

    def store(self, now: float = math.inf) -> None:
        """Write the file if it is due; a failure is logged, and the older file stays.

        now: monotonic seconds. Infinity writes in any case.
        """
        if now - self._stored_at < STORE_SECONDS:
            return
        self._stored_at = now if math.isfinite(now) else self._stored_at
        state = _Stored(
            rarity=self._rarity.state(),
            times=list(self._times),
            last=[(n, one.event, one.time_us, one.repeats) for n, one in self._last.items()],
            firsts=list(self._firsts),
            evidence=self._evidence.state(),
        )
        # A file that cannot be written is no reason to stop scoring.
        try:
            write_durably(self._path, msgspec.msgpack.encode(state))
        except OSError as error:
            if not self._failing:
                logger.error("rarity_not_written", file=str(self._path), error=str(error))
            self._failing = True
        else:
            self._failing = False

    def _read(self) -> _Stored:
        """Read the file. Returns: an empty state if there is none, or it is damaged."""
        blank = _Stored(rarity=StoredRarity(next_event=0, sets={}, sources=[]), times=[], last=[])
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=_Stored)
        except FileNotFoundError:
            return blank
        except (OSError, msgspec.DecodeError) as error:
            logger.warning(
                "rarity_begins_anew",
                file=str(self._path),
                error=str(error),
                meaning=f"no p-values and alarms before {MIN_EVENTS:,} more events of a set",
            )
            return blank
