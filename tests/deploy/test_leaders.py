"""Two machines that may lead and two replicas in containers of their own, by docker or podman: `make leaders`. The lead moves six times
while a window, an hour of events, closes each minute, so that the trainer is handed over each time too. At the end logs, versions,
history and answers are equal on all four, with each event and each window once."""

import copy
import os
import shutil
import time
from collections import Counter

import pytest

from streamd.eventlog.reader import LogReader
from streamd.windows.history import HistoryReader
from tests.builders import HOUR, SECOND
from tests.deploy.engine import GRACE_SECONDS, Project, built_image, find_engine, stop_in_time
from tests.deploy.events import Stream, counts, grows
from tests.replica.directories import difference
from tests.replica.models_world import content

ENGINE, COMPOSE = find_engine() if os.environ.get("LEADERS") else (None, None)
pytestmark = [
    pytest.mark.skipif(not os.environ.get("LEADERS"), reason="`make leaders` runs this"),
    pytest.mark.skipif(COMPOSE is None, reason="no docker and no podman answers, or neither has a compose"),
    pytest.mark.timeout(2400),
]
MAY_LEAD, REPLICAS = ("streamd", "streamd-2"), ("replica-1", "replica-2")
MACHINES = MAY_LEAD + REPLICAS
AGE_SECONDS = 2 * 86_400
"""Event time of the first event, before now: a minute is an hour, and no time lies ahead of the clock."""
LEADS = """
import pathlib
from streamd.telemetry.heartbeat import leads_here
print(leads_here(pathlib.Path("/data/log")))
"""
WINDOWS = """
import pathlib
from streamd.windows.history import HistoryReader
windows = HistoryReader(pathlib.Path("/data/log")).refresh()
print(len(windows), windows[-1].end_us if windows else 0)
"""
ASK = """
import json, pathlib, urllib.request
answers = []
for user in range(50):
    body = json.dumps({"src": f"u:{user}", "dst": [f"n:{n}" for n in range(user, 5000, 97)]}).encode()
    headers = {"Authorization": "Bearer caller", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8000/v1/score", body, headers), timeout=30) as answer:
        answers.append(json.loads(answer.read()))
print(json.dumps(answers))
"""


def let_two_lead(compose):
    """Make another machine as the leader's: either may lead. Nobody comes by the proxy."""
    services, volumes = compose["services"], compose["volumes"]
    del services["proxy"]
    first = services["streamd"]
    del first["ports"]
    first["environment"]["STREAMD_LOG__MEMBER"] = "standby"
    services["streamd-2"] = copy.deepcopy(first) | {"volumes": ["data-2:/data", "cache-of-2:/cache", "store:/store"]}
    volumes |= {"data-2": None, "cache-of-2": None}


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path, "compose.yaml", "compose.replicas.yaml", image=built_image(), change=let_two_lead)
    try:
        yield made
    finally:
        made.down(volumes=True)


def leads(project, service):
    return (project.exec(service, "python", "-", given=LEADS) or "").strip() == "True"


def leader_of(project):
    found = [s for s in MAY_LEAD if leads(project, s)]
    return found[0] if len(found) == 1 else None


def windows_at(project, service):
    """How many windows are in the history of a machine, and the end of the last; zeros while it cannot be asked."""
    return tuple(map(int, (project.exec(service, "python", "-", given=WINDOWS) or "0 0").split()))


def kill(project, old, new):
    project.run("kill", "-s", "KILL", project.container(old))
    yield
    project.run("start", project.container(old))


def ask_for_it(project, old, new):
    assert project.exec(new, "streamd", "lead") is not None, project.logs(new)[-3000:]
    yield


def pause(project, old, new):
    project.run("pause", project.container(old))
    yield
    project.run("unpause", project.container(old))


def cut(project, old, new):
    project.cut(old)
    yield
    project.mend(old)


def stop(project, old, new):
    project.run("stop", "-t", str(GRACE_SECONDS), project.container(old))
    assert project.state(old) == ("exited", 0), project.logs(old)[-3000:]
    yield
    project.run("start", project.container(old))


