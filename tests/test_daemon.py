"""The supervisor: which ends of its roles end it, which are tried again, and which leave the others alone."""

import sys

import pytest

from streamd import daemon
from streamd.daemon import REFUSED, ROLE_REFUSED, Supervisor
from tests.builders import settings


class Roles:
    """Stands in for `subprocess.Popen`: each start of a role ends with the next of its statuses, then runs for ever."""

    def __init__(self, monkeypatch, **ends):
        self.ends, self.started, popen = ends, [], daemon.subprocess.Popen

        def start(command, env):
            role = command[-1]
            self.started.append(role)
            statuses = self.ends.get(role, [])
            code = f"raise SystemExit({statuses.pop(0)})" if statuses else "import time; time.sleep(600)"
            return popen([sys.executable, "-c", code], env=env)

        monkeypatch.setattr(daemon.subprocess, "Popen", start)
        monkeypatch.setattr(daemon.signal, "signal", lambda *_: None)
        monkeypatch.setattr(daemon, "MAX_BACKOFF_SECONDS", 0.01)


def watched(supervisor, until, turns=200):
    """Run until something is true of the supervisor, then stop it. Returns: its exit status."""
    wait = supervisor._stop.wait
    left = iter(range(turns))

    def step(seconds):
        if until() or next(left, None) is None:
            supervisor._stop.set()
        return wait(seconds)

    supervisor._stop.wait = step
    return supervisor.run()


def test_a_role_that_refuses_its_data_stays_down_and_the_others_go_on(tmp_path, monkeypatch):
    roles = Roles(monkeypatch, ingest=[ROLE_REFUSED])
    supervisor = Supervisor(settings(tmp_path))
    status = watched(supervisor, lambda: "ingest" in supervisor._refused, 100)
    assert status == 0 and roles.started == ["ingest", "train", "serve"]
    assert sorted(supervisor._children) == ["serve", "train"]


@pytest.mark.parametrize("role", ["ingest", "train", "serve"])
def test_settings_that_one_role_refuses_end_them_all(tmp_path, monkeypatch, role):
    Roles(monkeypatch, **{role: [REFUSED]})
    assert watched(Supervisor(settings(tmp_path)), lambda: False) == REFUSED


def test_where_all_roles_refuse_the_daemon_ends(tmp_path, monkeypatch):
    Roles(monkeypatch, ingest=[ROLE_REFUSED], train=[1, ROLE_REFUSED], serve=[ROLE_REFUSED])
    assert watched(Supervisor(settings(tmp_path)), lambda: False) == REFUSED


def test_a_role_that_dies_is_started_again(tmp_path, monkeypatch):
    roles = Roles(monkeypatch, train=[1, -9, 1])
    supervisor = Supervisor(settings(tmp_path))
    status = watched(supervisor, lambda: roles.started.count("train") == 4, 100)
    assert status == 0 and roles.started.count("train") == 4 and roles.started.count("serve") == 1
