"""Versions and moves through a real Apache Kafka, to a server that answers from the replica's directory."""

import json
import shutil
import threading
import uuid
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer, TopicPartition

from streamd.cli.doctor_checks import _changelog
from streamd.clock import SystemClock
from streamd.errors import ChangelogError, FencedError, KafkaError
from streamd.eventlog.journal.changelog_position import ChangelogPosition, PositionFile
from streamd.eventlog.upkeep.holds import asked_to_compact, compact_done
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, Schema, empty_batch
from streamd.ingest.kafka.client import make_admin, make_consumer
from streamd.replica.changelog.topics import find_topic
from streamd.replica.follow_loop import FollowLoop
from streamd.replica.follower.end_offsets import SourceEnds
from streamd.replica.leader.connect import find_changelog, open_topic
from streamd.replica.models import topic as models_topic_module
from streamd.replica.models.follower import ModelsFollower
from streamd.replica.models.topic import KafkaModelsTopic
from streamd.replica.move_requests import compact_everywhere, moves_by_request
from streamd.replica.worker_thread import StepThread
from streamd.server.engine.lag import Completeness
from streamd.store.changelog import models_topic
from streamd.store.objects import Store
from streamd.telemetry import replica_metrics
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from tests.builders import HOUR, settings, stream, write_log
from tests.readings import reading
from tests.replica.models_world import beginning_of, content, follow_log, lead_log
from tests.server.world import SCHEMA, World, ask, wait

pytestmark = pytest.mark.kafka
WHY = {"why": "to see"}


def kafka_topic(settings, make=False):
    return KafkaModelsTopic(settings.kafka, settings.log.name, make)


def begin(settings):
    """What runs beside a trainer that begins now."""
    return beginning_of(settings, lambda: kafka_topic(settings, make=True), Heartbeat(settings.data_dir, "train")).begin()


def test_a_server_on_another_machine_serves_the_trainers_versions(kafka, tmp_path):
    write_log(tmp_path / "trainer", *stream(300), SCHEMA, watermark=100 * HOUR)
    shutil.copytree(tmp_path / "trainer", tmp_path / "replica")
    values = {"log__name": uuid.uuid4().hex, "log__store": f"file://{tmp_path}/store", "kafka__bootstrap_servers": kafka.bootstrap_servers}
    first, second = World(tmp_path / "trainer", **values), World(tmp_path / "replica", **values, log__member="replica")
    shutil.copytree(tmp_path / "trainer", tmp_path / "third", ignore=shutil.ignore_patterns("models"))
    third = World(tmp_path / "third", **values)
    second.state.moves = moves_by_request(second.settings, second.registry, 30)

    # What the changelog does.
    link = SimpleNamespace(leader=None, changelog=tmp_path / "changelog")
    lead_log(first.path, link)

    def is_alike():
        follow_log(second.path, link)
        return content(second.path) == content(first.path) != {}

    def follower():
        return ModelsFollower(second.settings.data_dir, second.settings.holds.lease_seconds, second.registry,
                              kafka_topic(second.settings), Store(values["log__store"]))

    with ExitStack() as stack:
        session = stack.enter_context(closing(begin(first.settings)))
        stack.enter_context(closing(StepThread("follower", follower)))
        for world in (first, second):
            stack.callback(world.stop)
        first.train(2)
        session.on_step("rest")
        wait(is_alike, 60)
        first.start()
        second.start()
        wait(lambda: ask(second)["as_of"]["version"] == ask(first)["as_of"]["version"] == first.registry.champion())
        assert ask(second)["scores"] == ask(first)["scores"]
        pages = [world.client.get("/status.json").json() for world in (first, second)]
        for key in ("windows", "versions", "moves", "champion", "shadow"):
            assert pages[0][key] == pages[1][key] and pages[0][key]
        assert [list(page["roles"]) for page in pages] == [["ingest", "train", "serve", "archive"], ["follow", "serve"]]

        # One request from the replica, and both machines swap.
        older = next(n for n in first.registry.names() if n != first.registry.champion() and first.registry.is_servable(first.registry.manifest(n)))
        assert second.client.post(f"/v1/models/{older}/promote", json=WHY).status_code == 200
        for world in (first, second):
            wait(lambda world=world: ask(world)["as_of"]["version"] == older)
        assert ask(second)["scores"] == ask(first)["scores"]

        # Compaction is asked of both. The server there stores newer state first.
        told = []

        def tell(text):
            told.append(text)
            if asked_to_compact(first.path) is not None:
                compact_done(first.path)

        topic = stack.enter_context(closing(kafka_topic(second.settings)))
        assert compact_everywhere(second.settings, 250, 60, tell, topic)[0] and told

        # The machine of the replica takes over. What the first one learned while it slept is shown to nobody.
        lead_log(third.path, link)
        stack.enter_context(closing(begin(third.settings)))
        wait(lambda: content(third.path) == content(second.path))
        first.train(1)
        with pytest.raises(FencedError, match="claimed term 3"):
            wait(lambda: session.on_step("rest"))
        assert content(third.path) == content(second.path) != content(first.path)


