"""The supervisor: which ends of its roles end it, which are tried again, and which leave the others alone."""

import ast
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import streamd
from streamd.daemon import heartbeat_watch, supervisor
from streamd.daemon import run_role as daemon
from streamd.daemon.role_lock import lock_name
from streamd.daemon.run_role import run_role
from streamd.daemon.supervisor import REFUSED, ROLE_REFUSED, Supervisor, make_data_dir
from streamd.errors import LockedError, SettingsError
from streamd.eventlog.writer import LogWriter
from streamd.processes import PYTHON
from streamd.roles import ROLES, make_folder
from streamd.settings.loading import schema_of
from streamd.telemetry.heartbeat import read_beat
from tests.builders import settings

BEAT = """
import json, os, time
beat = {"role": "x", "state": "running", "pid": os.getpid(), "time": time.time(), "detail": {}}
open(os.environ["BEAT"], "w").write(json.dumps(beat))
"""


class Roles:
    """Stands in for `subprocess.Popen`: each start of a role ends with the next of its statuses, then runs for ever.
    beats: data directory in which the first start of each leaves a heartbeat, None for no heartbeat."""

    def __init__(self, monkeypatch, beats=None, **ends):
        self.ends, self.started, popen = ends, [], supervisor.subprocess.Popen
        self.newest, self.handlers, self.environments = {}, {}, []

        def start(command, env):
            role = command[-1]
            self.started.append(role)
            self.environments.append(env)
            statuses = self.ends.get(role, [])
            code = BEAT if beats and self.started.count(role) == 1 else ""
            code += f"raise SystemExit({statuses.pop(0)})" if statuses else "import time; time.sleep(600)"
            beat = str(beats / f"roles/{role}/heartbeat.json") if beats else ""
            self.newest[role] = popen([sys.executable, "-c", code], env=env | {"BEAT": beat})
            return self.newest[role]

        monkeypatch.setattr(supervisor.subprocess, "Popen", start)
        monkeypatch.setattr(supervisor.signal, "signal", self.handlers.__setitem__)
        monkeypatch.setattr(supervisor, "MAX_BACKOFF_SECONDS", 0.01)

    def watched(self, daemon, until=lambda: False, seconds=20):
        """Run a supervisor, and send it SIGTERM when something is true or after so long. Returns: its exit status."""
        ended = threading.Event()

        def watch():
            deadline = time.monotonic() + seconds
            while not until() and time.monotonic() < deadline:
                if ended.wait(0.02):
                    return
            self.handlers[signal.SIGTERM](signal.SIGTERM, None)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return daemon.run()
        finally:
            ended.set()
            watcher.join()


def test_a_role_that_refuses_its_data_stays_down_and_the_others_go_on(tmp_path, monkeypatch):
    roles = Roles(monkeypatch, ingest=[ROLE_REFUSED])
    with capture_logs() as said:
        status = roles.watched(Supervisor(settings(tmp_path)), lambda: any(x["event"] == "role_refused" for x in said), 10)
    assert status == 0 and roles.started == ["ingest", "train", "serve"]
    ends = {role: process.returncode for role, process in roles.newest.items()}
    assert ends == {"ingest": ROLE_REFUSED, "train": -signal.SIGTERM, "serve": -signal.SIGTERM}


@pytest.mark.parametrize("role", ["ingest", "train", "serve"])
def test_settings_that_one_role_refuses_end_them_all(tmp_path, monkeypatch, role):
    roles = Roles(monkeypatch, **{role: [REFUSED]})
    assert roles.watched(Supervisor(settings(tmp_path))) == REFUSED


def test_where_all_roles_refuse_the_daemon_ends(tmp_path, monkeypatch):
    roles = Roles(monkeypatch, ingest=[ROLE_REFUSED], train=[1, ROLE_REFUSED], serve=[ROLE_REFUSED])
    assert roles.watched(Supervisor(settings(tmp_path))) == REFUSED


def test_a_role_that_dies_after_it_was_well_is_started_again(tmp_path, monkeypatch):
    for role in ROLES:
        make_folder(tmp_path, role)
    roles = Roles(monkeypatch, tmp_path, train=[1, -9, 1, 1])
    status = roles.watched(Supervisor(settings(tmp_path)), lambda: roles.started.count("train") == 5, 10)
    assert status == 0 and roles.started.count("train") == 5 and roles.started.count("serve") == 1


