"""The loop of a follower, in the follow role and in a standby until it leads: it applies the
changelog to the log here, and waits for brokers, store and disk."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import structlog

from streamd.clock import Clock
from streamd.errors import DiskError, FencedError, KafkaError, LockedError, StoreError
from streamd.eventlog.journal.changelog_position import UNKNOWN
from streamd.replica.changelog.interface import ChangelogReader, OutOfRange
from streamd.replica.changelog.kafka import KafkaReader
from streamd.replica.follower.bootstrap import (
    bootstrap,
    finish_bootstrap,
    newest_manifest,
    take_manifest,
)
from streamd.replica.follower.follower import Follower
from streamd.replica.follower.local_readers import DROP_SECONDS, readers_before
from streamd.replica.leader import fitness
from streamd.replica.leader.connect import Stopped, find_changelog, open_topic
from streamd.replica.leader.publisher import ChangelogPublisher
from streamd.replica.leader.succession import Succession
from streamd.replica.start import has_log
from streamd.settings.loading import KafkaSettings
from streamd.settings.log import LogSettings
from streamd.store.changelog import changelog_topic
from streamd.store.objects import Store
from streamd.telemetry import replica_metrics
from streamd.telemetry.failure_log import LastingFailures
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
POLL_SECONDS = 0.05
"""Longest wait for a record before the parts run."""
REPORT_SECONDS = 1.0
ASK_SECONDS = 5.0
"""Silence after which the brokers are asked for the changelog's end: a read brings nothing from an
idle changelog, and nothing from brokers that do not answer."""
RETRY_SECONDS = 1.0
"""Pause between two tries after a failure."""


class Part(Protocol):
    """A further task of the follower's process, which runs between two reads of the changelog."""

    def step(self) -> None:
        """Do some milliseconds of work. An error that a later call could avoid, such as a broker
        that does not answer, must be handled inside."""
        ...

    def stop(self) -> None:
        """Start to end, without waiting."""
        ...

    def close(self) -> None: ...


class FollowedReader(ChangelogReader, Protocol):
    """Reads the changelog, and counts the records that are left to read."""

    @property
    def lag(self) -> int | None:
        """Number of records after the position, by the broker's newest answer; None before the
        first."""
        ...


Connect = Callable[
    [Path, KafkaSettings, LogSettings, Callable[[], None]], tuple[str, FollowedReader] | None
]
"""Connects a directory to the changelog. The last argument is called after a read without records.
Returns: a description of the topic, and its reader; None if there is no topic. Raises: KafkaError,
ChangelogError."""


def connect_reader(
    data_dir: Path, kafka: KafkaSettings, log: LogSettings, idle: Callable[[], None]
) -> tuple[str, FollowedReader] | None:
    """Connect to the changelog in Kafka, as in `Connect`; a member that may lead creates the
    topic."""
    find = find_changelog if log.member == "replica" else open_topic
    topic = find(kafka, log.name, data_dir)
    if topic is None:
        return None
    return topic.shown, KafkaReader(kafka, topic.changelog, idle)


def _forget_following() -> None:
    """Unset the follower's gauges: constant values would look like a stuck follower."""
    for gauge in (
        replica_metrics.follow_caught_up,
        replica_metrics.follow_lag_records,
        replica_metrics.follow_seq,
    ):
        gauge.set(math.nan)


