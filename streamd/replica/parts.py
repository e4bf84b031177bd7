"""Parts that run next to the trainer or a follower, each in a thread of its own."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import structlog

from streamd.registry import Registry
from streamd.registry.locks import lock_writer
from streamd.replica.follower.end_offsets import SourceEnds
from streamd.replica.models.follower import ModelsFollower
from streamd.replica.models.standby import LOOK_SECONDS, TrainerStart, leads
from streamd.replica.models.topic import KafkaModelsTopic
from streamd.replica.worker_thread import StepThread
from streamd.settings.loading import Settings
from streamd.settings.paths import Paths
from streamd.store.objects import Store
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
NOT_SENT = "log.store, which has the versions' files, is not set"


class LockedFollower:
    """Follows the models topic, and holds the lock of the folder of versions meanwhile, so that no
    trainer here writes there too. Owner: its thread."""

    def __init__(self, registry: Registry, follow: Callable[[Registry], ModelsFollower]) -> None:
        """follow: makes the follower. Raises: LockedError while a trainer writes; KafkaError,
        ChangelogError."""
        self._lock = lock_writer(registry.folder)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._lock)
            self._follower = follow(registry)
            stack.pop_all()

    def step(self, wait_seconds: float = 0.0) -> None:
        """As in `ModelsFollower`."""
        self._follower.step(wait_seconds)

    def close(self) -> None:
        """As in `ModelsFollower`; then a trainer may write."""
        try:
            self._follower.close()
        finally:
            os.close(self._lock)


@contextlib.contextmanager
def training_in_term(
    settings: Settings, paths: Paths, beat: Heartbeat, stop: threading.Event
) -> Iterator[Callable[[str], None]]:
    """Wait until this machine leads the log, claim the trainer's term, and bring the directory to
    the newest stored checkpoint. Then store and publish the trainer's results until the end.

    paths: of the trainer. Yields: a function that the trainer calls with the name of each step; it
    raises FencedError once the trainer has lost its term. If `stop` was set before the claim, it
    does nothing. Raises: FencedError, ChangelogError.
    """
    if not settings.log.store:
        logger.warning("models_not_published", meaning=NOT_SENT)
        while not leads(settings.log, paths.log) and not stop.wait(LOOK_SECONDS):
            beat.touch("standby")
        yield lambda _: None
        return
    session = TrainerStart(
        paths,
        settings.log,
        settings.holds.lease_seconds,
        lambda: Registry.of(settings, paths),
        # The trainer makes the topic if it is missing.
        lambda: KafkaModelsTopic(settings.kafka, settings.log.name, make=True),
        beat,
        stop,
    ).begin()
    if session is None:
        yield lambda _: None
        return
    try:
        yield session.on_step
    finally:
        session.close()


def follow_models(settings: Settings, beat: Heartbeat) -> list[StepThread]:
    """Follow the trainer of another machine, if there is a store, and read the end offsets of
    Kafka. beat: of this role, which reports failures of the first."""

    def follow(registry: Registry) -> ModelsFollower:
        return ModelsFollower(
            settings.data_dir,
            settings.holds.lease_seconds,
            registry,
            KafkaModelsTopic(settings.kafka, settings.log.name),
            Store(settings.log.store),
        )

    threads = [StepThread("ends", lambda: SourceEnds(settings.data_dir, settings.kafka))]
    if settings.log.store:

        def make() -> LockedFollower:
            return LockedFollower(Registry.of(settings), follow)

        threads.append(StepThread("models", make, beat.note_failure))
    else:
        logger.warning("models_not_followed", meaning=NOT_SENT)
    return threads
