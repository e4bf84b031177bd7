"""The loop that joins impressions with their outcomes, from the trial's topic and the log.

An event counts only after it has been visible for HOLD_SECONDS, and the topic was read to its end
after that. A server sends an impression within a shorter time or never, so each impression is known
before any event that it may have led to. Therefore the result depends on topic and log alone, not
on the time at which either was read.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import structlog

from streamd.errors import KafkaError
from streamd.eventlog.log_changes import Changes
from streamd.eventlog.reader import LogReader
from streamd.events import Key, SetKey
from streamd.telemetry import trial_metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.trials.figures import look
from streamd.trials.impression_sender import MAX_AGE_SECONDS
from streamd.trials.impressions import Impression
from streamd.trials.trial_state import (
    Definition,
    OutcomeEdge,
    TrialState,
    hash_key,
    read_sums,
)
from streamd.trials.trial_topic import TopicBatch

logger = structlog.get_logger()
HOLD_SECONDS = 2 * MAX_AGE_SECONDS
"""Time between an event's visibility and its join: an impression is sent in half of it, and the
broker may take some seconds."""
PAUSE_SECONDS = 1.0
"""Pause between two passes."""
SLICE_EVENTS = 20_000
"""Events joined in one transaction, a fraction of a second."""


class RecordsOfTrial(Protocol):
    """The trial's topic."""

    def read_to_end(self, offsets: dict[int, int]) -> Iterator[TopicBatch]:
        """As `TrialTopic.read_to_end`."""
        ...


