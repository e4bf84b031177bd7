"""What `streamd doctor` says stops a run, and what does not."""

import json
import os
import resource
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from streamd.cli import doctor_checks as doctor
from streamd.cli import doctor_roles
from streamd.cli.doctor_checks import run_check
from streamd.cli.main import app
from streamd.demo.broker import free_port
from streamd.errors import KafkaError
from streamd.events import Schema
from streamd.ingest.kafka.topic_watch import Topics
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import SECOND, settings, stream, write_log
from tests.decode.registry import Registry


def kafka_says(monkeypatch, topics=None, newest_us=0):
    def asked(*_, times=False):
        if topics is None:
            raise KafkaError("nobody answers")
        return topics, newest_us if times else 0

    monkeypatch.setattr(doctor, "ask_broker", asked)


def test_topics_that_do_not_exist_are_named_with_what_makes_them(tmp_path, monkeypatch):
    kafka_says(monkeypatch, Topics("c", {}, (), missing=("rides",)))
    check = run_check("broker", settings(tmp_path, kafka__topics=["rides"]))
    assert not check.good and "topic 'rides' does not exist" in check.seen and "--create" in check.seen
    kafka_says(monkeypatch)
    assert run_check("broker", settings(tmp_path)).seen == "nobody answers"


def test_each_check_is_printed_as_it_ends(tmp_path, monkeypatch):
    seen = []

    def look(_):
        seen.append(sys.stdout.buffer.getvalue().decode())
        return 'drop_keys: ["nan"], [red]'

    monkeypatch.setattr(doctor, "CHECKS", {"first": look, "second": look})
    done = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path)], env={"COLUMNS": "100"})
    lines = [line.rstrip().split(maxsplit=2) for line in done.stdout.splitlines()]
    assert done.exit_code == 0 and lines == [["check", "result", "finding"], *([name, "good", 'drop_keys: ["nan"], [red]'] for name in ("first", "second"))]
    assert "first" not in seen[0] and "first" in seen[1] and "second" not in seen[1]


@pytest.mark.parametrize("below", ["", "below/it"])
def test_a_data_dir_that_is_a_file_is_bad(tmp_path, below):
    (tmp_path / "file").write_text("")
    check = run_check("data directory", settings(tmp_path / "file" / below))
    assert not check.good and "no directory that this user may write" in check.seen


def test_feature_widths_are_compared_with_the_logs(tmp_path):
    assert "no log yet" in run_check("feature widths", settings(tmp_path)).seen
    write_log(tmp_path, *stream(50), Schema(2, 0, 0))
    assert run_check("feature widths", settings(tmp_path, stream__edge_feature_dim=2)).good
    check = run_check("feature widths", settings(tmp_path, stream__edge_feature_dim=3))
    assert not check.good and "stream.edge_feature_dim" in check.seen and "2 numbers in the log, 3 numbers in the settings" in check.seen


def test_a_clock_behind_kafkas_newest_record_or_else_the_logs_newest_event_is_bad(tmp_path, monkeypatch):
    kafka_says(monkeypatch)
    assert "nothing to compare" in run_check("clock", settings(tmp_path)).seen
    src, dst, when = stream(50)
    write_log(tmp_path / "past", src, dst, when)
    assert "not behind the log's newest event" in run_check("clock", settings(tmp_path / "past")).seen
    write_log(tmp_path / "future", src, dst, when + int(time.time() + 3600) * SECOND)
    check = run_check("clock", settings(tmp_path / "future"))
    assert not check.good and "behind the log's newest event" in check.seen
    for ahead, good in ((30, True), (3600, False)):
        kafka_says(monkeypatch, Topics("c", {}, ()), int((time.time() + ahead) * 1e6))
        check = run_check("clock", settings(tmp_path))
        assert check.good is good and "Kafka's newest record" in check.seen


