"""The role `archive` as a process, and what commands say of the store: with the store's credentials in no word of it."""

import os
import random
import threading
import time
from contextlib import closing

import fsspec
import pytest
from typer.testing import CliRunner

from streamd.cli.doctor_checks import run_check
from streamd.cli.main import app
from streamd.daemon.supervisor import Supervisor
from streamd.demo.standin import StandIn
from streamd.errors import SettingsError
from streamd.eventlog.recovery import last_state
from streamd.eventlog.upkeep.holds import ask_to_compact, compact_done
from streamd.eventlog.upkeep.verify import verify_log
from streamd.events import Schema
from streamd.roles import ROLES, check_name, roles_of
from streamd.store import manifests
from streamd.store.archive import Archive, open_archive
from streamd.store.objects import Store
from streamd.store.restore import choose, restore
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from tests.builders import ManualClock, settings, stream, write_log
from tests.crash.daemons import Daemon, wait
from tests.store.test_archive import version
from tests.store.test_store import Away, rich_log

NOBODY = "127.0.0.1:9"


def test_a_leader_with_a_store_has_the_role_and_nobody_else(tmp_path):
    def roles(**log):
        return Supervisor(settings(tmp_path, **{f"log__{k}": v for k, v in log.items()}))._children

    assert [*roles()] == [*roles(name="graph")] == [*roles(store="file:///x")] == [*ROLES]
    assert [*roles(name="graph", store="file:///x")] == [*ROLES, "archive"]
    assert "archive" not in roles_of("graph", "file:///x", "replica")
    for taken in ("archive", "backup"):
        with pytest.raises(Exception, match="another part's name"):
            check_name("serve", taken)


@pytest.fixture
def broker():
    with closing(StandIn()) as one:
        one.create_topic("graph.changelog", 4)
        yield one


@pytest.mark.parametrize("kills", [0, pytest.param(6, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_the_process_keeps_the_store_whatever_kills_it_and_ends_when_told(tmp_path, kills, broker):
    """kill -9 at any time, several times over a store that takes many objects, then a stop."""
    with closing(rich_log(tmp_path / "log")) as log:
        for i in range(40):
            version(tmp_path / "log", f"{i}-1", os.urandom(2_000))
        url = f"file://{tmp_path}/store"
        daemon = Daemon(tmp_path / "log", broker.bootstrap_servers, "events", kafka__client=broker.client, log__name="graph",
                        log__store=url, telemetry__archive_port=0)
        store, draw = Store(url), random.Random(1)
        try:
            for number in range(kills):
                before = set(store.sizes("uploads"))
                version(tmp_path / "log", f"{100 + number}-1", os.urandom(100_000))
                daemon.start("archive")
                wait(lambda before=before: set(store.sizes("uploads")) - before, "it has begun")
                time.sleep(draw.random() * 0.1)
                daemon.kill()
                if manifests.names(store):
                    restore(store, choose(store), tmp_path / f"back{time.time_ns()}")
            said = daemon.output().count("manifest_stored") if kills else 0
            daemon.start("archive")
            wait(lambda: daemon.output().count("manifest_stored") > said, "a manifest is there")
            assert daemon.stop() == 0
        finally:
            if daemon.process.poll() is None:
                daemon.kill()
        restore(store, choose(store), tmp_path / "back")
        assert verify_log(tmp_path / "back")[1] == [] and choose(store).seq == log.state.seq


def test_settings_without_a_store_refuse_the_role(tmp_path):
    for log in ({}, {"log__name": "graph"}, {"log__name": "graph", "log__store": "file:///x", "log__member": "replica"}):
        with pytest.raises(SettingsError, match="nothing to archive"):
            open_archive(settings(tmp_path, **log), Heartbeat(tmp_path, "archive"), threading.Event())


SECRETS = ("sesame", "op%2Fen", "op/en", "envsecret")


def test_credentials_are_in_no_log_heartbeat_metric_error_or_answer(tmp_path, monkeypatch, capfd):
    """They are planted in the URL and in the environment; the store then fails in every way."""
    fsspec.register_implementation("away", Away, clobber=True)
    monkeypatch.setattr("streamd.cli.doctor_checks.STORE_SECONDS", 0.1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "envsecret")
    url = "away://user:sesame@host/x?token=op%2Fen"
    with closing(rich_log(tmp_path / "log")):
        s = settings(tmp_path / "log", log__name="graph", log__store=url, kafka__bootstrap_servers=NOBODY)
        said = []
        archive = open_archive(s, Heartbeat(tmp_path / "log", "archive"), threading.Event())
        archive._store.sleep, archive._store._timeout = lambda seconds: None, 0.1
        for error in (TimeoutError("away://user:sesame@host/x?token=op/en: timed out"), PermissionError("user:sesame may not"),
                      OSError("token=op%2Fen is wrong"), ValueError("op/en"), PermissionError("user:sesame, op/en")):
            def raising(error=error):
                raise error

            monkeypatch.setattr(Away, "fails", staticmethod(raising))
            archive.step()
            archive._retry_at = 0
            said.append(archive.error)
            assert "away://host/x" in archive.error
            assert not run_check("store", s).good
            said.append(run_check("store", s).seen)
        time.sleep(0.3)
        said.append(str(read_beat(tmp_path / "log", "archive")))
        env = {"STREAMD_LOG__STORE": url}
        for words in (["config"], ["compact", "--wait", "0"], ["verify", "--deleted", "user:x"]):
            done = CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path / "log")], env=env)
            said += [done.output, str(done.exception)]
        said.append(str([list(m.collect()) for m in (metrics.archive_rounds, metrics.manifest_at, metrics.archive_bytes)]))
        said += capfd.readouterr()
        for path in (tmp_path / "log").rglob("*"):
            if path.is_file():
                said.append(path.read_bytes().decode(errors="replace"))
    told = "\n".join(said)
    assert "away://host/x" in told and not [secret for secret in SECRETS if secret in told]


