"""The parts of the scoring role, put together."""

import os
import threading
from collections.abc import Callable

from streamd.errors import SettingsError
from streamd.registry import Registry
from streamd.roles import SCORE
from streamd.scoring.loop import ScoreLoop
from streamd.scoring.topic import KafkaSink, read_end
from streamd.settings import Settings
from streamd.telemetry.api_keys import ApiKeys
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port

NICE = 5
"""Niceness of the role, between the server's 0 and `training.nice`."""


def check_topic(settings: Settings) -> None:
    """Check that there is a topic to score to. Raises: SettingsError."""
    topic = settings.server.score_topic
    if not topic:
        raise SettingsError("No events are scored to a topic.", "set server.score_topic to one.")
    if topic in settings.kafka.topics:
        raise SettingsError(
            f"The topic {topic!r} is read as events too.", "set server.score_topic to another."
        )


def run_score(
    settings: Settings,
    prepare: Callable[[], None],
    leads: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Score until `stop`.

    prepare: makes the kernels ready. leads: whether this machine's role is the one that scores.
    Raises: SettingsError where there is no topic, or its port is taken.
    """
    check_topic(settings)

    # Answers go before scores, and scores before learning.
    os.nice(NICE)
    beat = Heartbeat(settings.data_dir, SCORE)
    open_port(
        settings.telemetry.score_port, settings.server.host, beat, ApiKeys(settings.server).allows
    )
    beat.touch("preparing")
    prepare()
    beat.end_when_stalled()
    topic = settings.server.score_topic
    ScoreLoop(
        settings,
        Registry(settings),
        beat,
        leads,
        lambda: KafkaSink(settings.kafka, topic),
        lambda: read_end(settings.kafka, topic),
    ).run(stop)