def test_a_role_that_dies_three_times_before_its_first_heartbeat_ends_the_daemon(tmp_path, monkeypatch):
    roles = Roles(monkeypatch, train=[1, -9, 1])
    assert roles.watched(Supervisor(settings(tmp_path))) == REFUSED
    assert roles.started.count("train") == 3 and roles.started.count("serve") == 1


@pytest.mark.parametrize("below", ["", "below"])
def test_a_data_dir_that_is_a_file_is_refused_in_words(tmp_path, monkeypatch, below):
    (tmp_path / "file").write_text("")
    roles = Roles(monkeypatch)
    with pytest.raises(SettingsError, match="data_dir .*file.* cannot be made: .*irectory"):
        Supervisor(settings(tmp_path / "file" / below)).run()
    assert roles.started == []


def test_roles_with_one_port_are_refused_before_any_starts(tmp_path, monkeypatch):
    roles = Roles(monkeypatch)
    s = settings(tmp_path, telemetry__ingest_port=9200, telemetry__train_port=9200)
    with pytest.raises(SettingsError, match="telemetry.ingest_port and telemetry.train_port give ingest and train the same port, 9200"):
        Supervisor(s).run()
    assert roles.started == []
    assert roles.watched(Supervisor(s, ("train", "serve")), lambda: len(roles.started) == 2) == 0, "those that do not run may share it"


def test_a_data_dir_that_may_not_be_written_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(SettingsError, match="cannot be written by user"):
        make_data_dir(tmp_path)


def test_a_role_says_in_words_which_path_it_cannot_use(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "configure_logs", lambda *_: None)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    monkeypatch.setattr(daemon, "end_with_supervisor", lambda _: None)
    monkeypatch.delenv(daemon.SUPERVISED_BY, raising=False)
    (tmp_path / "roles").write_text("in the way")
    with capture_logs() as said:
        assert run_role(settings(tmp_path), "ingest") == 1
        assert run_role(settings(tmp_path / "roles"), "ingest") == REFUSED
    assert (said[-2]["event"], said[-2]["path"]) == ("path_not_usable", str(tmp_path / "roles/ingest"))
    assert "cannot be made" in said[-1]["error"]


def test_a_second_server_of_a_name_is_refused_and_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv(daemon.SUPERVISED_BY, raising=False)
    stop = threading.Event()
    held = [lock_name(tmp_path, name, stop) for name in ("serve", "serve-2")]
    with pytest.raises(LockedError, match=rf"roles/serve-2 .* process {os.getpid()}.*--name of its own"):
        lock_name(tmp_path, "serve-2", stop)
    monkeypatch.setenv(daemon.SUPERVISED_BY, "1")
    threading.Timer(0.3, stop.set).start()
    assert lock_name(tmp_path, "serve", stop) is None, "under a supervisor it waits for one that ends"
    for lock in held:
        os.close(lock)
    os.close(lock_name(tmp_path, "serve", threading.Event()))


EVIL = "import pathlib; pathlib.Path('was_here').touch(); raise SystemExit(77)"


