"""Every setting once with several edge sets: an ingest that starts, seals segments, restarts, deletes and compacts."""

import json
import os
import re
from pathlib import Path

import pytest

from streamd.daemon.log_roles import make_loop
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import Hold, ask_to_compact, asked_to_compact, write_hold
from streamd.eventlog.upkeep.housekeeper import WORKS
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.ingest.kafka import client
from streamd.replica.leader.leader import lead
from streamd.roles import folder_of
from streamd.settings.loading import load_settings, schema_of
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import ManualClock
from tests.ingest.world import FakeSource, World
from tests.replica.twin import Topic

DOCUMENTED = re.findall(r"^\| `([^`]+)` \|", (Path(__file__).parents[2] / "docs/settings.md").read_text(), re.M)
GONE = "gone-for-good"
SETS = {
    "graph.node_sets": {"user": {"features": {"age": "number"}}, "item": {}},
    "graph.edge_sets": {"views": {"source": "user", "target": "item", "features": {"s": "number"}},
                        "buys": {"source": "user", "target": "item"}, "follows": {"source": "user", "target": "user"}},
    "stream.label_dim": 1, "stream.time_unit": "us", "ingest.segment_edges": 8}
"""In all of the lives below, where a setting does not say otherwise."""
MAPPED = {"topic": "events", "time": "us", "edge_set": "follows", "fields": {"src": "a", "dst": "b", "time": "t"}}
WHOLE = {
    "data_dir": None, "sources": [MAPPED | {"topic": "other"}],
    "stream.time_unit": "s", "stream.edge_feature_dim": 4, "stream.node_feature_dim": 3, "stream.label_dim": 0,
    "ingest.start": "latest", "ingest.shard": "1/1", "ingest.on_data_loss": "continue", "ingest.late_policy": "dead_letter",
    "ingest.tombstones": "delete", "ingest.accept_first_times": True, "ingest.max_ahead_seconds": 5, "ingest.merge_wait_seconds": 0, "ingest.idle_timeout_seconds": 0,
    "ingest.commit_interval_seconds": 0.5, "ingest.max_key_bytes": 64, "ingest.max_nodes": 50, "ingest.max_feature": 100,
    "ingest.max_record_bytes": 2000, "ingest.max_batch_bytes": 4000, "ingest.max_record_events": 5, "ingest.segment_edges": 5,
    "ingest.dead_letter_topic": "letters", "ingest.dead_letter_max_bytes": 1000,
    "log.name": "t", "retention.max_age_seconds": 10, "retention.max_bytes": 1, "holds.lease_seconds": 60,
    "graph.node_sets": {"user": {"features": {"age": "number"}}, "item": {}, "place": {"features": {"x": "number"}}},
    "graph.edge_sets": SETS["graph.edge_sets"] | {"likes": {"source": "user", "target": "item"}}}
