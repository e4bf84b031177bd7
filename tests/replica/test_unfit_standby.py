"""A standby that differs from the leader it would follow: it says so and goes on following, and claims nothing, until it is mended."""

import dataclasses
import errno
import os
import re

import numpy as np
import pytest

from streamd.clock import SystemClock
from streamd.daemon import log_roles as daemon_log
from streamd.errors import (
    CorruptionError,
    DataLossError,
    DiskError,
    KafkaError,
    SchemaError,
    SettingsError,
    StoreError,
)
from streamd.eventlog.writable import check_writable
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.ingest.kafka import consumer
from streamd.replica.leader import fitness, leading
from streamd.replica.leader.fitness import REASONS, Fitness
from streamd.replica.leader.leader import lead
from streamd.schema import EdgeSet, NodeSet
from streamd.storage import Disk
from streamd.telemetry import replica_metrics
from tests.builders import settings
from tests.eventlog import test_crash as life
from tests.replica.test_standby_loop import TIMEOUT, world

__all__ = ["world"]

GROWN = Schema.declared((NodeSet("default", 1), NodeSet("item")),
                        (EdgeSet("default", "default", "default", 2), EdgeSet("buys", "default", "item")), 1)


class FullDisk(Disk):
    def allocate(self, fd, num_bytes, offset=0):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def grown_log(world):
    """The leader starts again with a further set, which this standby's settings lack."""
    world.log.close()
    world.publisher = lead(world.folder / "a", world.topic.producer(), world.topic.reader(), member="a")
    world.publisher._now = lambda: world.now
    world.log = LogWriter(world.folder / "a", GROWN, life.SEGMENT_EDGES, publisher=world.publisher)
    world.topic.turn()
    world.log.show_acknowledged()
    return lambda: setattr(world, "schema", GROWN)


def other_width(world):
    world.schema = Schema(3, 1, 1)
    return lambda: setattr(world, "schema", life.SCHEMA)


def full_disk(world):
    world.disk = FullDisk()
    return lambda: setattr(world, "disk", Disk())


def damaged_keys(world):
    path = world.settings.data_dir / "nodes.keys"
    flip(path, 8)
    return lambda: flip(path, 8)


def short_deletes(world):
    path = world.settings.data_dir / "deletions.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    return lambda: path.write_bytes(data)


def damaged_segment(world):
    path = max((world.settings.data_dir / "edges/default").glob("*.tguf"))
    flip(path, 0)
    return lambda: flip(path, 0)


UNFIT = {
    # what: (how it comes to it, label of the metric, what it says)
    "the schema of before": (grown_log, "schema", "graph|sets"),
    "another width": (other_width, "schema", "3 numbers in the settings"),
    "a full disk": (full_disk, "disk", "No space left"),
    "damaged keys": (damaged_keys, "data", "nodes.keys differs from the journal's checksum"),
    "deletes that end too early": (short_deletes, "data", "deletions.log differs from the journal's checksum"),
    "a damaged segment": (damaged_segment, "data", "tguf"),
}


def shown():
    return {why for why in REASONS if replica_metrics.cannot_lead.labels(why)._value.get()}


@pytest.mark.parametrize("what", UNFIT)
def test_a_standby_that_could_not_lead_follows_and_says_why_until_it_is_mended(world, what):
    harm, reason, says = UNFIT[what]
    world.lead_elsewhere(6)
    world.beats = False
    mends, labels = [], []

    def live():
        if world.now > 1003 and not mends:
            mends.append(harm(world))
            leading.ask_to_lead(world.settings.data_dir, 600)
        if world.now > 1045 and not labels:
            assert world.claims == 0 and leading.is_asked_to_lead(world.settings.data_dir)
            state, detail = world.states[-1]
            assert state == "following" and detail["lag_records"] == 0 and re.search(says, detail["cannot_lead"]), detail
            labels.append(shown())
            mends[0]()
    led = world.run(100, live)
    assert labels == [{reason}]
    assert led is not None and world.claims == 1 and not shown() and 45 < world.took < 60
    assert not list((world.settings.data_dir / "journal").glob("room*"))
    LogWriter(world.settings.data_dir, world.schema, life.SEGMENT_EDGES, publisher=led).close()


