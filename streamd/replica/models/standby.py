"""The start of a trainer: it waits until this machine leads the log, claims its term, and takes the
newest stored checkpoint if its own directory is older."""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from streamd.errors import FencedError, KafkaError, LockedError, StoreError
from streamd.eventlog.journal.tail import JournalTail
from streamd.registry import Registry
from streamd.registry.locks import lock_writer
from streamd.replica.leader.connect import Stopped
from streamd.replica.models.checkpoint_marker import read_marker
from streamd.replica.models.hold import HandoverHold
from streamd.replica.models.publisher import ModelsPublisher
from streamd.replica.models.state import ModelsState
from streamd.replica.models.takeover import Takeover, clear, has_state
from streamd.replica.models.topic import ModelsTopic
from streamd.replica.models.trainer_term import TrainerTerm
from streamd.replica.worker_thread import StepThread
from streamd.settings.log import LogSettings
from streamd.settings.paths import Paths
from streamd.store.objects import Store
from streamd.telemetry.failure_log import LastingFailures
from streamd.telemetry.heartbeat import Heartbeat, leads_here

logger = structlog.get_logger()
LOOK_SECONDS = 0.5
RETRY_SECONDS = 1.0
LEAVE_SECONDS = 10.0
"""How long ingest may be absent before its trainer ends. A crashed ingest restarts within seconds;
a new leader's trainer claims a term of its own."""


def leads(log: LogSettings, data_dir: Path) -> bool:
    """Whether ingest here leads the log: always on the fixed leader of the settings, else by
    ingest's heartbeat."""
    return not log.follows or leads_here(data_dir)


class TrainerSession:
    """The publisher and the lock of a trainer that has claimed its term. Owner: the train
    process."""

    def __init__(
        self,
        leads_now: Callable[[], bool],
        trainer_term: TrainerTerm,
        publisher: StepThread,
        lock: int,
    ) -> None:
        """leads_now: whether ingest here leads the log. lock: of `lock_writer`."""
        self._leads_now = leads_now
        self._term = trainer_term
        self._publisher = publisher
        self._lock = lock
        self._led_at = self._looked_at = time.monotonic()

    def on_step(self, name: str) -> None:
        """Called by the trainer before each step. Raises: FencedError if another trainer has
        claimed since, or ingest here does not lead any more."""
        if self._publisher.fenced is not None:
            raise self._publisher.fenced
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            if self._leads_now():
                self._led_at = now
            elif now - self._led_at > LEAVE_SECONDS:
                raise FencedError(
                    "Ingest here does not lead any more.",
                    "none is needed: the trainer becomes a standby.",
                )
        if name == "rest":
            self._term.handovers.take()

    def close(self) -> None:
        """Stop publishing, and let other processes write versions here."""
        self._publisher.close()
        os.close(self._lock)