def test_a_topic_that_would_lose_moves_is_refused(kafka, tmp_path):
    s = settings(tmp_path, log__name=uuid.uuid4().hex, kafka__bootstrap_servers=kafka.bootstrap_servers)
    with closing(make_admin(s.kafka)) as admin:
        admin.create_topics({models_topic(s.log.name): {"num_partitions": 1, "configs": {"retention.ms": "1000"}}}, wait_for_metadata=True)
    with pytest.raises(ChangelogError, match="retention"):
        kafka_topic(s)


def test_a_follower_makes_no_topic_and_goes_on_once_the_leader_made_it(kafka, tmp_path):
    s = settings(tmp_path, log__name=uuid.uuid4().hex, log__member="replica", kafka__bootstrap_servers=kafka.bootstrap_servers)
    beat, stop = Heartbeat(tmp_path, "follow"), threading.Event()
    thread = threading.Thread(target=FollowLoop(s.data_dir, s.log, s.kafka, SystemClock(), beat).run, args=(stop,))
    thread.start()
    try:
        wait(lambda: (now := read_beat(tmp_path, "follow")) and now.state == "waiting for leader", 20)
        assert f"no topic {s.log.name}.changelog; the leader creates it" in read_beat(tmp_path, "follow").detail["why"]
        assert reading(replica_metrics.follow_waiting.labels("leader")) == 1 and reading(replica_metrics.follow_waiting.labels("broker")) == 0
        with pytest.raises(KafkaError, match=f"no topic {s.log.name}.models"):
            kafka_topic(s)
        with closing(make_admin(s.kafka)) as admin:
            assert not [name for name in admin.list_topics() if str(name).startswith(s.log.name)]
        open_topic(s.kafka, s.log.name, s.data_dir)
        wait(lambda: read_beat(tmp_path, "follow").state == "following", 20)
        assert reading(replica_metrics.follow_waiting.labels("leader")) == 0
    finally:
        stop.set()
        thread.join()


def test_a_topic_that_was_made_anew_is_another(kafka, tmp_path):
    s = settings(tmp_path, log__name=uuid.uuid4().hex, kafka__bootstrap_servers=kafka.bootstrap_servers)
    first = open_topic(s.kafka, s.log.name, s.data_dir).changelog
    assert first.topic == f"{s.log.name}.changelog" and first.cluster and uuid.UUID(first.topic_id).int
    assert find_changelog(s.kafka, s.log.name, s.data_dir).changelog == first
    with closing(make_admin(s.kafka)) as admin:
        admin.delete_topics([first.topic])
    wait(lambda: find_changelog(s.kafka, s.log.name, s.data_dir) is None, 30)
    again = open_topic(s.kafka, s.log.name, s.data_dir).changelog
    assert again == first._replace(topic_id=again.topic_id) and again.is_other(first)


