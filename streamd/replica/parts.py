"""What runs beside the trainer and beside a follower, each in a thread of its own."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from streamd.registry import Registry
from streamd.replica.follower.end_offsets import SourceEnds
from streamd.replica.models.follower import ModelsFollower
from streamd.replica.models.standby import (
    LOOK_SECONDS,
    Beginning,
    leads,
    lock_writer,
)
from streamd.replica.models.topic import KafkaModelsTopic
from streamd.replica.worker_thread import StepThread
from streamd.settings.loading import Settings
from streamd.store.objects import Store
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
NOT_SENT = "log.store is not set, which has their bytes"


class OneWriter:
    """Follows the models topic while it has the lock of the folder of versions, so that no trainer
    here writes there too. Owner: its thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises: LockedError while a trainer writes; KafkaError, ChangelogError."""
        registry = Registry(settings)
        self._lock = lock_writer(registry)
        try:
            topic = KafkaModelsTopic(settings)
            self._follower = ModelsFollower(settings, registry, topic, Store(settings.log.store))
        except BaseException:
            os.close(self._lock)
            raise

    def step(self, wait_seconds: float = 0.0) -> None:
        """As of `ModelsFollower`."""
        self._follower.step(wait_seconds)

    def close(self) -> None:
        """As of `ModelsFollower`; then a trainer may write."""
        try:
            self._follower.close()
        finally:
            os.close(self._lock)


@contextlib.contextmanager
def training_in_term(
    settings: Settings, learning_dir: Path, beat: Heartbeat, stop: threading.Event
) -> Iterator[Callable[[str], None]]:
    """Wait until this machine leads the log, claim the trainer's term, and bring the directory to
    the newest stored checkpoint. Then store and send what is learned, until the end.

    learning_dir: of what is learned, which may be elsewhere than the log. Yields: what the trainer
    calls with the name of each step; it raises FencedError where this is not its term any more. It
    may be that `stop` was set before anything was claimed.
    Raises: FencedError, ChangelogError.
    """
    if not settings.log.store:
        logger.warning("models_not_published", meaning=NOT_SENT)
        while not leads(settings) and not stop.wait(LOOK_SECONDS):
            beat.touch("standby")
        yield lambda _: None
        return
    kept = settings.model_copy(update={"data_dir": learning_dir})
    reign = Beginning(settings, kept, beat, stop).begin()
    if reign is None:
        yield lambda _: None
        return
    try:
        yield reign.on_step
    finally:
        reign.close()


def follow_models(settings: Settings) -> list[StepThread]:
    """Take over what the trainer elsewhere sends, where there is a store, and look what Kafka
    has."""

    threads = [StepThread("ends", lambda: SourceEnds(settings))]
    if settings.log.store:
        threads.append(StepThread("models", lambda: OneWriter(settings)))
    else:
        logger.warning("models_not_followed", meaning=NOT_SENT)
    return threads