def test_doctor_says_whether_the_store_can_be_read_and_written(tmp_path):
    assert run_check("store", settings(tmp_path)).seen == "none is set"
    s = settings(tmp_path / "log", log__name="graph", log__store=f"file://{tmp_path}/store")
    assert "can be read and written, no manifest yet" in run_check("store", s).seen
    with closing(rich_log(tmp_path / "log")):
        from streamd.store.upload import upload

        upload(tmp_path / "log", Store(s.log.store))
    check = run_check("store", s)
    assert check.good and "newest manifest at commit 12" in check.seen and not list((tmp_path / "store/probes").iterdir())
    follower = settings(tmp_path / "log", log__name="graph", log__store=f"file://{tmp_path}/store", log__member="replica")
    assert "can be read, newest" in run_check("store", follower).seen


def test_compact_waits_for_the_store_and_says_for_what(tmp_path):
    env = {"STREAMD_LOG__STORE": f"file://{tmp_path}/store", "STREAMD_LOG__NAME": "graph"}

    def run():
        return CliRunner().invoke(app, ["compact", "--wait", "0.3", "--data-dir", str(tmp_path / "log")], env=env)

    # Of a log without deletes nobody is asked, so no broker is needed here.
    write_log(tmp_path / "log", *stream(50))
    ask_to_compact(tmp_path / "log", 1)
    compact_done(tmp_path / "log", last_state(tmp_path / "log", Schema()).seq)
    done = run()
    assert done.exit_code == 1 and "waiting for the role archive, which does not run" in done.output
    beat = Heartbeat(tmp_path / "log", "archive")
    archive = Archive(tmp_path / "log", Store(env["STREAMD_LOG__STORE"]), None, manifest_seconds=600, clock=ManualClock(), beat=beat)
    beat.touch("x", error="", forgetting="1 uploads to the store are under way")
    done = run()
    assert done.exit_code == 1 and "1 uploads to the store are under way" in done.output
    archive.step()
    done = run()
    assert done.exit_code == 0 and "and from store and changelog" in done.output