def test_a_standby_says_that_it_could_not_lead_while_another_one_leads(world):
    world.lead_elsewhere()
    world.schema = Schema(3, 1, 1)
    assert world.run(5) is None and shown() == {"schema"} and "3 numbers" in world.states[-1][1]["cannot_lead"]


def test_what_could_refuse_is_asked_again_just_before_the_claim(world):
    world.lead_elsewhere(3)
    world.run(5)
    world.beats = False

    def fill():
        if world.now > 1010:
            world.disk = FullDisk()
    assert world.run(4 * TIMEOUT, fill) is None and world.claims == 0 and shown() == {"disk"}


def test_one_that_extends_the_log_may_lead(tmp_path):
    log = LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
    life.live(log, 6)
    log.close()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    check_writable(tmp_path, GROWN, life.SEGMENT_EDGES)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before, "it changes nothing"
    flip(tmp_path / "node_features/updates.rows", 30)
    check_writable(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
    with pytest.raises(CorruptionError, match="updates.rows"):
        check_writable(tmp_path, GROWN, life.SEGMENT_EDGES)


@pytest.mark.parametrize(("error", "reason"), [
    (SchemaError("x"), "schema"), (SettingsError("x"), "settings"), (DiskError("x"), "disk"), (CorruptionError("x"), "data"),
    (DataLossError("x"), "topics"), (KafkaError("x"), ""), (StoreError("x"), "")])
def test_each_refusal_has_its_label_and_what_is_away_is_none(error, reason):
    def check():
        raise error
    one = Fitness(check, SystemClock().monotonic)
    assert one.could_lead(0, is_due=True) == (not reason) and shown() == ({reason} if reason else set())


def test_a_check_is_repeated_seldom_but_where_it_is_due():
    calls = []
    one = Fitness(lambda: calls.append(1), SystemClock().monotonic)
    for now in range(60):
        one.could_lead(now, is_due=False)
    assert len(calls) == 1
    one.could_lead(60, is_due=True)
    assert len(calls) == 2
    one.could_lead(60 + fitness.LOOK_SECONDS, is_due=False)
    assert len(calls) == 3
    failing = Fitness(lambda: calls.append(1) or (_ for _ in ()).throw(DiskError("full")), SystemClock().monotonic)
    calls.clear()
    for now in range(60):
        assert not failing.could_lead(now, is_due=True)
    assert len(calls) == 60 / fitness.RETRY_SECONDS


class Source:
    """The topics of events, of which Kafka lost what the log needs, or all of them."""

    missing: tuple = ()
    closed = 0

    def __init__(self, *_): ...

    def discover(self):
        return self.missing

    def begin(self, progress):
        raise DataLossError(f"Kafka no longer has {progress.positions['t'][0].offset}.")

    def close(self):
        Source.closed += 1


def test_what_kafka_lost_is_asked_before_the_claim_too(tmp_path, monkeypatch):
    """It would refuse only after the claim, and is not started again then."""
    log = LogWriter(tmp_path, Schema(0, 0, 0), life.SEGMENT_EDGES)
    event = dataclasses.replace(life.empty_batch(log.schema), src_E=np.array([1]), dst_E=np.array([2]), time_E=np.array([0]),
                                msg_ED=np.zeros((1, 0), np.float32), new_keys=(None, "a", "b"))
    log.commit(event, life.Progress("c", {"t": "id"}, {"t": {0: life.Position(7)}}), 0)
    log.close()
    monkeypatch.setattr(consumer, "KafkaSource", Source)
    with pytest.raises(DataLossError, match="no longer has 7"):
        daemon_log._check_could_lead(settings(tmp_path))
    daemon_log._check_could_lead(settings(tmp_path, ingest__on_data_loss="continue"))
    monkeypatch.setattr(Source, "missing", ("t",))
    daemon_log._check_could_lead(settings(tmp_path))
    assert Source.closed == 3
    with pytest.raises(SchemaError):
        daemon_log._check_could_lead(settings(tmp_path, stream__edge_feature_dim=2))
