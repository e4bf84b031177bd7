"""The loop of the scoring role: it follows log and versions, scores new events while this machine
leads, and skips events for which there is no time."""

import math
import threading
import time
from collections.abc import Callable

import numpy as np
import structlog

from streamd.errors import KafkaError
from streamd.eventlog.reader import LogReader
from streamd.events import split_key
from streamd.registry import Registry
from streamd.scoring.alarms import Alarms
from streamd.scoring.arrivals import Arrivals
from streamd.scoring.outbox import Outbox, Sink
from streamd.scoring.position import ScoredPosition
from streamd.scoring.record import ScoreRecord
from streamd.scoring.scorer import Scorer
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import ServerSettings
from streamd.telemetry import replica_metrics, score_metrics
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
POLL_SECONDS = 0.01
"""Pause without work: the longest delay until an event is noticed."""
CHECK_SECONDS = 1.0
"""Time between two checks whether this machine leads: each reads a file."""
RETRY_SECONDS = 1.0
"""Pause before another try to read the topic's end."""
KEEP_SECONDS = 1.0
"""Time between two checks whether there is anything to store."""
CLOSE_SECONDS = 5.0
"""Longest wait at a stop for acknowledgements."""
MAX_BACKLOG = 10_000
"""Number of newest events that are still scored after a restart or a failover: half a minute of a
busy stream. More would delay the present events."""
REASONS = (
    "no_version",
    "behind",
    "broker",
    "old",
    "deleted",
    "no_candidates",
    "not_finite",
)
"""Reasons why an event has no score: the metric's label."""


SCORES = "scores"
"""Label of the topic in the metric of stray records."""


def is_of_log(record: ScoreRecord, log: LogReader) -> bool:
    """Whether a score matches an event of this log in time, source and destination. Events that
    retention dropped cannot be compared; they count as matching."""
    if record.complete_before > record.event or not 0 <= record.event < log.num_edges:
        return False
    if record.event < log.first_edge:
        return True
    src, dst, _ = log.edges(record.event, record.event + 1)
    keys = [log.keys[int(node[0])] for node in (src, dst)]
    # Deleted nodes have no keys any more, so they match any key.
    same = (
        key is None or split_key(key)[1] == said
        for key, said in zip(keys, (record.src, record.dst), strict=True)
    )
    return int(log.time_of(np.array([record.event]))[0]) == record.time_us and all(same)