def test_a_port_in_use_is_bad_unless_the_role_itself_uses_it(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        s = settings(tmp_path, server__port=0, telemetry__train_port=other.getsockname()[1])
        check = run_check("ports", s)
        assert not check.good and "telemetry.train_port" in check.seen
        Heartbeat(tmp_path, "train").touch("waiting")
        check = run_check("ports", s)
        assert check.good and "used by train, which runs" in check.seen
    assert "free for train" in run_check("ports", s).seen


def test_two_roles_that_run_here_with_one_port_are_bad_and_both_settings_are_named(tmp_path):
    port = free_port()
    same = {"server__port": free_port(), "telemetry__ingest_port": port, "telemetry__train_port": port}
    check = run_check("ports", settings(tmp_path, **same))
    assert not check.good and check.seen.startswith(f"telemetry.ingest_port and telemetry.train_port give ingest and train the same port, {port}.")
    replica = run_check("ports", settings(tmp_path, **same, log__name="trips", log__member="replica"))
    assert replica.good and f"{port} free for follow" in replica.seen, "no trainer runs on a replica"
    workers = settings(tmp_path, server__port=free_port(), server__workers=2, telemetry__ingest_port=port, telemetry__serve_port=port - 1)
    assert "telemetry.ingest_port and telemetry.serve_port give ingest and serve-worker-1 the same port" in run_check("ports", workers).seen


def test_several_errors_in_the_options_of_the_client_have_a_line_each(tmp_path):
    seen = run_check("broker", settings(tmp_path, kafka__client={"sasl_mechanisms": "PLAIN", "ssl_ca": "x"})).seen
    assert [line[:17] for line in seen.splitlines()] == ["The settings have", "- kafka.client ha", "- kafka.client ha"]
    run = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path)], env={"STREAMD_KAFKA__CLIENT": '{"ssl_ca": "x", "foo": 1}'})
    assert "\\n" not in run.output and "- kafka.client has 'foo'" in run.output


def test_a_line_end_in_data_from_outside_is_escaped(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", {"keys": lambda _: "the key a\nb is odd"})
    assert run_check("keys", settings(tmp_path)).seen == "the key a\\nb is odd"


def test_a_replica_is_asked_for_the_ports_of_the_roles_that_run_there(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        s = settings(
            tmp_path,
            server__port=0,
            telemetry__ingest_port=port,
            telemetry__train_port=port,
            log__name="trips",
            log__member="replica",
        )
        check = run_check("ports", s)
        assert not check.good and "follow cannot listen" in check.seen
        assert "telemetry.ingest_port" in check.seen
        Heartbeat(tmp_path, "follow").touch("following")
        check = run_check("ports", s)
        assert check.good and f"{port} used by follow, which runs" in check.seen
    assert "train" not in check.seen and "ingest" not in check.seen


def test_a_role_whose_process_is_stopped_is_bad(tmp_path, monkeypatch):
    Heartbeat(tmp_path, "train").touch("waiting")
    assert run_check("roles", settings(tmp_path)).seen == "train: waiting"
    monkeypatch.setattr(doctor_roles, "time", SimpleNamespace(time=lambda: time.time() + 35.4))
    check = run_check("roles", settings(tmp_path))
    assert not check.good and "train is stopped or stuck: its last heartbeat is 3" in check.seen


def test_what_heartbeats_have_of_a_page_without_a_server_is_bad_while_a_role_runs(tmp_path):
    s = settings(tmp_path)
    assert run_check("troubles", s).seen == "none; no role runs here"
    # A refusal counts until the next start, which may have other settings.
    refused = Heartbeat(tmp_path, "ingest")
    refused.touch("refused", why="another cluster")
    beat = tmp_path / "roles/ingest/heartbeat.json"
    beat.write_text(json.dumps(json.loads(beat.read_text()) | {"pid": 2**22 + 1}))
    check = run_check("troubles", s)
    assert check.result[0] == "look" and check.seen == "ingest refused its data 0 s ago: another cluster"
    Heartbeat(tmp_path, "train").touch("waiting")
    assert not run_check("troubles", s).good and "ingest: refused" in run_check("roles", s).seen
    assert run_check("roles", s).result[0] == "look"

    Heartbeat(tmp_path, "ingest").touch("topic missing", missing_topics=["rides"], missing_seconds=90.0, was_read=True)
    check = run_check("troubles", s)
    assert not check.good and "has no topic rides (deleted?), for 90 s" in check.seen
    Heartbeat(tmp_path, "ingest").touch("waiting for the clock")
    assert run_check("troubles", s).result[0] == "look"
    Heartbeat(tmp_path, "ingest").touch("running")
    assert run_check("troubles", s).seen == "none"


def test_several_servers_report_a_trouble_once(tmp_path):
    for name, seconds in (("serve", 11), ("serve-worker-1", 12)):
        beat = Heartbeat(tmp_path, "serve", name)
        beat.note(troubles=[{"text": f"Kafka has not answered for {seconds} s", "is_bad": True, "detail": ""}])
        beat.touch("ready")
    assert run_check("troubles", settings(tmp_path)).seen == "Kafka has not answered for 11 s"


@pytest.mark.parametrize(("soft", "good"), [(1024, True), (256, False), (resource.RLIM_INFINITY, True)])
def test_a_limit_of_open_files_below_what_may_be_needed_is_bad(tmp_path, monkeypatch, soft, good):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 4096))
    check = run_check("file limit", settings(tmp_path))
    assert check.good is good and ("ulimit -n" in check.seen) is not good


