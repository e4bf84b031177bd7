"""What the heartbeat of ingest says of the records that the log does not have yet."""

from types import SimpleNamespace

from kafka import TopicPartition

from streamd.events import Position, Run
from streamd.ingest.kafka.lag import unread

ENDS = {("a", 0): 10, ("a", 7): 20, ("b.c", 0): 5}
COMMITTED = [Position(10), Position(18, 3, (Run((19, 0), (19, 0)),)), Position(-1)]
"""Of each partition: all, up to an event of record 18, and none."""


def test_partitions_with_records_that_are_not_committed_are_named_with_their_ends():
    source = SimpleNamespace(
        partitions=[TopicPartition(*tp) for tp in ENDS], end=list(ENDS.values()).__getitem__, answered_at=40.0, has_asked=True,
        missing_topics=())
    merger = SimpleNamespace(position=COMMITTED.__getitem__)
    told = unread(source, merger, SimpleNamespace(monotonic=lambda: 47.5))
    assert told == {"lag": 8, "behind": {"a": {7: 20}, "b.c": {0: 5}}, "broker_age_seconds": 7.5, "broker_asked": True}
    source.missing_topics = ("a",)
    assert "behind" not in unread(source, merger, SimpleNamespace(monotonic=lambda: 47.5)), "what is lost with a topic is unknown"
    source.answered_at = 48.0
    assert unread(source, merger, SimpleNamespace(monotonic=lambda: 47.5))["broker_age_seconds"] == 0
