"""Which partitions a reader takes, and where it begins in each."""

import time
import uuid
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import SubscriptionState

from streamd.errors import DataLossError, KafkaError, SettingsError, SilentBrokerError
from streamd.eventlog.writer import LogWriter
from streamd.events import Gap, Position, Progress, Run, Schema, empty_batch
from streamd.ingest.kafka import consumer
from streamd.ingest.kafka.consumer import KafkaSource, in_shard
from streamd.ingest.kafka.topic_watch import Topics
from streamd.settings.loading import load_settings


def test_shards_share_out_all_partitions_and_none_moves_when_partitions_are_added():
    parts = [TopicPartition(t, p) for t in ("a", "b", "c") for p in range(12)]
    shards = [{tp for tp in parts if in_shard(tp, f"{k}/4")} for k in range(1, 5)]
    assert sum(map(len, shards)) == len(parts) and set().union(*shards) == set(parts)
    assert all(len(s) == 9 for s in shards)
    assert all(in_shard(tp, None) for tp in parts)


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(shard):
    with pytest.raises(SettingsError, match="shard"):
        load_settings(None, {"ingest.shard": shard}, environ={})


class Broker:
    """Its topic "t" as an admin client and a consumer see it. first: offset at which each partition begins."""

    def __init__(self, topic_id, num_partitions, first=0, leaderless=()):
        parts = tuple(TopicPartition("t", p) for p in range(num_partitions))
        self.topics = Topics("c", {"t": topic_id}, parts, frozenset(TopicPartition("t", p) for p in leaderless))
        self.first, self.end = first, 1000

    def beginning_offsets(self, parts, _):
        return dict.fromkeys(parts, self.first)

    def end_offsets(self, parts, _):
        return dict.fromkeys(parts, self.end)

    def assign(self, parts): ...


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a source on a broker from what a log has stored, and store where it begins: ({partition: position}, gaps)."""
    for name in ("bound_polls", "seek", "make_reading_safe"):
        monkeypatch.setattr(consumer, name, lambda *_: None)
    monkeypatch.setattr(consumer, "stable_offsets", lambda _: {})
    monkeypatch.setattr(consumer, "note_fetches", lambda *_: None)
    monkeypatch.setattr(consumer, "BrokerWatch", lambda *_: None)
    monkeypatch.setattr(consumer, "asking_about_topics", lambda _: nullcontext())
    log = LogWriter(tmp_path, Schema(), 100)

    def begun(broker, read=None, on_data_loss="continue"):
        monkeypatch.setattr(consumer, "make_consumer", lambda _: broker)
        monkeypatch.setattr(consumer, "describe", lambda *_: broker.topics)
        values = {"kafka.topics": ["t"], "ingest.on_data_loss": on_data_loss}
        settings, _ = load_settings(None, values, environ={})
        source = KafkaSource(settings.kafka, settings.ingest)
        source.discover()
        positions, gaps = source.begin(log.progress)
        log.commit(empty_batch(Schema()), source.progress(positions), 0, gaps)
        if read is not None:
            log.commit(empty_batch(Schema()), source.progress([read] * len(positions)), 0)
        return positions, gaps

    begun.log = log
    yield begun
    log.close()


def test_of_a_topic_made_anew_with_fewer_partitions_and_extended_later_every_record_is_read(begin):
    begin(Broker("old", 3), read=Position(200))
    positions, gaps = begin(Broker("new", 1), read=Position(50))
    assert positions == [Position(0)] and gaps == [Gap("t", p, 200, -1) for p in range(3)], "also what was lost in the two others is told"
    positions, gaps = begin(Broker("new", 3))
    assert positions == [Position(50), Position(0), Position(0)] and not gaps


def test_a_position_that_a_topic_made_anew_happens_to_have_too_is_stored_for_it(begin):
    begin(Broker("old", 1), read=Position(7))
    begin(Broker("new", 1, first=7))
    assert begin.log.progress == Progress("c", {"t": "new"}, {"t": {0: Position(7)}})


def test_a_topic_made_anew_whose_leader_is_away_is_not_read_from_the_places_of_the_old_one(begin):
    begin(Broker("old", 1), read=Position(200))
    with pytest.raises(KafkaError, match="no leader"):
        begin(Broker("new", 1, leaderless=(0,)))
    assert begin(Broker("new", 1))[0] == [Position(0)]


def test_a_topic_made_anew_ends_ingest_unless_losses_may_be_passed_over(begin):
    begin(Broker("old", 1), read=Position(200))
    with pytest.raises(DataLossError, match="created again"):
        begin(Broker("new", 1), on_data_loss="fail")


def test_a_partition_shorter_than_what_was_read_is_named_as_a_new_topic(begin):
    """As with a broker without ids of topics."""
    begin(Broker("", 1), read=Position(1200))
    with pytest.raises(DataLossError, match="ends at offset 1000, but ingest has read up to 1200: the topic was deleted and created again"):
        begin(Broker("", 1), on_data_loss="fail")


def test_of_records_that_were_deleted_before_they_were_read_the_runs_behind_them_stay(begin):
    begin(Broker("id", 1), read=Position(5, 0, (Run((6, 0), (7, 0)), Run((9, 0), (30, 2)), Run((40, 0), (40, 0)))))
    positions, gaps = begin(Broker("id", 1, first=20))
    assert positions == [Position(20, 0, (Run((9, 0), (30, 2)), Run((40, 0), (40, 0))))] and gaps == [Gap("t", 0, 5, 20)]


class Polled(Broker):
    """A client whose poll raises until it is closed, as one that a broken answer left in disorder."""

    def __init__(self):
        super().__init__("id", 1)
        self._fetcher = Fetcher(MagicMock(), SubscriptionState())
        self._subscription = MagicMock()
        self.fails, self.is_closed = True, False

    def seek(self, *_): ...

    def position(self, tp, _):
        return 3

    def poll(self, **_):
        if self.fails or self.is_closed:
            raise ValueError("broken, or closed")
        return {}

    def close(self, autocommit):
        self.is_closed = True


@pytest.fixture
def source(monkeypatch):
    """A source, and the clients that it made."""
    made = []

    def make(_):
        made.append(Polled())
        return made[-1]

    for name in ("seek", "make_reading_safe"):
        monkeypatch.setattr(consumer, name, lambda *_: None)
    monkeypatch.setattr(consumer, "make_consumer", make)
    settings, _ = load_settings(None, {"kafka.topics": ["t"]}, environ={})
    source = KafkaSource(settings.kafka, settings.ingest)
    source.partitions, source._positions = [TopicPartition("t", 0)], {TopicPartition("t", 0): 3}
    return source, made


def test_after_an_error_of_the_client_a_new_one_reads_on(source):
    source, made = source
    with pytest.raises(SilentBrokerError, match="broken"):
        source.poll(0.1, 10)
    assert len(made) == 2 and made[0].is_closed and not made[1].is_closed
    made[1].fails = False
    assert source.poll(0.1, 10) == {} and source.position(0) == 3


@pytest.mark.parametrize("topic_id, is_remade", [(uuid.UUID(int=1), False), (uuid.UUID(int=2), True), (uuid.UUID(int=0), False), (None, False)])
def test_records_of_a_topic_made_anew_are_not_taken_for_those_of_the_old_one(source, topic_id, is_remade):
    """The client reads on by name and offset."""
    source, made = source
    made[0].fails, made[0]._cluster = False, SimpleNamespace(topic_id={"t": topic_id}.get)
    source._topics = Topics("c", {"t": str(uuid.UUID(int=1))}, (TopicPartition("t", 0),))
    with pytest.raises(consumer.OffsetsLost) if is_remade else nullcontext():
        source.poll(0.1, 10)


def test_an_answer_to_a_fetch_without_a_record_counts_as_an_answer(source):
    source, made = source
    assert source.answered_at == 0.0 and not source.has_asked
    before = time.monotonic()
    made[0]._fetcher._handle_fetch_response(1, {}, before, SimpleNamespace(API_VERSION=4, responses=[]))
    assert before <= source.answered_at <= time.monotonic()
