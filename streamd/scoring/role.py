"""The parts of the scoring role, put together."""

import os
import sys
import threading
from collections.abc import Callable

import structlog

from streamd.errors import SettingsError, StreamdError
from streamd.registry import Registry
from streamd.roles import SCORE
from streamd.scoring.loop import ScoreLoop
from streamd.scoring.topic import KafkaSink, read_end
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import Settings
from streamd.store.changelog import changelog_topic, models_topic
from streamd.telemetry.api_keys import ApiKeys
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port

logger = structlog.get_logger()
NICE = 10
"""Niceness of the role, as the trainer's by default: ingest and the server have 0."""


def check_topic(settings: Settings) -> None:
    """Check that there is a topic to score to. Raises: SettingsError."""
    topic = settings.server.score_topic
    if not topic:
        raise SettingsError("No events are scored to a topic.", "set server.score_topic to one.")
    taken = {*settings.kafka.topics, settings.ingest.dead_letter_topic}
    if settings.log.name:
        taken |= {changelog_topic(settings.log.name), models_topic(settings.log.name)}
    for name, used in (("score_topic", topic), ("alarm_topic", settings.server.alarm_topic)):
        if used in taken:
            raise SettingsError(
                f"The topic {used!r} is used for something else.", f"set server.{name} to another."
            )
        taken.add(used)


def run_score(
    settings: Settings,
    prepare: Callable[[Callable[[], bool]], None],
    leads: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Score until `stop`.

    prepare: compiles the kernels, as `make_kernels_ready` does. leads: whether this machine is the
    one that scores. Raises: SettingsError if there is no topic, or its port is taken.
    """
    check_topic(settings)

    # Answers have priority over scores.
    os.nice(NICE)
    beat = Heartbeat(settings.data_dir, SCORE)
    open_port(
        settings.telemetry.score_port, settings.server.host, beat, ApiKeys(settings.server).allows
    )
    prepare(beat.until(stop, "preparing"))
    beat.end_when_stalled()
    topic = settings.server.score_topic
    loop = ScoreLoop(
        ServingSettings.of(settings, SCORE),
        settings.server,
        Registry.of(settings),
        beat,
        leads,
        lambda: KafkaSink(settings.kafka, topic, settings.server.alarm_topic),
        lambda: read_end(settings.kafka, topic),
    )
    try:
        loop.run(stop)
    except (StreamdError, OSError) as error:
        # For example, a follower may have replaced the log by a newer one: a restarted process
        # opens that. A lasting error is also reported by ingest or the server.
        logger.exception("scoring_failed", error=str(error))
        sys.exit(1)
