"""Which producers let a broker make a topic that is missing: none of a log's own topics, none of events."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

import streamd
from streamd.demo import player
from streamd.errors import KafkaError, SilentBrokerError
from streamd.exchange.produce import Outgoing, check_topic, send_events
from streamd.ingest import delete_events
from streamd.ingest.dead_letters.sinks import make_dead_letters
from streamd.ingest.kafka import client
from streamd.replica.changelog import kafka as kafka_changelog
from streamd.replica.models import topic as models_topic
from streamd.scoring.topic import KafkaSink
from streamd.server.http.event_forwarding import ACKNOWLEDGED_SECONDS, Forwarder
from tests.builders import settings

ASKED = {"kafka__client": {"allow_auto_create_topics": True, "max_block_ms": 600_000}}


class Producer:
    """Remembers the options of the newest one, and has no topic."""

    DEFAULT_CONFIG = KafkaProducer.DEFAULT_CONFIG
    options: dict
    _sender = SimpleNamespace(force_close=lambda: None, join=lambda seconds: None)

    def __init__(self, **options):
        Producer.options = options

    def send(self, *args, **more):
        raise KafkaTimeoutError("no such topic")

    def partitions_for(self, topic): ...
    def flush(self, *args, **more): ...
    def close(self, *args, **more): ...


def models(s):
    models_topic.KafkaModelsTopic(s.kafka, s.log.name).append(b"")


def produce(s):
    send_events(s.kafka, "typo", iter([Outgoing(b"k", b"v", None)]), "us", 0)


def test_a_topic_that_is_not_there_is_refused_at_once_with_the_way_to_make_it(tmp_path, monkeypatch):
    admin = SimpleNamespace(describe_cluster=dict, describe_topics=lambda names: [{"name": n, "error_code": 3, "partitions": []} for n in names])
    monkeypatch.setattr("streamd.exchange.produce.asking_about_topics", lambda kafka: contextlib.nullcontext(admin))
    with pytest.raises(KafkaError, match="Topic typo does not exist on .*create it, e.g. with kafka-topics.sh --create .* --topic typo"):
        check_topic(settings(tmp_path).kafka, "typo")


PRODUCERS = {
    # file: what makes a producer, whether a broker may make its topic
    "replica/changelog/kafka.py": (lambda s: kafka_changelog.KafkaProducer(s.kafka, "t.changelog", 1 << 20), False),
    "replica/models/topic.py": (models, False),
    "server/http/event_forwarding.py": (lambda s: Forwarder(s.kafka, s.sources, print).open_producer(), False),
    "exchange/produce.py": (produce, False),
    "ingest/delete_events.py": (lambda s: delete_events.send_deletes(s.kafka, delete_events.DeleteTopic("typo", False), ["u"], ["default"]), False),
    "ingest/dead_letters/replay.py": (lambda s: client.make_producer(s.kafka), False),
    "demo/player.py": (lambda s: player.make_producer(s.kafka), False),
    "scoring/topic.py": (lambda s: KafkaSink(s.kafka, "scores"), True),
    "ingest/dead_letters/sinks.py": (lambda s: make_dead_letters(s)._make_producer(), True),
}


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "KafkaProducer", Producer)
    monkeypatch.setattr(models_topic, "make_admin", lambda kafka: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(models_topic, "find_topic", lambda *args: object())

    def make(where, **more):
        try:
            PRODUCERS[where][0](settings(tmp_path, log__name="t", ingest__dead_letter_topic="letters", **more))
        except KafkaError as error:
            assert "no such topic" in str(error)
        return Producer.options
    return make


@pytest.mark.parametrize("where", PRODUCERS)
def test_a_broker_makes_a_topic_only_where_the_docs_leave_it_to_the_broker(made, where):
    assert made(where)["allow_auto_create_topics"] is PRODUCERS[where][1]


@pytest.mark.parametrize("where", ["replica/changelog/kafka.py", "replica/models/topic.py"])
def test_no_option_of_the_client_lets_a_broker_make_one_of_a_logs_own_topics(made, where):
    options = made(where, **ASKED)
    assert options["allow_auto_create_topics"] is False and options["max_block_ms"] == 10_000


def test_a_request_with_events_waits_no_longer_for_a_missing_topic_than_for_an_acknowledgement(made):
    assert made("server/http/event_forwarding.py")["max_block_ms"] == ACKNOWLEDGED_SECONDS * 1000


@pytest.mark.parametrize("why", [
    SilentBrokerError("No broker answers at b:9092: connection refused.", "check kafka.bootstrap_servers."), KafkaTimeoutError("No broker answers at b:9092: connection refused.")])
def test_events_that_no_broker_takes_are_refused_with_one_full_stop_and_the_action_of_the_sender(tmp_path, monkeypatch, why):
    forwarder = Forwarder(settings(tmp_path).kafka, (), print)

    def refuse():
        raise why

    monkeypatch.setattr(forwarder, "open_producer", refuse)
    with pytest.raises(KafkaError) as refused:
        forwarder.produce([(b"u", b"{}")])
    text = str(refused.value)
    assert text.startswith("Kafka did not acknowledge the events: ") and "connection refused. Operator action: send them again" in text
    assert text.count("Operator action") == 1 and ".." not in text


def test_the_table_has_every_producer():
    room = Path(streamd.__file__).parent
    found = {str(p.relative_to(room)) for p in room.rglob("*.py") if "make_producer(" in p.read_text()}
    assert found - {"ingest/kafka/client.py"} == set(PRODUCERS)