def test_no_child_imports_what_lies_in_the_current_directory(tmp_path, monkeypatch):
    for name in ("json", "torch", "streamd"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    s = settings(tmp_path / "data", kafka__client={"no_such_key": 1})
    assert Supervisor(s, ("ingest",)).run() == REFUSED, "it came as far as its settings"
    found = subprocess.run([*PYTHON, "-c", "from importlib.util import find_spec; print(find_spec('torch').origin)"],
                           capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in found and not (tmp_path / "was_here").exists()


def test_every_child_that_is_a_python_is_started_so():
    root = Path(streamd.__file__).parent
    named = {path.name for path in root.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"}
    assert named == {"processes.py"}


SETS = {"graph__edge_sets": {"views": {"features": {"seconds": "number"}}}}
MORE_SETS = {"graph__edge_sets": {"views": {"features": {"seconds": "number", "clicks": "number"}}, "buys": {}}}


@pytest.mark.parametrize(("then", "says"), [
    (MORE_SETS, ""), (SETS | {"training__epochs": 7}, "Only a restart takes over training.epochs"),
    ({"graph__edge_sets": {"buys": {}}}, "The log has the edge sets views, the settings say buys"), (None, "unknown")])
def test_at_a_hangup_ingest_alone_starts_again_with_further_sets_and_nothing_else_is_taken(tmp_path, monkeypatch, then, says):
    before = settings(tmp_path, **SETS)
    LogWriter(tmp_path, schema_of(before)).close()

    def read():
        if then is None:
            raise SettingsError("a setting is unknown")
        return settings(tmp_path, **then)

    roles = Roles(monkeypatch)
    told = []

    def until():
        if len(roles.started) == 3 and not told:
            told.append(True)
            roles.handlers[signal.SIGHUP](signal.SIGHUP, None)
        return any(x["event"] == "reload_refused" for x in said) if says else len(roles.started) == 4

    with capture_logs() as said:
        roles.watched(Supervisor(before, read=read), until, 10)
    refused = [x["error"] for x in said if x["event"] == "reload_refused"]
    if says:
        assert len(refused) == 1 and says in refused[0] and len(roles.started) == 3
    else:
        assert refused == [] and roles.started == [*ROLES, "ingest"]
        assert "clicks" in roles.environments[-1]["STREAMD_GRAPH__EDGE_SETS"]


def test_a_role_that_was_well_before_a_hangup_is_started_again_however_often_it_dies_after(tmp_path, monkeypatch):
    before = settings(tmp_path, **SETS)
    LogWriter(tmp_path, schema_of(before)).close()
    for role in ROLES:
        make_folder(tmp_path, role)
    roles = Roles(monkeypatch, tmp_path, ingest=['__import__("time").sleep(600)', -9, -9, -9, -9])
    beat = tmp_path / "roles/ingest/heartbeat.json"

    def until():
        if beat.exists() and len(roles.started) == 3:
            roles.handlers[signal.SIGHUP](signal.SIGHUP, None)
        return roles.started.count("ingest") == 6

    assert roles.watched(Supervisor(before, read=lambda: settings(tmp_path, **MORE_SETS)), until, 15) == 0
    assert roles.started.count("ingest") == 6


def test_a_hangup_because_the_terminal_was_closed_ends_the_daemon(tmp_path, monkeypatch):
    """The standard input is a terminal, then one without its other end."""
    master, terminal = pty.openpty()
    monkeypatch.setattr(supervisor.os, "isatty", lambda _, really=os.isatty: really(terminal))
    roles, closed = Roles(monkeypatch), []

    def until():
        if len(roles.started) == 3 and not closed:
            closed.append(os.close(master))
            roles.handlers[signal.SIGHUP](signal.SIGHUP, None)
        return False

    begun = time.monotonic()
    assert roles.watched(Supervisor(settings(tmp_path)), until, 20) == 0 and time.monotonic() - begun < 15
    assert closed and roles.started == list(ROLES)
    os.close(terminal)


LIVING = """
import sys, time
from pathlib import Path
from streamd.telemetry import heartbeat
heartbeat.HEARTBEAT_SECONDS = 0.1
beat = heartbeat.Heartbeat(Path(sys.argv[1]), "train")
beat.touch("compiling")
time.sleep(600)
"""


def test_a_role_that_is_stopped_is_killed_and_started_again_and_one_that_works_for_long_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(heartbeat_watch, "HEARTBEAT_SECONDS", 0.1)
    popen = subprocess.Popen
    roles = Roles(monkeypatch)
    start = supervisor.subprocess.Popen
    children = []

    def begin(command, env):
        if command[-1] != "train":
            return start(command, env)
        roles.started.append("train")
        children.append(popen([sys.executable, "-c", LIVING, str(tmp_path)]))
        return children[-1]

    monkeypatch.setattr(supervisor.subprocess, "Popen", begin)
    begun = time.monotonic()
    stopped = []

    def until():
        beat = read_beat(tmp_path, "train")
        if not stopped and beat and beat.pid == children[0].pid and time.monotonic() - begun > 4:
            assert children[0].poll() is None and beat.age_seconds > 2.0, "its loop does not turn, but it lives"
            stopped.append(children[0].send_signal(signal.SIGSTOP))
        return len(children) == 2

    with capture_logs() as said:
        assert roles.watched(Supervisor(settings(tmp_path)), until, 30) == 0
    assert children[0].returncode == -signal.SIGKILL and roles.started.count("train") == 2
    silent = [x for x in said if x["event"] == "role_silent"]
    assert [(x["child"], x["pid"]) for x in silent] == [("train", children[0].pid)]
    assert roles.started.count("ingest") == 1, "a role that has given no sign yet may take its time"
    died = next(x for x in said if x["event"] == "role_died")
    assert died["child"] == "train" and died["restart_seconds"] < 1