class ScoreLoop:
    """Scores events into a topic until it is stopped. Owner: the scoring role's process.

    leads: whether this machine is the one that scores. open_sink, read_end: write and read the
    topic, as in `streamd.scoring.topic`.
    """

    def __init__(
        self,
        settings: ServingSettings,
        server: ServerSettings,
        registry: Registry,
        beat: Heartbeat,
        leads: Callable[[], bool],
        open_sink: Callable[[], Sink],
        read_end: Callable[[], list[ScoreRecord]],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._beat = beat
        self._leads = leads
        self._read_end = read_end
        self._topic = server.score_topic
        self._max_age = server.score_max_age_seconds
        self._outbox = Outbox(open_sink, self._written, self._skipped)
        self._place = ScoredPosition(settings.paths.log)
        self._alarms = Alarms(settings.paths.log, server)
        replica_metrics.stray_records.labels(SCORES)

        # Whether this machine scores, and times of the last checks in monotonic seconds.
        self._leading = False
        self._led_until = 0
        """The event at which this machine stopped leading: earlier ones were scored or counted
        here."""
        self._looked_at = self._asked_at = self._kept_at = -math.inf
        self._failed_at = 0.0
        """Time of the first failure to read the topic since it was last read; 0 if it is read."""
        self.num_written = 0
        self.num_skipped = dict.fromkeys(REASONS, 0)

    def run(self, stop: threading.Event) -> None:
        """Score until `stop`. Raises: StreamdError if the log cannot be read."""
        begun = self._begin(stop)
        if begun is None:
            return
        scorer, arrivals = begun
        try:
            while not stop.is_set():
                if not self._turn(scorer, arrivals):
                    stop.wait(POLL_SECONDS)
        finally:
            end = time.monotonic() + CLOSE_SECONDS
            self._outbox.close(lambda: time.monotonic() < end)
            self._alarms.store()

    # The start

    def _begin(self, stop: threading.Event) -> tuple[Scorer, Arrivals] | None:
        """Wait for a log and for the topic, find the event at which to resume, and build graph and
        facts up to it. Returns: None if `stop` was set meanwhile."""
        while (log := LogReader.open(self._settings.paths.log)) is None:
            self._beat.touch("waiting for the log")
            if stop.wait(0.1):
                return None

        self._alarms.begin(log.num_edges)

        # Without the lead, stay MAX_BACKLOG events back, to resume for the machine that leads.
        start = max(log.first_edge, log.num_edges - MAX_BACKLOG)
        while self._leads():
            if (found := self._start(log, log.num_edges)) is not None:
                self._leading = True
                self._outbox.open()
                start = found
                break
            if stop.wait(RETRY_SECONDS):
                return None
        scorer = Scorer(
            self._settings,
            self._registry,
            log,
            self._skipped,
            start,
            (self._outbox, self._alarms),
        )
        while scorer.rebuild():
            self._beat.touch("rebuilding", edges=scorer.position)
            if stop.is_set():
                return None
        if self._leading and scorer.position > start:
            logger.warning(
                "scores_start_later",
                from_event=scorer.position,
                instead_of=start,
                reason="stored facts have seen the events between",
            )
        logger.info("scoring_begins", from_event=scorer.position, leading=self._leading)
        return scorer, Arrivals(log.num_edges, time.monotonic())

    def _start(self, log: LogReader, default: int) -> int | None:
        """The first event to score, from this log's records in the topic and the local position;
        skipped events are counted.

        default: if nothing was ever written. Returns: None if the topic cannot be read now.
        """
        self._beat.touch("reading the score topic")
        try:
            last = self._read_end()
        except KafkaError as error:
            if not self._failed_at:
                logger.warning("score_topic_not_read", error=str(error))
            self._failed_at = self._failed_at or time.monotonic()
            seconds = time.monotonic() - self._failed_at
            away = {"topic_away": str(error), "topic_away_seconds": seconds}
            self._beat.touch("waiting for the score topic", **away)
            return None
        if self._failed_at:
            seconds = time.monotonic() - self._failed_at
            logger.info("score_topic_read_again", away_seconds=round(seconds))
        self._failed_at = 0.0
        places = [record.complete_before for record in last if is_of_log(record, log)]
        if strays := len(last) - len(places):
            replica_metrics.stray_records.labels(SCORES).inc(strays)
            logger.warning(
                "stray_record_skipped",
                topic=self._topic,
                number=strays,
                why="not scores of this log's events: give each log its own topic",
            )
        if (here := self._place.read()) is not None:
            places.append(here)
        if not places:
            self._place.write(default)
            return default
        # A restored log may end before the scores that were written.
        newest = log.num_edges
        told = min(max(places), newest)
        start = max(told, newest - MAX_BACKLOG)
        if start > told:
            self._skipped("old", start - told)
        return start

    # A step of the loop

    def _turn(self, scorer: Scorer, arrivals: Arrivals) -> bool:
        """Do a slice of each task. Returns: whether there is more to do at once."""
        now = time.monotonic()
        self._follow(scorer, arrivals, now)
        catches_up = scorer.follow_versions()
        self._look_who_leads(scorer, arrivals, now)

        # Score, or skip the events that another machine scores.
        num_scored = 0
        before = scorer.position
        if self._leading:
            self._pass_late(scorer, arrivals, now)
            if self._outbox.room:
                scored = [self._alarms.rate(one) for one in scorer.step(self._outbox.room)]
                num_scored = len(scored)
                at = [arrivals.at(one.record.event) for one in scored]
                self._outbox.add(scored, at)
        else:
            scorer.pass_over(arrivals.before(now - self._max_age), None)
        self._outbox.step(time.monotonic(), now - self._max_age)
        arrivals.forget(self._outbox.complete_before(scorer.position))
        self._keep(scorer, now)
        self._report(scorer)
        return bool(num_scored) or catches_up or scorer.position > before

    def _follow(self, scorer: Scorer, arrivals: Arrivals, now: float) -> None:
        """Refresh the log, and note when its new events became visible."""
        log = scorer.view.log
        log.refresh()
        waited = min(max(0.0, time.time() - log.committed_at), self._max_age)
        arrivals.note(log.num_edges, now - waited)

    def _look_who_leads(self, scorer: Scorer, arrivals: Arrivals, now: float) -> None:
        """Start to score if this machine leads from now on, and stop if it does not lead any
        more."""
        if now - self._looked_at < CHECK_SECONDS:
            return
        self._looked_at = now
        leads = self._leads()
        if self._leading and not leads:
            logger.warning(
                "scoring_ends", from_event=scorer.position, reason="another machine leads"
            )
            self._leading = False
            # It may lead again before another machine has scored, as after a restart of ingest.
            self._place.write(self._outbox.complete_before(scorer.position))
            self._led_until = scorer.position
            self._outbox.set_aside()
        elif leads and not self._leading:
            start = self._start(scorer.view.log, scorer.position)
            if start is None:
                return
            self._leading = True
            self._outbox.open()
            # Events that the previous leader has scored are not scored again.
            self._outbox.resume(start, now - self._max_age)
            lost_from = max(start, self._led_until)
            if lost_from < scorer.position:
                self._skipped("old", scorer.position - lost_from)
            scorer.pass_over(start, None)
            logger.info("scoring_begins", from_event=scorer.position, leading=True)

    def _pass_late(self, scorer: Scorer, arrivals: Arrivals, now: float) -> None:
        """If events have waited too long, continue with the newest ones at once: scores that are
        all a little late are of no use."""
        newest = scorer.view.log.num_edges
        at = scorer.position
        if at >= newest or now - arrivals.at(at) <= self._max_age:
            return
        # While the topic accepts no records, events that are not late yet may still be in time.
        held_up = self._outbox.is_away or not self._outbox.room
        reason = "broker" if held_up else "behind"
        until = arrivals.before(now - self._max_age) if held_up else newest
        scorer.pass_over(until, reason)

    def _keep(self, scorer: Scorer, now: float) -> None:
        """Store the state for a restart, once the topic has all events that facts and memory have
        seen."""
        if now - self._kept_at < KEEP_SECONDS:
            return
        written = self._outbox.complete_before(scorer.position)
        if self._leading:
            self._place.write(written)
            self._alarms.store(now)
        if self._leading and written < scorer.reached:
            return
        self._kept_at = now
        scorer.view.retention.keep(scorer.served)

    # Counts

    def _written(self, visible_at: float) -> None:
        self.num_written += 1
        score_metrics.scores_written.inc()
        score_metrics.score_seconds.observe(time.monotonic() - visible_at)

    def _skipped(self, reason: str, number: int) -> None:
        self.num_skipped[reason] += number
        score_metrics.scores_skipped.labels(reason).inc(number)

    def _report(self, scorer: Scorer) -> None:
        behind = scorer.view.log.num_edges - scorer.position
        score_metrics.score_behind.set(behind if self._leading else 0)
        score_metrics.score_waiting.set(len(self._outbox))
        score_metrics.score_topic_away.set(self._outbox.is_away)
        self._beat.touch(
            "scoring" if self._leading else "following",
            edge=scorer.position,
            version=scorer.version,
            waiting=len(self._outbox),
            **self._alarms.fields(),
            **self._outbox.away_fields(time.monotonic()),
        )