class TrialLoop:
    """Joins until it is stopped. Owner: the role's process.

    leads: whether this machine is the one that joins. open_topic: opens the topic, or raises
    KafkaError.
    """

    def __init__(
        self,
        log_folder: Path,
        path: Path,
        definition: Definition,
        time_scale: int,
        beat: Heartbeat,
        leads: Callable[[], bool],
        open_topic: Callable[[], RecordsOfTrial],
    ) -> None:
        """path: of the state. time_scale: microseconds in a unit of `time` in outcomes. Raises:
        SettingsError as `TrialState`."""
        self._log_folder = log_folder
        self._path = path
        self._definition = definition
        self._state = TrialState(path, definition, time_scale)
        self._beat = beat
        self._leads = leads
        self._open_topic = open_topic
        self._topic: RecordsOfTrial | None = None
        self._away_since = 0.0
        """Time since when the topic cannot be read, in monotonic seconds; 0 if it can."""
        self._followed: LogReader | None = None
        """The log whose deletes are applied."""
        self._seen: deque[tuple[float, int]] = deque()
        """Monotonic time and number of events of the log then, oldest first."""

    def run(self, stop: threading.Event) -> None:
        """Join until `stop`. Raises: StreamdError if the log cannot be read."""
        try:
            log = self._wait_for_log(stop)
            while log is not None and not stop.is_set():
                if log.superseded:
                    log = self._wait_for_log(stop)
                elif self._leads():
                    self.step(log, time.monotonic(), stop)
                else:
                    self._seen.clear()
                    self._beat.touch("another machine leads")
                stop.wait(PAUSE_SECONDS)
        finally:
            self._state.close()

    def _wait_for_log(self, stop: threading.Event) -> LogReader | None:
        while not stop.is_set():
            if (log := LogReader.open(self._log_folder)) is not None:
                return log
            self._beat.touch("waiting for the log")
            stop.wait(0.1)
        return None

    def step(self, log: LogReader, now: float, stop: threading.Event) -> None:
        """Do one pass. now: monotonic seconds.

        1. Note the log's end, which is joined in a later pass.
        2. Read the topic to its end.
        3. Join the events that were visible HOLD_SECONDS ago.
        4. Close the impressions whose horizon ended before them, and compute the figures.
        """
        # 1. Note.
        if log is not self._followed:
            log.follow(self)
            self._followed = log
        log.refresh()
        self._seen.append((now, log.num_edges))
        # 2. Read.
        if not self._read_topic(log, stop):
            return
        # 3. Join.
        until = self._state.position or 0
        while self._seen and self._seen[0][0] <= now - HOLD_SECONDS:
            until = max(until, self._seen.popleft()[1])
        self._state.begin_at(log.first_edge)
        if self._state.position is not None:
            self._join(log, until, stop)
        # 4. Close.
        self._report(log)

    def apply(self, changes: Changes) -> None:
        """Forget deleted nodes, as a follower of the log."""
        self._state.forget(changes.nodes.tolist())

    def _read_topic(self, log: LogReader, stop: threading.Event) -> bool:
        """Take in the topic's new records. Returns: whether its end was reached."""
        newest_us = int(log.time_of(np.array([log.num_edges - 1]))[0]) if log.num_edges else 0
        other = self._sets_between_other_nodes(log)
        try:
            if self._topic is None:
                self._topic = self._open_topic()
            for batch in self._topic.read_to_end(self._state.offsets):
                self._state.take_records(
                    batch.values,
                    batch.offsets,
                    newest_us,
                    other,
                    batch.lost,
                    partial(_source_of, log),
                )
                self._beat.touch("reading the topic")
                if stop.is_set():
                    return False
        except KafkaError as error:
            if not self._away_since:
                logger.warning("trial_topic_not_read", error=str(error), meaning="tried again")
            self._away_since = self._away_since or time.monotonic()
            self._topic = None
            seconds = time.monotonic() - self._away_since
            away = {"topic_away": str(error), "topic_away_seconds": seconds}
            self._beat.touch("waiting for the topic", **away)
            return False
        if self._away_since:
            seconds = time.monotonic() - self._away_since
            logger.info("trial_topic_read_again", away_seconds=round(seconds))
        self._away_since = 0.0
        return True

    def _sets_between_other_nodes(self, log: LogReader) -> list[str]:
        """Names of the edge sets with other ends than the set of outcomes."""
        schema = log.state.schema
        names = list(schema.edge_set_names)
        if self._definition.edge_set not in names:
            return []
        ends = schema.ends_of(names.index(self._definition.edge_set))
        return [name for i, name in enumerate(names) if schema.ends_of(i) != ends]

    def _join(self, log: LogReader, until: int, stop: threading.Event) -> None:
        """Join events up to one, in slices, and close impressions."""
        position = self._state.position
        assert position is not None
        position = max(position, log.first_edge)
        while position < until and not stop.is_set():
            end = min(until, position + SLICE_EVENTS)
            edges = self._edges(log, position, end) if self._state.has_open else []
            self._state.take_edges(edges, end)
            newest_us = int(log.time_of(np.array([end - 1]))[0])
            while self._state.close_before(newest_us) and not stop.is_set():
                self._beat.touch("closing impressions")
            position = end
            self._beat.touch("joining", edge=position)

    def _edges(self, log: LogReader, begin: int, end: int) -> list[OutcomeEdge]:
        """The events of a range that may be outcomes."""
        names = log.state.schema.edge_set_names
        if self._definition.edge_set not in names:
            return []
        src_E, dst_E, time_E = log.edges(begin, end)
        sets_E = log.edge_sets_of(np.arange(begin, end))
        is_due = sets_E == names.index(self._definition.edge_set)
        is_due &= ~log.deletions.hides(begin, src_E, dst_E)
        rows = np.flatnonzero(is_due)
        hashes = {
            int(n): _hash_node(log.keys[int(n)]) for n in np.unique([src_E[rows], dst_E[rows]])
        }
        known = self._state.with_open({hashes[int(n)] for n in np.unique(src_E[rows])})
        # A new source has its id only since its first event.
        sources = {int(n): log.keys[int(n)] for n in np.unique(src_E[rows])}
        self._state.note_nodes(
            {n: _plain(key) for n, key in sources.items() if key is not None and hashes[n] in known}
        )
        return [
            OutcomeEdge(
                begin + int(i), hashes[int(src_E[i])], hashes[int(dst_E[i])], int(time_E[i])
            )
            for i in rows
            if hashes[int(src_E[i])] in known
        ]

    def _report(self, log: LogReader) -> None:
        """Compute the figures, keep those that later looks need, and set metrics."""
        sums = read_sums(self._path)
        assert sums is not None, "it is open"
        figures, kept = look(sums)
        for name, value in kept.items():
            self._state.keep(name, value)
        for arm in figures.arms:
            trial_metrics.units.labels(arm.arm).set(arm.units)
            trial_metrics.outcomes.labels(arm.arm).set(arm.outcomes)
            trial_metrics.value.labels(arm.arm).set(arm.value)
            # The champion has no difference, and the others have none before enough units.
            if arm.difference is not None:
                trial_metrics.difference.labels(arm.arm).set(arm.difference.mean)
                trial_metrics.radius.labels(arm.arm).set(arm.difference.radius)
        trial_metrics.mismatch.set(figures.mismatch)
        for reason, number in figures.reasons.items():
            trial_metrics.uncounted.labels(reason).set(number)
        position = self._state.position
        trial_metrics.behind.set(0 if position is None else log.num_edges - position)
        self._beat.touch("joining", edge=position or 0)


def _hash_node(key: Key | None) -> int:
    """The hash of a node's key within its node set; 0 for a deleted node, which nothing matches."""
    if key is None:
        return 0
    return hash_key(_plain(key))


def _plain(key: Key) -> str | int:
    """A key without its node set."""
    return key.key if isinstance(key, SetKey) else key


def _source_of(log: LogReader, record: Impression) -> int | None:
    """The id of an impression's source, None if the log does not have it."""
    schema = log.state.schema
    if record.edge_set not in schema.edge_set_names:
        return None
    node_set = schema.ends_of(schema.edge_set_names.index(record.edge_set))[0]
    return log.ids.get(SetKey(node_set, record.src) if node_set else record.src)