"""Settings that the writer of a log, its decoder, letters or housekeeping read: a life for each."""
FILE = str(Path(__file__))
REST = {
    "device": "cpu", "kafka.bootstrap_servers": "k:1", "kafka.topics": ["other", "events"], "kafka.group_id": "g", "kafka.client": {"retry_backoff_ms": 7},
    "kafka.client_file": FILE, "schema_registry.url": "https://r:1", "schema_registry.user": "u", "schema_registry.secret": "s",
    "schema_registry.secret_file": None, "schema_registry.ca_file": FILE, "schema_registry.cert_file": FILE, "schema_registry.key_file": FILE,
    "schema_registry.timeout_seconds": 3, "log.store": "s3://b/f", "log.member": "standby", "log.manifest_seconds": 60,
    "leader.timeout_seconds": 20, "windows.width_seconds": 7, "windows.max_events": 9, "windows.merge_after": 0, "gpu.placement": "hybrid",
    "gpu.graph_bytes": 10**6, "gpu.cache_rows": 5, "gpu.cache_policy": "fifo", "gpu.mixed_precision": True, "graph.max_block_entries": 32,
    "graph.keep_in_memory_seconds": 9, "model.name": "pair", "model.pair_facts": True, "model.labels": "regression", "model.dim": 8,
    "model.time_dim": 4, "model.heads": 1, "model.direction": "out", "model.neighbors": 3, "model.id_rows": 5, "model.snapshots": 2,
    "model.snapshot_seconds": 60, "model.memory_chunk": 40, "model.max_pairs": 50, "model.half_lives_seconds": [1, 2, 3, 4, 5],
    "training.epochs": 1, "training.min_steps": 1, "training.learning_rate": 0.01, "training.replay": "recent", "training.replay_share": 0.5,
    "training.replay_events": 10, "training.replay_capacity_events": 20, "training.recent_negatives": 0.5, "training.tail_share": 0.2, "training.seed": 1, "training.threads": 2,
    "training.ranks": 2, "training.rank_timeout_seconds": 9, "training.mesh": [1, 2], "training.checkpoint_dir": "/c", "training.nice": 0,
    "training.nightly_twin": False, "bootstrap.max_events": 0, "bootstrap.epochs": 1, "registry.keep": 3, "registry.gate_events": 50,
    "server.device": "auto", "server.host": "localhost", "server.port": 8001, "server.page_note": "staging", "server.workers": 2, "server.api_keys": ["a" * 20],
    "server.api_keys_file": FILE, "server.admin_keys": ["b" * 20], "server.admin_keys_file": FILE, "server.tls_cert_file": FILE,
    "server.tls_key_file": FILE, "server.max_candidates": 9, "server.max_queue": 9, "server.max_batch": 3, "server.deadline_seconds": 2,
    "server.max_connections": 9, "server.max_connections_per_address": 5, "server.idle_seconds": 9, "server.drain_seconds": 1,
    "server.score_topic": "scores", "server.score_max_age_seconds": 9, "server.alarm_topic": "alarms", "server.alarms_per_day": 3, "server.alarm_quiet_seconds": 60, "trials.name": "ranking",
    "trials.arms": {"champion": 0.5, "rule": 0.5}, "trials.topic": "shown", "trials.horizon_seconds": 60, "trials.edge_set": "views", "telemetry.trial_port": 0, "telemetry.log_level": "debug", "telemetry.log_format": "json",
    "telemetry.access_log": True, "telemetry.ingest_port": 0, "telemetry.train_port": 0, "telemetry.archive_port": 0,
    "telemetry.score_port": 0, "telemetry.serve_port": 0, "telemetry.score_slo_seconds": 1,
    "mlflow.tracking_uri": "file:///tmp/runs", "mlflow.experiment": "e",
    "sql.max_memory_bytes": 1 << 20}
