"""The loop of the follow role: it reads the changelog into the log here, and waits for what is
away."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

import structlog

from streamd.clock import Clock
from streamd.errors import DiskError, KafkaError, LockedError, StoreError
from streamd.replica.bootstrap import bootstrap, finish_bootstrap, newest_manifest
from streamd.replica.changelog import OutOfRange
from streamd.replica.connect import Stopped, find_changelog
from streamd.replica.follower import Follower
from streamd.replica.kafka_changelog import KafkaReader
from streamd.replica.own_holds import DROP_SECONDS, readers_before
from streamd.replica.start import has_log, published_seq
from streamd.segments.changelog_position import UNKNOWN
from streamd.settings import Settings
from streamd.store.changelog import changelog_topic
from streamd.store.store import Store
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.lasting import LastingFailures

logger = structlog.get_logger()
POLL_SECONDS = 0.05
"""Longest wait for a record before the parts have their turn."""
REPORT_SECONDS = 1.0
RETRY_SECONDS = 1.0
"""Pause before what is away is asked again."""
REASONS = ("broker", "leader", "manifest", "store", "disk", "lock")
"""What it may wait for, as the metric's label says."""


class Part(Protocol):
    """Something else that the follower's process does, between two reads of the changelog."""

    def step(self) -> None:
        """Do a little work, of some milliseconds at most; raises nothing that can be waited out."""
        ...

    def close(self) -> None: ...


class FollowLoop:
    """Follows the changelog until it is stopped. Owner: the follow process.

    A broker, a store or a disk that is away or full is waited for: the servers here go on
    answering, and heartbeat and metrics say what is missing. What cannot get better by itself ends
    the role.
    """

    def __init__(
        self, settings: Settings, clock: Clock, beat: Heartbeat, parts: Sequence[Part] = ()
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._beat = beat
        self._parts = parts
        self._failures = LastingFailures(clock.monotonic)
        self._reported_at = -REPORT_SECONDS
        self._changelog = UNKNOWN
        """The one that was followed last."""
        self._store = Store(settings.log.store) if settings.log.store else None
        for why in REASONS:
            metrics.follow_waiting.labels(why).set(0)

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop`. Raises: ChangelogError, DivergedError, SettingsError, JournalError,
        and others that the operator must look at."""
        self._stop = stop
        try:
            while not stop.is_set():
                self._step_parts()
                try:
                    self._follow()
                except Stopped:
                    return
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
        finally:
            for part in self._parts:
                part.close()

    def _follow(self) -> None:
        """Connect, and apply what comes until `stop`; whatever goes wrong is the caller's."""
        data_dir = self._settings.data_dir
        self._beat.touch("connecting")
        with ExitStack() as stack:
            topic = find_changelog(self._settings)
            if topic is None:
                self._wait_for_leader()
                return
            reader = KafkaReader(self._settings.kafka, topic.changelog, self._idle)
            stack.callback(reader.close)
            self._changelog = topic.changelog
            finish_bootstrap(data_dir)
            if self._store is not None and not has_log(data_dir):
                manifest = newest_manifest(self._store, topic.changelog)
                if manifest is not None:
                    bootstrap(self._store, manifest, data_dir, self._progress)
            follower = Follower(data_dir, reader, before_drop=self._let_servers_pass)
            stack.callback(follower.close)
            logger.info("following", topic=topic.shown, seq=follower.seq)
            self._well()
            while not self._stop.is_set():
                follower.step(POLL_SECONDS)
                self._step_parts()
                self._report(follower, reader)

    def _wait_for_leader(self) -> None:
        """Wait for the topic: made here, one of a wrong name or broker would be waited on for
        ever."""
        name = changelog_topic(self._settings.log.name)
        where = self._settings.kafka.bootstrap_servers
        self._wait("leader", f"{where} has no topic {name}; the leader makes it")

    def _take_manifest(self, why: str) -> None:
        """Start again from the newest manifest, where there is one that is newer than the log
        here."""
        data_dir = self._settings.data_dir
        try:
            manifest = None
            if self._store is not None:
                manifest = newest_manifest(self._store, self._changelog)
            if manifest is None or manifest.seq <= published_seq(data_dir):
                self._wait("manifest", f"{why}; the store has no newer manifest yet")
                return
            assert self._store is not None
            logger.warning("starting_from_manifest", seq=manifest.seq, why=why)
            bootstrap(self._store, manifest, data_dir, self._progress)
        except StoreError as error:
            self._wait("store", str(error))

    def _progress(self, done: int, of: int) -> None:
        self._beat.touch("bootstrapping", done=done, of=of)
        if self._stop.is_set():
            raise Stopped

    def _idle(self) -> None:
        """Called while a read brings nothing, also while the two ends are compared."""
        if self._stop.is_set():
            raise Stopped
        self._beat.touch("following")

    def _let_servers_pass(self, event: int) -> None:
        """Wait until the servers here need no event before `event` after a restart, not for
        long."""
        begun = self._clock.monotonic()
        while readers := readers_before(self._settings.data_dir, event):
            if self._clock.monotonic() - begun > DROP_SECONDS:
                logger.warning("dropped_before_servers", servers=readers, before_event=event)
                return
            self._idle()
            self._step_parts()
            self._stop.wait(POLL_SECONDS)

    def _step_parts(self) -> None:
        for part in self._parts:
            part.step()

    def _well(self) -> None:
        self._failures.over()
        for why in REASONS:
            metrics.follow_waiting.labels(why).set(0)

    def _wait(self, why: str, error: str) -> None:
        """Say what is missing, and wait a little."""
        metrics.follow_waiting.labels(why).set(1)
        self._beat.touch(f"waiting for {why}", why=error)
        if self._failures.is_due(why):
            logger.warning("follower_waits", missing=why, error=error)
        self._stop.wait(RETRY_SECONDS)

    def _report(self, follower: Follower, reader: KafkaReader) -> None:
        """Set the metrics and touch the heartbeat."""
        now = self._clock.monotonic()
        if now - self._reported_at < REPORT_SECONDS:
            self._beat.touch("following", seq=follower.seq)
            return
        self._reported_at = now
        lag = reader.lag
        if lag is not None:
            metrics.follow_lag_records.set(lag)
            if lag == 0:
                metrics.follow_caught_up.set(self._clock.now_us() / 1e6)
        self._beat.touch("following", seq=follower.seq, lag_records=lag)
