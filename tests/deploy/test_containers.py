"""streamd in containers, by docker or podman: `make containers`. The image is built, compose and its replicas run, containers are killed,
networks cut, and at the end each event is in each directory once. `SHORT=1` keeps to what a release needs: it starts, answers, finds its
events and Kafka's topics after `down` and `up`, and stops in time."""

import os
import threading
import time
from collections import Counter

import pytest

from tests.deploy.engine import Project, ask, built_image, find_engine, stop_in_time
from tests.deploy.events import Stream, counts, grows

ENGINE, COMPOSE = find_engine() if os.environ.get("CONTAINERS") else (None, None)
pytestmark = [
    pytest.mark.skipif(not os.environ.get("CONTAINERS"), reason="`make containers` runs this"),
    pytest.mark.skipif(ENGINE is None, reason="no docker and no podman answers"),
    pytest.mark.skipif(COMPOSE is None, reason="neither `docker compose` nor podman-compose is installed"),
    pytest.mark.timeout(2400),
]


class Asker:
    """Asks for scores by the proxy ten times a second, and counts statuses."""

    def __init__(self, port):
        self._port, self.statuses, self._stop = port, Counter(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(0.1):
            self.statuses[ask(self._port, "/v1/score", {"src": "u:1", "dst": ["n:1", "n:2"]})[0]] += 1

    def since(self, before):
        return self.statuses - before

    def stop(self):
        self._stop.set()
        self._thread.join()


def is_ready(port):
    return ask(port, "/readyz")[0] == 200


@pytest.fixture
def project(tmp_path, request):
    made = Project(tmp_path, *request.param, image=built_image())
    try:
        yield made
    finally:
        made.down(volumes=True)


@pytest.mark.parametrize("project", [["compose.yaml"]], indirect=True)
def test_it_starts_answers_finds_all_again_and_stops_in_time(project):
    port = project.ports["streamd"]
    begun = time.monotonic()
    project.up()
    project.wait(lambda: is_ready(port), "it is ready", 180)
    print(f"ready {time.monotonic() - begun:.0f} s after `up`")
    stream = Stream(project.broker)
    stream.send(200)
    project.wait(lambda: counts(project, "streamd") == (200, 200), "all events are in the log")
    assert ask(port, "/v1/score", {"src": "u:1", "dst": ["n:1"]})[0] == 200 and ask(port, "/v1/models", key="wrong")[0] == 401
    assert {line[0] for line in project.logs("streamd").splitlines() if line} == {"{"}, "every line is JSON"
    assert "kernels_not_kept" not in project.logs("streamd")

    # The volumes are what is left after `down`: log, kernels, and Kafka's topics.
    stop_in_time(project, "streamd")
    project.down()
    project.up()
    project.wait(lambda: is_ready(port), "it is ready again", 120)
    stream.send(100)
    project.wait(lambda: counts(project, "streamd") == (300, 300), "it goes on with the same topics")
    assert stream.stop() == 300

    # Commands in a container of their own ask for no keys, and a log is restored into the volume of the one that was lost.
    backups = project.folder / "backups"
    backups.mkdir()
    backups.chmod(0o777)
    volume, = (v for v in project.run("volume", "ls", "-q").split() if v.startswith(project.name) and v.endswith("_data"))
    once = ["run", "--rm", "-v", f"{volume}:/data", "-v", f"{backups}:/backups", project.run("inspect", project.container("streamd"), "--format", "{{.Config.Image}}")]
    project.run(*once, "backup", "file:///backups/b")
    stop_in_time(project, "streamd")
    project.run(*once[:2], "--entrypoint", "sh", *once[2:], "-c", "mv /data/log /data/log.$(date +%s)")
    project.run(*once, "restore", "file:///backups/b", "--data-dir", "/data/log")
    project.run(*once, "verify")
    project.run("start", project.container("streamd"))
    project.wait(lambda: is_ready(port), "it is ready with what was restored", 120)
    project.wait(lambda: counts(project, "streamd") == (300, 300), "nothing is lost and nothing twice")


@pytest.mark.skipif(bool(os.environ.get("SHORT")), reason="SHORT=1 leaves it out")
@pytest.mark.parametrize("project", [["compose.yaml", "compose.replicas.yaml"]], indirect=True)
def test_nothing_is_lost_while_containers_are_killed_and_networks_cut(project):
    proxy = project.ports["proxy"]
    project.up()
    project.wait(lambda: is_ready(proxy), "a replica is ready", 240)
    stream = Stream(project.broker)
    stream.start()
    asker = Asker(proxy)
    try:
        for hurt in (kill_leader, kill_kafka, new_address, cut_leader, cut_replica, kill_replica):
            before = Counter(asker.statuses)
            begun = time.monotonic()
            hurt(project, asker)
            seen = dict(asker.since(before))
            print(f"{hurt.__name__}: {time.monotonic() - begun:.0f} s, answers {seen}")
        assert asker.statuses[200] > 0.9 * asker.statuses.total(), asker.statuses
    finally:
        asker.stop()
        sent = stream.stop()
    for service in ("streamd", "replica-1", "replica-2"):
        project.wait(lambda service=service: counts(project, service) == (sent, sent), f"{service} has each of {sent} events once", 120)
        assert project.exec(service, "streamd", "verify") is not None
    print(f"{sent} events, each once in three directories")
    stop_in_time(project, "replica-1", "replica-2", "streamd")


def kill_leader(project, _):
    project.run("kill", "-s", "KILL", project.container("streamd"))
    project.run("start", project.container("streamd"))
    grows(project, "replica-1")


def kill_kafka(project, _):
    project.run("kill", "-s", "KILL", project.container("kafka"))
    time.sleep(5)
    project.run("start", project.container("kafka"))
    grows(project, "replica-1")


def new_address(project, asker):
    """A replica that comes back with another address is asked again."""
    project.run("stop", project.container("replica-1"))
    project.cut("replica-1")
    # Its old address is another one's now.
    project.cut("replica-2")
    project.mend("replica-1")
    project.mend("replica-2")
    project.run("start", project.container("replica-1"))
    project.wait(lambda: project.exec("replica-1", "streamd", "health", "--ready") is not None, "replica-1 is ready", 120)
    time.sleep(6)
    before = Counter(asker.statuses)
    time.sleep(10)
    assert set(asker.since(before)) == {200}, asker.since(before)
    answered = [len([x for x in project.logs(r).splitlines() if '"/v1/score"' in x]) for r in ("replica-1", "replica-2")]
    time.sleep(5)
    later = [len([x for x in project.logs(r).splitlines() if '"/v1/score"' in x]) for r in ("replica-1", "replica-2")]
    assert all(b > a for a, b in zip(answered, later, strict=True)), f"one of the replicas is not asked: {answered}, {later}"


def cut_leader(project, _):
    project.cut("streamd")
    time.sleep(20)
    project.mend("streamd")
    grows(project, "replica-2")


def cut_replica(project, _):
    project.cut("replica-2")
    time.sleep(20)
    project.mend("replica-2")
    grows(project, "replica-2")


def kill_replica(project, _):
    project.run("kill", "-s", "KILL", project.container("replica-1"))
    project.run("start", project.container("replica-1"))
    grows(project, "replica-1")