def test_settings_that_the_model_does_not_use_are_said_but_stop_nothing(tmp_path):
    check = run_check("model", settings(tmp_path, model__name="sage", model__snapshots=9))
    assert check.good and "sage, which does not use model.time_dim, model.snapshots" in check.seen


def test_the_schema_registry_is_asked_where_a_source_needs_it(tmp_path):
    registry = Registry()
    assert run_check("schema registry", settings(tmp_path)).seen == "no source needs one"
    source = {"topic": "events", "format": "avro", "time": "ms", "fields": {"src": "a", "dst": "b", "time": "c"}}
    s = settings(tmp_path, schema_registry__url=registry.url, sources=[source])
    assert run_check("schema registry", s).good
    registry.fault = (401, "application/json", b"{}")
    check = run_check("schema registry", s)
    registry.stop()
    assert not check.good and "refuses our credentials" in check.seen


def test_more_ranks_than_cores_and_a_mesh_that_they_do_not_make_are_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert run_check("ranks", settings(tmp_path, training__threads=8)).good, "one rank may have more threads than there are cores"
    assert run_check("ranks", settings(tmp_path, training__ranks=4, training__mesh=[2, 2])).good
    check = run_check("ranks", settings(tmp_path, training__ranks=3, training__threads=2))
    assert not check.good and "lower training.ranks" in check.seen and "2 threads on cores" in check.seen
    check = run_check("ranks", settings(tmp_path, training__ranks=2, training__mesh=[1, 3]))
    assert not check.good and "1 x 3 ranks" in check.seen


def test_ranks_of_torchrun_that_share_its_store_are_bad(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    check = run_check("ranks", settings(tmp_path))
    assert not check.good and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in check.seen
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert run_check("ranks", settings(tmp_path)).good


def test_a_deleted_topic_is_not_to_be_created_again_without_the_setting_that_accepts_it(tmp_path, monkeypatch):
    s = settings(tmp_path, kafka__topics=["rides", "new"])
    write_log(tmp_path, *stream(20))
    monkeypatch.setattr(doctor_roles, "topics_read", lambda settings: {"rides": {}})
    monkeypatch.setattr(doctor, "ask_broker", lambda settings: (SimpleNamespace(missing=("rides", "new")), None))
    seen = run_check("broker", s).seen
    assert "'rides' no longer exists" in seen and "set ingest.on_data_loss: continue; topic 'new' does not exist" in seen
