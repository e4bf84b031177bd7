"""Settings of the topic of the changelog that streamd refuses, by a broker that describes them."""

import pytest

from streamd.errors import ChangelogError
from streamd.eventlog.line_ranges import FileRange
from streamd.replica.changelog.kafka import OVERHEAD_BYTES
from streamd.replica.changelog.records import Commit, encode
from streamd.replica.changelog.topics import MIN_MESSAGE_BYTES, look_at_topic

NAME = "log.changelog"


class Broker:
    """A broker with the topic, whose largest record has some bytes."""

    def __init__(self, message_bytes):
        self._configs = {"max.message.bytes": {"value": str(message_bytes)}}

    def describe_topics(self, names):
        return [{"name": NAME, "error_code": 0, "topic_id": "id", "partitions": [{"replica_nodes": [1, 2, 3]}]}]

    def describe_cluster(self):
        return {"cluster_id": "cluster", "brokers": [1, 2, 3]}

    def describe_configs(self, resources, config_filter):
        return {"TOPIC": {NAME: self._configs}}


@pytest.mark.parametrize("message_bytes", [1, 65_536, MIN_MESSAGE_BYTES - 1])
def test_a_topic_of_records_that_take_no_rows_is_refused(message_bytes):
    with pytest.raises(ChangelogError, match=f"max.message.bytes {message_bytes:,}, not 72,000 or more"):
        look_at_topic(Broker(message_bytes), NAME)


def test_the_smallest_records_take_a_commit():
    """A leader of a topic with less looked for room in one record after the other, for ever."""
    topic = look_at_topic(Broker(MIN_MESSAGE_BYTES), NAME)
    commit = Commit(term=1, seq=1, line=b"x" * 900, made=[], schema={"name": 70_000 * "x"}, ranges=[FileRange("edges/0.tguf", 0, 100_000)])
    records = list(encode(commit, lambda piece: bytes(piece.num_bytes), topic.max_message_bytes - OVERHEAD_BYTES))
    assert sum(len(record.value) for record in records) > 170_900
    assert len(records) < 100 and all(len(record.value) < MIN_MESSAGE_BYTES for record in records[1:])
