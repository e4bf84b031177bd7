import json

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from streamd.clock import ManualClock
from streamd.events import Position, Progress, Schema
from streamd.ingest.deadletter import LocalDeadLetters
from streamd.ingest.loop import IngestLoop
from streamd.segments.log import LogWriter
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import settings


class Trickle:
    """A partition that gets a record each millisecond, and gives a poll what there is as soon as there is any."""

    partitions, changed = [TopicPartition("events", 0)], False

    def __init__(self, clock):
        self.clock, self.begun, self.read, self.polls = clock, clock.monotonic(), 0, 0

    def begin(self, stored):
        return [Position(0)], []

    def poll(self, timeout_seconds, max_records):
        self.polls += 1
        self.clock.advance(0.001)
        first, self.read = self.read, round((self.clock.monotonic() - self.begun) * 1000)
        values = [json.dumps({"src": i % 7, "dst": i % 5}).encode() for i in range(first, self.read)]
        now = self.clock.now_us() // 1000
        return {0: [ConsumerRecord("events", 0, 0, first + i, now, 0, None, v, [], None, -1, len(v), -1)
                    for i, v in enumerate(values)]}

    def position(self, source):
        return self.read

    end = position

    def pause(self, sources): ...

    def publish(self, positions): ...

    def progress(self, positions):
        return Progress("", {}, {"events": {0: positions[0]}})


@pytest.fixture
def trickling(tmp_path):
    """A loop that commits every so many seconds, its log, source and clock."""
    clock, writer = ManualClock(), LogWriter(tmp_path, Schema(0, 0, 0), 4096)

    def made(interval):
        s, source = settings(tmp_path, ingest__commit_interval_seconds=interval), Trickle(clock)
        loop = IngestLoop(s, writer, LocalDeadLetters(tmp_path / "deadletter", 10**6), clock, Heartbeat(tmp_path, "ingest"))
        assert loop._begin(source)
        return loop, writer, source, clock

    yield made
    writer.close()


@pytest.mark.parametrize("interval", [0.05, 0.2])
def test_events_that_trickle_in_are_polled_and_committed_together(trickling, interval):
    loop, writer, source, clock = trickling(interval)
    while clock.monotonic() < 2:
        assert loop._step(source)
    assert writer.num_edges > 2000 * (1 - interval) and source.polls < 3 * 2 / interval


def test_a_long_time_between_commits_holds_up_no_stop_and_no_heartbeat(trickling):
    loop, writer, source, clock = trickling(30)
    for _ in range(10):
        begun = clock.monotonic()
        assert loop._step(source) and clock.monotonic() - begun < 0.25
    assert not writer.num_edges