def test_a_directory_that_has_read_a_lost_changelog_is_refused_and_no_new_one_hides_the_loss(kafka, tmp_path, monkeypatch):
    monkeypatch.setattr("streamd.replica.leader.connect.LOOK_SECONDS", 0.1)
    s = settings(tmp_path, log__name=uuid.uuid4().hex, kafka__bootstrap_servers=kafka.bootstrap_servers)
    first = open_topic(s.kafka, s.log.name, s.data_dir).changelog
    with closing(PositionFile(tmp_path, first)) as file:
        file.write(ChangelogPosition(2, 5, 17))
    assert open_topic(s.kafka, s.log.name, s.data_dir).changelog == first and s.log.name in _changelog(s)
    with closing(make_admin(s.kafka)) as admin:
        admin.delete_topics([first.topic])
        wait(lambda: find_topic(admin, s.kafka, first.topic) is None, 30)
        for look in (lambda: open_topic(s.kafka, s.log.name, s.data_dir), lambda: find_changelog(s.kafka, s.log.name, s.data_dir), lambda: _changelog(s)):
            with pytest.raises(ChangelogError, match="does not exist any more; .* has read it up to offset 17"):
                look()
        assert find_topic(admin, s.kafka, first.topic) is None
        renamed = s.model_copy(update={"log": s.log.model_copy(update={"name": f"{s.log.name}2"})})
        with pytest.raises(ChangelogError, match=f"belongs to topic {first.topic}"):
            open_topic(s.kafka, renamed.log.name, s.data_dir)
        assert find_topic(admin, s.kafka, f"{renamed.log.name}.changelog") is None, "a directory of another changelog makes none either"


def test_a_models_topic_that_lost_its_beginning_is_read_from_where_it_begins(kafka, tmp_path, monkeypatch):
    monkeypatch.setattr(models_topic_module, "ACKNOWLEDGED_SECONDS", 2.0)
    s = settings(tmp_path, log__name=uuid.uuid4().hex, kafka__bootstrap_servers=kafka.bootstrap_servers)
    with closing(kafka_topic(s, make=True)) as topic, closing(make_admin(s.kafka)) as admin:
        for number in range(5):
            topic.append(b"%d" % number)
        assert topic.read(0.0) == [b"0", b"1", b"2", b"3", b"4"]
        admin.delete_records({TopicPartition(models_topic(s.log.name), 0): 3})
        with pytest.raises(KafkaError, match="begins at 3: records were deleted"):
            topic.read(0.0)
        with closing(kafka_topic(s)) as again:
            assert again.read(0.0) == [b"3", b"4"] and again.read(0.0) == []
        admin.delete_topics([models_topic(s.log.name)])
        wait(lambda: find_topic(admin, s.kafka, models_topic(s.log.name)) is None, 30)
        with pytest.raises(KafkaError):
            topic.append(b"5")
        with closing(make_consumer(s.kafka)) as consumer:
            assert not consumer.partitions_for_topic(models_topic(s.log.name))
        assert find_topic(admin, s.kafka, models_topic(s.log.name)) is None, "no client makes the broker make it again"


def test_a_replicas_lag_counts_from_what_kafka_has(kafka, tmp_path):
    name = uuid.uuid4().hex
    s = settings(tmp_path, log__name=name, log__member="replica", kafka__topics=[name], kafka__bootstrap_servers=kafka.bootstrap_servers)
    with closing(make_admin(s.kafka)) as admin:
        admin.create_topics({name: {"num_partitions": 2}}, wait_for_metadata=True)
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.send(name, b"x", partition=0)
        producer.commit_transaction()

    def commit(writer, offset):
        writer.commit(empty_batch(Schema()), Progress(positions={name: {0: Position(offset=offset)}}), writer.watermark)

    write_log(tmp_path, *stream(8))
    writer = LogWriter(tmp_path, Schema(), 100_000)
    ends = SourceEnds(s.data_dir, s.kafka)
    with closing(ends), closing(writer):
        commit(writer, 2)
        ends.step()
        said = json.loads((tmp_path / "roles/follow/ends.json").read_bytes())
        assert said["behind"] == {name: {"0": 4}}

        # The mark of the transaction is no record.
        commit(writer, 3)
        ends.step()
        assert json.loads((tmp_path / "roles/follow/ends.json").read_bytes())["behind"] == {}
        complete = Completeness(tmp_path, follows=True)
        complete.read_report(100.0)
        complete.advance(writer.state, 101.0)
        assert complete.until == json.loads((tmp_path / "roles/follow/ends.json").read_bytes())["time"]
        assert TopicPartition(name, 1) not in ends._positions()