class TrainerStart:
    """Prepares the start of a trainer, and waits for brokers, store and log. Owner: the train
    process."""

    def __init__(
        self,
        paths: Paths,
        log: LogSettings,
        lease_seconds: float,
        open_registry: Callable[[], Registry],
        open_topic: Callable[[], ModelsTopic],
        beat: Heartbeat,
        stop: threading.Event,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Args: paths: of the trainer. lease_seconds: as in `ModelsPublisher`. open_registry: of
        the trainer; each thread opens its own. open_topic: may raise KafkaError. on_step: called
        with the name of each step as it begins; tests stop there."""
        self._paths = paths
        self._log = log
        self._lease_seconds = lease_seconds
        self._open_registry = open_registry
        self._beat = beat
        self._stop = stop
        self._open_topic = open_topic
        self._on_step = on_step
        self._registry = open_registry()
        self._hold = HandoverHold(paths.log)
        self._store = Store(log.store, sleep=lambda seconds: self._pause(seconds))
        self._store.before_try = lambda: beat.touch("taking over")
        self._failures = LastingFailures()

    def begin(self) -> TrainerSession | None:
        """Wait until this machine leads, claim, and bring the directory to the newest checkpoint.

        Returns: the publisher and lock of the trainer, None if `stop` was set meanwhile. Raises:
        FencedError if another trainer claimed meanwhile, ChangelogError, SettingsError.
        """
        topic: ModelsTopic | None = None
        lock = -1
        trainer_term = TrainerTerm(self._paths.learned, socket.gethostname(), store=self._store)
        state = ModelsState()
        try:
            while not self._stop.is_set():
                try:
                    if topic is None:
                        topic, state = self._open_topic(), ModelsState()
                    if self._is_ready(topic, state):
                        lock = lock if lock >= 0 else lock_writer(self._registry.folder)
                        trainer_term.claim(topic, state)
                        if self._take(trainer_term, topic, state):
                            self._failures.end("trainer_waits_no_longer")
                            begun, lock = self._begun(trainer_term, lock), -1
                            return begun
                    elif lock >= 0:
                        # The lead was lost before the trainer began: the follower writes here.
                        os.close(lock)
                        lock = -1
                except Stopped:
                    break
                except LockedError as error:
                    self._wait("lock", error)
                except (StoreError, OSError) as error:
                    self._wait("store", error)
                except KafkaError as error:
                    self._wait("broker", error)
                    _close(topic)
                    topic = None
            return None
        finally:
            _close(topic)
            if lock >= 0:
                os.close(lock)

    def _is_ready(self, topic: ModelsTopic, state: ModelsState) -> bool:
        """Whether this machine leads. If not, hold the events of the newest checkpoint, and clear a
        state that another trainer has continued elsewhere."""
        state.take(topic.read(0.0))
        state.check_beginning()
        if self._leads_now():
            return True
        self._on_step("stand by")
        self._hold.keep(state)
        # State from before another trainer took over is of no use, and may contain deleted data.
        newest = state.checkpoints[-1].name if state.checkpoints else ""
        names = {entry.name for entry in read_marker(self._paths.learned)}
        if newest and newest not in names and has_state(self._paths.learned):
            logger.info("trainer_cleared", reason="another trainer continues from its checkpoint")
            clear(self._paths.learned)
        self._failures.end("trainer_waits_no_longer")
        self._beat.touch("standby", term=state.term)
        self._stop.wait(LOOK_SECONDS)
        return False

    def _take(self, trainer_term: TrainerTerm, topic: ModelsTopic, state: ModelsState) -> bool:
        """Take the newest checkpoint if the directory is older. Returns: whether the trainer may
        begin."""
        # While this was a standby, the follower here may have removed the marker.
        trainer_term.renew()
        newest = state.checkpoints[-1] if state.checkpoints else None
        if newest is None or trainer_term.has_stored(newest.name):
            return True
        self._hold.keep(state)
        tail = JournalTail.open(self._paths.log)
        if tail is None or tail.state.num_edges < newest.edge:
            there = 0 if tail is None else tail.state.num_edges
            self._wait("log", f"the checkpoint is at event {newest.edge}, the log ends at {there}")
            return False
        begun = time.monotonic()
        takeover = Takeover(
            self._paths.learned, self._registry, self._store, self._on_step, self._progress
        )
        stored = takeover.take(newest, state)
        trainer_term.renew()
        logger.info(
            "checkpoint_restored",
            edge=stored.edge,
            term=stored.term,
            seconds=round(time.monotonic() - begun, 3),
        )
        state.take(topic.read(0.0))
        trainer_term.check(topic, state)
        return True

    def _begun(self, trainer_term: TrainerTerm, lock: int) -> TrainerSession:
        # From here on, servers follow a move only once the topic has it.
        self._registry.journal.show(self._registry.shown())

        def make() -> ModelsPublisher:
            return ModelsPublisher(
                self._paths,
                self._lease_seconds,
                self._open_registry(),
                self._open_topic(),
                Store(self._log.store),
                trainer_term,
            )

        thread = StepThread("models", make, self._beat.note_failure)
        return TrainerSession(self._leads_now, trainer_term, thread, lock)

    def _leads_now(self) -> bool:
        return leads(self._log, self._paths.log)

    def _progress(self, done: int, of: int) -> None:
        self._beat.touch("taking over", done=done, of=of)
        if self._stop.is_set():
            raise Stopped

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped

    def _wait(self, why: str, error: object) -> None:
        """Report the reason of a wait, and wait a little."""
        self._beat.touch(f"waiting for {why}", why=str(error))
        if self._failures.is_due(why):
            logger.warning("trainer_waits", missing=why, error=str(error))
        self._stop.wait(RETRY_SECONDS)


def _close(topic: ModelsTopic | None) -> None:
    if topic is not None:
        topic.close()