class FollowLoop:
    """Follows the changelog until it is stopped, or until this member leads. Owner: the process of
    the follow role, or of a standby's ingest.

    While brokers or the store are away or a disk is full, it waits: servers here continue to
    answer, and heartbeat and metrics give the reason. An error that a wait cannot cure ends the
    role.
    """

    def __init__(
        self,
        data_dir: Path,
        log: LogSettings,
        kafka: KafkaSettings,
        clock: Clock,
        beat: Heartbeat,
        parts: Sequence[Part] = (),
        succession: Succession | None = None,
        connect: Connect = connect_reader,
    ) -> None:
        """succession: of a standby; a replica never leads."""
        self._succession = succession
        self._connect = connect
        self._data_dir = data_dir
        self._log = log
        self._kafka = kafka
        self._clock = clock
        self._beat = beat
        self._parts = parts
        self._failures = LastingFailures(clock.monotonic)
        self._reported_at = -REPORT_SECONDS
        self._why_waiting: tuple[str, str] | None = None
        """The reason of the present wait, one of FOLLOW_REASONS, and its error; None if there is
        none."""
        self._heard_at = self._answered_at = clock.monotonic()
        """Monotonic times of the newest record of a leader, heartbeats included, and of the newest
        answer of the brokers."""
        self._changelog = UNKNOWN
        """The changelog that was followed last."""
        self._store = Store(log.store) if log.store else None
        self._stop = threading.Event()
        replica_metrics.leads.set(0)
        for why in replica_metrics.FOLLOW_REASONS:
            replica_metrics.follow_waiting.labels(why).set(0)
        for why in fitness.REASONS:
            replica_metrics.cannot_lead.labels(why).set(0)

    def run(self, stop: threading.Event) -> ChangelogPublisher | None:
        """Follow until `stop`, or until this member leads.

        Returns: the publisher of the leader that this member became, None after a stop. Raises:
        ChangelogError, DivergedError, SettingsError, JournalError, and others that the operator
        must look at.
        """
        self._stop = stop
        try:
            while not stop.is_set():
                self._step_parts()
                try:
                    if self._follow() and self._succession is not None:
                        # The parts continue meanwhile: they end only once this member leads.
                        led = self._succession.lead()
                        _forget_following()
                        return led
                except Stopped:
                    return None
                except FencedError as error:
                    logger.info("another_member_leads", error=str(error))
                except OutOfRange as error:
                    self._take_manifest(str(error))
                except LockedError as error:
                    self._wait("lock", str(error))
                except KafkaError as error:
                    self._wait("broker", str(error))
                except StoreError as error:
                    self._wait("store", str(error))
                except DiskError as error:
                    self._wait("disk", str(error))
            return None
        finally:
            for part in self._parts:
                part.stop()
            for part in self._parts:
                part.close()

    def _follow(self) -> bool:
        """Connect, and apply records until `stop`; the caller handles all errors. Returns: whether
        this member is to claim the lead."""
        data_dir = self._data_dir
        # A wait ends only once this succeeds, which takes long if no broker answers.
        if self._why_waiting is None:
            self._beat.touch("connecting")
        else:
            self._touch_waiting(*self._why_waiting)
        with ExitStack() as stack:
            connected = self._connect(data_dir, self._kafka, self._log, self._idle)
            if connected is None:
                self._wait_for_leader()
                return False
            topic, reader = connected
            stack.callback(reader.close)
            self._changelog = reader.changelog
            finish_bootstrap(data_dir)
            if self._store is not None and not has_log(data_dir):
                manifest = newest_manifest(self._store, reader.changelog)
                if manifest is not None:
                    bootstrap(self._store, manifest, data_dir, self._progress)
            follower = Follower(data_dir, reader, before_drop=self._let_servers_pass)
            stack.callback(follower.close)
            logger.info("following", topic=topic, seq=follower.seq)
            self._answered_at = self._clock.monotonic()
            self._well()
            while not self._stop.is_set():
                heard = follower.step(POLL_SECONDS)
                self._note_answers(reader, heard)
                self._step_parts()
                self._report(follower, reader)
                succession = self._succession
                if succession is not None and succession.is_due(follower, reader, heard):
                    return True
        return False

    def _note_answers(self, reader: FollowedReader, heard: int) -> None:
        """Ask the brokers if nothing was heard for ASK_SECONDS. heard: number of a leader's records
        in the newest read. Raises: KafkaError if they do not answer."""
        now = self._clock.monotonic()
        if heard:
            self._heard_at = self._answered_at = now
        elif now - self._answered_at >= ASK_SECONDS:
            reader.bounds()
            self._answered_at = self._clock.monotonic()

    def _wait_for_leader(self) -> None:
        """Wait for the topic. A replica does not create it: with a wrong name or broker it would
        wait for records for ever."""
        name = changelog_topic(self._log.name)
        where = self._kafka.bootstrap_servers
        self._wait("leader", f"{where} has no topic {name}; the leader creates it")

    def _take_manifest(self, why: str) -> None:
        """Start again from the newest manifest, or wait for a newer one."""
        try:
            if self._store is not None:
                manifest = newest_manifest(self._store, self._changelog)
                if manifest is not None and take_manifest(
                    self._store, manifest, self._data_dir, self._progress
                ):
                    logger.warning("started_from_manifest", seq=manifest.seq, why=why)
                    return
            self._wait("manifest", f"{why}; the store has no newer manifest yet")
        except StoreError as error:
            self._wait("store", str(error))

    def _progress(self, done: int, of: int) -> None:
        self._beat.touch("bootstrapping", done=done, of=of)
        if self._stop.is_set():
            raise Stopped

    def _idle(self) -> None:
        """Called after a read without records, also during the comparison at the start."""
        if self._stop.is_set():
            raise Stopped
        self._beat.touch("following")

    def _let_servers_pass(self, event: int) -> None:
        """Wait until the servers here need no event before `event` after a restart, at most
        DROP_SECONDS."""
        begun = self._clock.monotonic()
        while readers := readers_before(self._data_dir, event):
            if self._clock.monotonic() - begun > DROP_SECONDS:
                logger.warning(
                    "dropped_before_servers",
                    servers=readers,
                    before_event=event,
                    meaning="the leader dropped these events; the servers may rebuild at a restart",
                )
                return
            self._idle()
            self._step_parts()
            self._stop.wait(POLL_SECONDS)

    def _step_parts(self) -> None:
        for part in self._parts:
            part.step()

    def _well(self) -> None:
        self._why_waiting = None
        self._failures.end("follower_continues")
        for why in replica_metrics.FOLLOW_REASONS:
            replica_metrics.follow_waiting.labels(why).set(0)

    def _wait(self, why: str, error: str) -> None:
        """Report the reason of a wait, and wait a little."""
        self._why_waiting = why, error
        replica_metrics.follow_waiting.labels(why).set(1)
        self._touch_waiting(why, error)
        if self._failures.is_due(why):
            logger.warning("follower_waits", missing=why, error=error)
        self._stop.wait(RETRY_SECONDS)

    def _touch_waiting(self, why: str, error: str) -> None:
        self._beat.touch(f"waiting for {why}", why=error)

    def _report(self, follower: Follower, reader: FollowedReader) -> None:
        """Set the metrics and touch the heartbeat."""
        now = self._clock.monotonic()
        if now - self._reported_at < REPORT_SECONDS:
            self._say(follower, reader.lag)
            return
        self._reported_at = now
        replica_metrics.leader_term.set(follower.term)
        lag = reader.lag
        if lag is not None:
            replica_metrics.follow_lag_records.set(lag)
            if lag == 0:
                age = now - self._answered_at
                replica_metrics.follow_caught_up.set(self._clock.now_us() / 1e6 - age)
        self._say(follower, lag)

    def _say(self, follower: Follower, lag: int | None) -> None:
        why = "" if self._succession is None else self._succession.cannot_lead
        more = {"cannot_lead": why} if why else {}
        self._beat.touch(
            "following",
            seq=follower.seq,
            lag_records=lag,
            term=follower.term,
            unheard_seconds=round(self._clock.monotonic() - self._heard_at, 1),
            **more,
        )