"""Settings that say how other roles work, or how brokers are reached: one life with all of them. None: another one excludes it."""


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """No power is cut here, and syncs would take most of the time."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class Acknowledging:
    """A producer of dead letters whose broker takes all of them."""

    def send(self, *_, **__):
        return self

    def flush(self, _): ...

    def get(self, _): ...


class Life:
    """An ingest with the settings given, from a first start to the end of a compaction."""

    def __init__(self, path, values):
        self.path, self.clock, self.sent = path, ManualClock(), 0
        self.settings = load_settings(None, {"data_dir": path / "log", **SETS, **values}, environ={})[0]
        self.topics = ("events", "other") if self.settings.sources else ("events",)
        self.parts = [[] for _ in self.topics]
        self.source = FakeSource(self.clock, self.parts, self.topics)
        self.changelog = Topic()
        self.unit = {"s": 10**6, "us": 1}[self.settings.stream.time_unit]

    def start(self):
        s = self.settings
        publisher = None
        if s.log.name:
            publisher = lead(s.data_dir, self.changelog.producer(), self.changelog.reader(), member="m")
        self.writer = LogWriter(s.data_dir, schema_of(s), s.ingest.segment_edges, publisher=publisher)
        self.loop = make_loop(s, self.writer, self.clock, Heartbeat(s.data_dir, "ingest"))
        assert self.loop.begin(self.source)

    def send(self, *events):
        """Records a second after one another, of an event each."""
        for event in events:
            self.clock.advance(1)
            body = json.dumps(event | {"time": self.clock.now_us() // self.unit}).encode()
            World.send(self, 0, value=body)
        self.turn(2)

    def edges(self, count, users=("a", GONE, "b")):
        """Events of all sets in turn."""
        for number in range(count):
            user, number = users[number % len(users)], number % 3
            self.send({"edge_set": ["views", "buys", "follows"][number], "src": user, "dst": ["x", "y", "a"][number],
                       **({"features": [float(number)]} if number == 0 else {})})
        self.sent += count

    def turn(self, seconds):
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.changelog.turn()
            assert self.loop.step(self.source)

    def stop(self):
        while self.loop.commit(self.source, final=True):
            pass
        self.writer.close()


def failures():
    return sum(metrics.INGEST.get_sample_value("streamd_housekeeping_errors_total", {"work": work}) or 0 for work in WORKS)


def live(path, values):
    """Returns: the reader of the log at the end."""
    life, failed = Life(path, values), failures()
    life.start()
    life.send({"type": "node", "node_set": "user", "id": GONE, "features": [1]})
    life.edges(11)
    life.send({"edge_set": "buys", "src": GONE}, *([{"type": "label", "node_set": "user", "node": "a", "target": [1]}]
                                                 if life.settings.stream.label_dim else []))
    assert life.writer.state.sealed or life.writer.state.first_edge, "a segment is sealed"
    life.stop()

    # A role held the log, and does not any more. Then the one that is deleted.
    life.start()
    life.edges(6)
    write_hold(life.settings.data_dir, "train", Hold(life.writer.num_edges, life.writer.num_edges))
    if "sources" in values:
        World.send(life, 1, value=json.dumps({"a": "b", "b": "a", "t": life.clock.now_us()}).encode())
        life.sent += 1
    life.send({"type": "delete", "node_set": "user", "node": GONE})
    (folder_of(life.settings.data_dir, "train") / "hold").unlink()
    ask_to_compact(life.settings.data_dir, life.writer.num_edges)
    for _ in range(40):
        if asked_to_compact(life.settings.data_dir) is None:
            break
        life.turn(1)
    assert asked_to_compact(life.settings.data_dir) is None and failures() == failed
    life.edges(3, ("a", "b"))
    life.turn(2)
    life.stop()

    data = life.settings.data_dir
    assert verify_log(data)[1] == [] and not [p for p in data.rglob("*") if p.is_file() and GONE.encode() in p.read_bytes()]
    reader = LogReader.open(data)
    assert reader.num_edges == life.sent and reader.state.progress.positions["events"][0].offset == len(life.parts[0])
    hidden = reader.hidden(reader.first_edge, reader.num_edges)
    whole = [user == GONE for user in [*("a", GONE, "b") * 4][:11] + ["a", GONE, "b"] * 2] + [False] * (life.sent - 17)
    assert hidden.tolist() == whole[reader.first_edge:]
    return reader


def test_a_setting_that_is_new_says_whether_ingest_reads_it():
    assert WHOLE.keys() | REST.keys() == set(DOCUMENTED) and not WHOLE.keys() & REST.keys()


@pytest.mark.parametrize("name", WHOLE)
def test_an_ingest_of_several_sets_lives_with_this_setting(tmp_path, name, monkeypatch):
    monkeypatch.setattr(client, "make_producer", lambda *_, **more: Acknowledging())
    reader = live(tmp_path, {} if name == "data_dir" else {name: WHOLE[name]})
    assert bool(reader.first_edge) == name.startswith("retention")


def test_an_ingest_of_several_sets_lives_with_all_settings_of_the_other_roles(tmp_path):
    live(tmp_path, {"log.name": "t"} | {name: value for name, value in REST.items() if value is not None})
