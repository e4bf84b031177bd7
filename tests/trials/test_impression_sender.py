"""Impressions on their way to the topic: sent again after a failure, in order, bounded, and each lost one is counted."""

import msgspec
import pytest

from streamd.errors import KafkaError
from streamd.telemetry import trial_metrics
from streamd.trials.impression_sender import (
    MAX_AGE_SECONDS,
    MAX_WAITING,
    RETRY_SECONDS,
    ImpressionSender,
)
from streamd.trials.impressions import Impression


class Topic:
    """A topic in memory. fails: how many of the next records fail. holds: acknowledges nothing."""

    def __init__(self):
        self.records, self.fails, self.holds, self.down = [], 0, False, False

    def open(self):
        if self.down:
            raise KafkaError("No broker.")
        return Sink(self)

    @property
    def answers(self):
        return [msgspec.json.decode(value)["answer"] for _, value in self.records]


class Sink:
    def __init__(self, topic):
        self.topic, self.is_open = topic, True

    def send(self, key, value):
        assert self.is_open
        if self.topic.fails:
            self.topic.fails -= 1
            return Receipt(self.topic, True)
        self.topic.records.append((key, value))
        return Receipt(self.topic, False)

    def abandon(self):
        self.is_open = False


class Receipt:
    def __init__(self, topic, fails):
        self.topic, self.fails = topic, fails

    def is_written(self):
        if self.fails:
            raise KafkaError("The record was refused.")
        return not self.topic.holds


@pytest.fixture
def topic():
    return Topic()


def impression(number):
    return Impression(answer=str(number), trial="t", arm="rule", unit="u", version="rule", src="a", dst=["b"], edge_set="default", edge=0, time_us=1)


def lost(reason):
    return trial_metrics.impressions_lost.labels(reason)._value.get()


def written():
    return trial_metrics.impressions_written.labels("rule")._value.get()


def test_each_is_in_the_topic_and_counted_once_acknowledged(topic):
    sender, before = ImpressionSender(topic.open), written()
    topic.holds = True
    for i in range(5):
        sender.put(impression(i))
    sender.step(0.0)
    sender.step(1.0)
    assert topic.answers == ["0", "1", "2", "3", "4"] and written() == before
    assert topic.records[0][0] == b"u"
    topic.holds = False
    sender.step(2.0)
    assert written() == before + 5


def test_after_a_failure_all_that_are_not_acknowledged_are_sent_again_in_order(topic):
    sender, before = ImpressionSender(topic.open), written()
    for i in range(3):
        sender.put(impression(i))
    topic.holds, topic.fails = False, 1
    sender.step(0.0)
    sender.step(0.1)
    assert topic.answers == ["1", "2"], "the first one failed"
    sender.put(impression(3))
    sender.step(0.1 + RETRY_SECONDS - 0.01)
    assert topic.answers == ["1", "2"], "it waits before another try"
    sender.step(0.1 + RETRY_SECONDS)
    sender.step(2.0)
    assert topic.answers == ["1", "2", "0", "1", "2", "3"] and written() == before + 4


def test_those_that_the_topic_does_not_take_in_time_are_lost_and_counted(topic, monkeypatch):
    sender, before = ImpressionSender(topic.open), lost("broker")
    topic.down = True
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    sender.put(impression(0))
    monkeypatch.setattr("time.monotonic", lambda: 110.0)
    sender.put(impression(1))
    sender.step(100.0 + MAX_AGE_SECONDS)
    assert lost("broker") == before
    topic.down = False
    sender.step(101.0 + MAX_AGE_SECONDS)
    assert topic.answers == ["0", "1"]
    topic.down = topic.holds = True
    sender.put(impression(2))
    sender.step(110.1 + MAX_AGE_SECONDS)
    assert lost("broker") == before and topic.answers == ["0", "1", "2"], "those in flight are not lost"


def test_with_too_many_waiting_further_ones_are_lost_and_counted(topic):
    sender, before = ImpressionSender(topic.open), lost("full")
    topic.down = True
    for i in range(MAX_WAITING + 3):
        sender.put(impression(i))
    assert lost("full") == before + 3
    topic.down = False
    sender.step(0.0)
    assert len(topic.answers) == MAX_WAITING and topic.answers[0] == "0"


@pytest.mark.parametrize("holds", [False, True])
def test_a_stop_waits_for_acknowledgements_and_counts_those_that_do_not_come(topic, monkeypatch, holds):
    monkeypatch.setattr("streamd.trials.impression_sender.CLOSE_SECONDS", 0.5)
    monkeypatch.setattr("streamd.trials.impression_sender.PAUSE_SECONDS", 0.01)
    sender, before = ImpressionSender(topic.open), lost("stop")
    topic.holds = holds
    sender.start()
    for i in range(3):
        sender.put(impression(i))
    sender.close()
    assert topic.answers == ["0", "1", "2"] and lost("stop") == before + (3 if holds else 0)
