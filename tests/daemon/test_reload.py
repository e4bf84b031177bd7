"""A role that is a process of its own, as in a pod: it takes settings over at SIGHUP, and begins again where another member leads."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import structlog
from structlog.testing import capture_logs

from streamd.daemon import run_role as daemon
from streamd.daemon.reload import reload_at_hangup
from streamd.daemon.run_role import RUN_AGAIN, run_role
from streamd.errors import FencedError
from streamd.telemetry.heartbeat import Heartbeat, leads_here
from streamd.telemetry.logs import LeastLevel
from tests.builders import settings
from tests.processes import soon

SETS = {"graph__edge_sets": {"views": {}}}
MORE_SETS = {"graph__edge_sets": {"views": {}, "buys": {}}}


@pytest.fixture(autouse=True)
def hangups():
    """The handler of before is back after each test."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("role", "then", "again"), [
    ("ingest", MORE_SETS, True), ("train", MORE_SETS, False), ("ingest", SETS, False), ("ingest", MORE_SETS | {"training__epochs": 9}, False)])
def test_ingest_begins_again_with_further_sets_and_other_roles_continue(tmp_path, role, then, again):
    stop = threading.Event()
    with capture_logs() as said:
        begins_again = reload_at_hangup(settings(tmp_path, **SETS), role, lambda: settings(tmp_path, **then), stop)
        os.kill(os.getpid(), signal.SIGHUP)
        soon(lambda: said, "the settings were read")
        soon(lambda: stop.is_set() == begins_again.is_set() == again, "it took them over")
    refused = "training__epochs" in then
    assert [s["event"] for s in said] == ["reload_refused" if refused else "settings_read_again"]


def test_the_least_level_changes_while_the_process_runs(tmp_path):
    level = LeastLevel("warning")
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[level])
    try:
        read = iter([settings(tmp_path, telemetry__log_level="error"), settings(tmp_path, telemetry__log_level="info")])
        reload_at_hangup(settings(tmp_path, telemetry__log_level="warning"), "serve", lambda: next(read), threading.Event())
        for expected, dropped in (("error", True), ("info", False)):
            os.kill(os.getpid(), signal.SIGHUP)
            soon(lambda expected=expected: level.level == expected, "it is taken over")
            for method in ("warning", "exception"):
                if dropped and method == "warning":
                    with pytest.raises(structlog.DropEvent):
                        level(None, method, {})
                else:
                    assert level(None, method, {}) == {}
    finally:
        structlog.configure(processors=before)


def deposed(monkeypatch):
    """A role that finds at once that another member leads."""
    def run(*_):
        raise FencedError("Another process leads.")

    monkeypatch.setattr(daemon, "_run", run)
    monkeypatch.setattr(daemon, "configure_logs", lambda *_: None)
    monkeypatch.setattr(daemon.signal, "signal", lambda *_: None)
    monkeypatch.setattr(daemon, "end_with_supervisor", lambda _: None)


@pytest.mark.parametrize(("member", "status"), [("standby", RUN_AGAIN), ("leader", 3)])
def test_a_standby_that_was_deposed_begins_again_and_counts_as_leader_no_more(tmp_path, monkeypatch, member, status):
    deposed(monkeypatch)
    beat = Heartbeat(tmp_path, "ingest")
    beat.note(leading=True)
    beat.touch("leading")
    assert leads_here(tmp_path)
    assert run_role(settings(tmp_path, log__name="t", log__store="file:///s", log__member=member), "ingest") == status
    assert not leads_here(tmp_path)


def test_a_role_begins_again_in_its_process_and_without_its_locks(tmp_path):
    code = f"""
import os, pathlib, sys
from streamd.cli import main
from streamd.daemon import run_role
from streamd.eventlog.recovery import lock_directory
def run(*_):
    lock_directory(pathlib.Path({str(tmp_path / "lock")!r}))
    print(os.getpid(), flush=True)
    if os.environ.get("AGAIN"):
        return 0
    os.environ["AGAIN"] = "1"
    return run_role.RUN_AGAIN
run_role.run_role = run
main.main()
"""
    # `sys.orig_argv` has the code again, as it has the program of a role.
    done = subprocess.run([sys.executable, "-c", code, "run", "--role", "ingest", "--data-dir", tmp_path / "data"], capture_output=True,
                          text=True, env={k: v for k, v in os.environ.items() if k != "AGAIN"}, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first == second
