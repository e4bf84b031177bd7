"""The parts of the scoring role, put together."""

import os
import threading
from collections.abc import Callable

from streamd.errors import SettingsError
from streamd.registry import Registry
from streamd.scoring.loop import ScoreLoop
from streamd.scoring.topic import KafkaSink, read_end
from streamd.settings import Settings
from streamd.telemetry.heartbeat import Heartbeat

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


def score(
    settings: Settings, beat: Heartbeat, leads: Callable[[], bool], stop: threading.Event
) -> None:
    """Score until `stop`. leads: whether this machine's role is the one that scores."""
    # Answers go before scores, and scores before learning.
    os.nice(NICE)
    topic = settings.server.score_topic
    ScoreLoop(
        settings,
        Registry(settings),
        beat,
        leads,
        lambda: KafkaSink(settings.kafka, topic),
        lambda: read_end(settings.kafka, topic),
    ).run(stop)
