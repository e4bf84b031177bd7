"""What runs beside the trainer and beside a follower, each in a thread of its own."""

from pathlib import Path

import structlog

from streamd.registry import Registry
from streamd.replica.ends import SourceEnds
from streamd.replica.models_follower import ModelsFollower
from streamd.replica.models_publisher import ModelsPublisher
from streamd.replica.models_topic import KafkaModelsTopic
from streamd.replica.steps import StepThread
from streamd.settings import Settings
from streamd.store.store import Store

logger = structlog.get_logger()
NOT_SENT = "log.store is not set, which has their bytes"


def publish_models(settings: Settings, learning_dir: Path) -> StepThread | None:
    """Send versions, moves and windows to other machines, and do what they ask for.

    learning_dir: of what is learned, which may be elsewhere than the log. Returns: the thread, None
    without a store.
    """
    from streamd.training.checkpoint import counted_history

    if not settings.log.store:
        logger.warning("models_not_published", meaning=NOT_SENT)
        return None

    kept = settings.model_copy(update={"data_dir": learning_dir})

    def make() -> ModelsPublisher:
        return ModelsPublisher(
            kept,
            Registry(kept),
            KafkaModelsTopic(settings, make=True),
            Store(settings.log.store),
            lambda: counted_history(learning_dir / "train" / "checkpoints"),
            settings.data_dir,
        )

    return StepThread("models", make)


def follow_models(settings: Settings) -> list[StepThread]:
    """Take over what the trainer elsewhere sends, where there is a store, and look what Kafka
    has."""

    def make() -> ModelsFollower:
        topic = KafkaModelsTopic(settings)
        return ModelsFollower(settings, Registry(settings), topic, Store(settings.log.store))

    threads = [StepThread("ends", lambda: SourceEnds(settings))]
    if settings.log.store:
        threads.append(StepThread("models", make))
    else:
        logger.warning("models_not_followed", meaning=NOT_SENT)
    return threads