def lose(project, old, new):
    """The machine comes back without its volume."""
    project.run("kill", "-s", "KILL", project.container(old))
    yield
    image = project.run("inspect", project.container(old), "--format", "{{.Config.Image}}")
    volume = f"{project.name}_{'data' if old == 'streamd' else 'data-2'}"
    project.run("run", "--rm", "-v", f"{volume}:/data", "--entrypoint", "rm", image, "-r", "/data/log")
    project.run("start", project.container(old))


def change_leader(project, hurt):
    """Take the lead from the machine that has it. Waits until the other one leads, has new events and has learned another window, and
    until the first one follows."""
    old = leader_of(project)
    new, = set(MAY_LEAD) - {old}
    learned, _ = windows_at(project, new)
    begun = time.monotonic()
    steps = hurt(project, old, new)
    next(steps)
    project.wait(lambda: leads(project, new), f"{new} leads after {hurt.__name__}", 120)
    grows(project, new)
    led = time.monotonic() - begun
    next(steps, None)
    project.wait(lambda: windows_at(project, new)[0] > learned + 1, f"{new} learns a window of its own", 300)
    print(f"{hurt.__name__}: {new} leads and has new events after {led:.0f} s, two windows more after {time.monotonic() - begun:.0f} s")
    grows(project, old)
    assert leader_of(project) == new


def copies(project, folder):
    """The directories of all machines, copied to a new folder."""
    folder.mkdir()
    for service in MACHINES:
        project.run("cp", f"{project.container(service)}:/data/log", str(folder / service))
    return [folder / service for service in MACHINES]


def are_alike(project, folder):
    """Whether copies of all machines have equal logs, versions, moves and windows. The last ones stay in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    first, *others = copies(project, folder)
    return all(difference(first, other) == "" and content(first) == content(other) for other in others)


def test_six_leaders_follow_one_another_while_windows_close(project, tmp_path):
    project.up()
    stream = Stream(project.broker, each=1, age_seconds=AGE_SECONDS, speed=60, habits=True)
    stream.start()
    try:
        project.wait(lambda: leader_of(project), "one leads", 240)
        for service in MACHINES:
            project.wait(lambda service=service: windows_at(project, service)[0] > 0, f"{service} has a window", 300)
        for hurt in (kill, ask_for_it, pause, cut, stop, lose):
            change_leader(project, hurt)
    finally:
        sent = stream.stop()

    # All that was sent is everywhere, and so is every window that is over.
    over = int(stream.newest * SECOND) // HOUR * HOUR
    for service in MACHINES:
        project.wait(lambda service=service: (counts(project, service) or (0, 0))[1] == sent, f"{service} has {sent} events", 180)
        project.wait(lambda service=service: windows_at(project, service)[1] == over, f"{service} has the last window", 180)
    project.wait(lambda: are_alike(project, tmp_path / "copies"), "logs, versions and history are equal", 120)
    one = tmp_path / "copies" / MACHINES[0]
    log = LogReader.open(one)
    src, dst, _ = log.edges(0, log.num_edges)
    pairs = Counter((log.keys[u], log.keys[v]) for u, v in zip(src.tolist(), dst.tolist(), strict=True))
    assert pairs == Counter(map(stream.pair, range(sent))), "each event is there once"
    windows = HistoryReader(one).refresh()
    begins = [w.start_us for w in windows]
    assert begins == list(range(begins[0], over, HOUR)), "each window once, and none is missing"
    assert [w.first_edge for w in windows] == [0, *(w.end_edge for w in windows[:-1])], "no event is in two, or in none"

    answers = {service: project.exec(service, "python", "-", given=ASK) for service in MACHINES}
    assert None not in answers.values() and len(set(answers.values())) == 1, {s: str(a)[:300] for s, a in answers.items()}
    for service in MACHINES:
        assert project.exec(service, "streamd", "verify") is not None, service
        assert "0 commits of the changelog not shown" in " ".join(project.exec(service, "streamd", "changelog", "verify").split())
    versions = [w.version for w in windows if w.version]
    assert versions, "something was learned"
    print(f"{sent} events, {len(windows)} windows and {len(versions)} versions, equal on {len(MACHINES)} machines")
    stop_in_time(project, *REPLICAS, *sorted(MAY_LEAD, key=lambda s: leads(project, s)))
