"""A container engine, docker or podman, and the project of `deploy/` that its compose runs: as the files say, but at ports that are free,
with keys of its own, and without what only looks at it (Prometheus, Grafana)."""

import functools
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from streamd.demo.broker import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LOOKERS_ON = ("prometheus", "grafana")
KEYS = {"api_keys": "caller\nscraper\n", "admin_keys": "admin\n", "metrics_key": "scraper\n"}
GRACE_SECONDS = 45
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a broker that lives for minutes: Java's second compiler would take half of the CPU that it uses."""


def answers(*command):
    """Whether a command is there and ends well."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def find_engine():
    """The engine's command and that of its compose; None for what does not answer."""
    engine = next((e for e in ("docker", "podman") if answers(e, "info")), None)
    tries = [[engine, "compose"], ["podman-compose"]] if engine else []
    return engine, next((c for c in tries if answers(*c, "version")), None)


def merged(files):
    """Compose files as an engine merges them: mappings by key, lists one behind the other."""
    first = {}
    for file in files:
        first = _merge(first, yaml.safe_load(file.read_text()))
    return first


def _merge(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merge(old[key], value) if key in old else value for key, value in new.items()}
    return old + new if isinstance(old, list) and isinstance(new, list) else new


@functools.cache
def built_image():
    """The image that IMAGE names; where it names none, one that is built now."""
    if given := os.environ.get("IMAGE"):
        return given
    engine, _ = find_engine()
    begun = time.monotonic()
    subprocess.run(["make", "image", f"DOCKER={engine}", "TAG=tested"], cwd=ROOT, check=True, timeout=1200)
    print(f"image built in {time.monotonic() - begun:.0f} s")
    return "streamd:tested"


class Project:
    """The services of some compose files, started, hurt and stopped."""

    def __init__(self, folder, *files, image=None, change=lambda compose: None):
        """folder: for its files. image: of streamd, that of the files where None. change: of what the files say together, in place."""
        self.engine, self.compose = find_engine()
        self.name = f"streamd-{os.getpid()}-{len(files)}"
        self.folder = folder
        self.ports = {"streamd": free_port(), "proxy": free_port(), "kafka": free_port()}
        self.file = folder / "compose.yaml"
        compose = merged([DEPLOY / f for f in files])
        change(compose)
        self.file.write_text(yaml.safe_dump(self._own(compose, image)))

    def _own(self, compose, image):
        compose.pop("name")
        for name in LOOKERS_ON:
            compose["services"].pop(name, None)
            compose["volumes"].pop(name, None)
        for name, value in KEYS.items():
            (self.folder / name).write_text(value)
        compose["secrets"] = {name: {"file": str(self.folder / name)} for name in ("api_keys", "admin_keys")}
        for name, service in compose["services"].items():
            service.pop("build", None)
            if image and service["image"].startswith("streamd:"):
                service["image"] = image
            if ports := service.get("ports"):
                inner, = (p.rsplit(":", 1)[1] for p in ports)
                service["ports"] = [f"127.0.0.1:{self.ports[name]}:{inner}"]
            service["volumes"] = [v.replace("./", f"{DEPLOY}/", 1) if v.startswith("./") else v for v in service.get("volumes", [])]
        kafka = compose["services"]["kafka"]["environment"]
        kafka["JDK_JAVA_OPTIONS"] = QUICK_JAVA
        kafka["KAFKA_ADVERTISED_LISTENERS"] = kafka["KAFKA_ADVERTISED_LISTENERS"].replace("localhost:19092", self.broker)
        return compose

    @property
    def broker(self):
        return f"localhost:{self.ports['kafka']}"

    def run(self, *arguments, check=True, given=None):
        """Run a command of the engine. Returns: its standard output."""
        done = subprocess.run([self.engine, *arguments], capture_output=True, text=True, check=False, input=given, timeout=300)
        assert not check or done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout.strip()

    def composed(self, *arguments):
        """Run a command of compose."""
        done = subprocess.run([*self.compose, "-p", self.name, "-f", self.file, *arguments], capture_output=True, text=True,
                              check=False, timeout=600, cwd=self.folder)
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-4000:])

    def up(self):
        self.composed("up", "-d")
        # Some engines start a service before what it waits for is healthy: then the topic is made here.
        self.wait(self.kafka_answers, "Kafka answers", 300)

        def made():
            if self.state("topic") == ("exited", 0):
                return True
            if self.state("topic")[0] != "running":
                self.run("start", self.container("topic"), check=False)
            return False

        self.wait(made, "the topic is made", 300)

    def kafka_answers(self):
        """Whether the broker takes clients, asked from here: each of Kafka's own commands would start another Java beside it."""
        try:
            KafkaAdminClient(bootstrap_servers=self.broker).close()
        except KafkaError:
            return False
        return True

    def down(self, *, volumes=False):
        self.composed("down", *(["--volumes"] if volumes else []))

    def container(self, service):
        """The id of a service's container."""
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        found = self.run("ps", "-a", "-q", *(f"--filter=label={x}" for x in labels)).split()
        return found[0] if found else ""

    def state(self, service):
        """Its state, as running or exited, and its exit status."""
        if not (container := self.container(service)):
            return "missing", None
        found = json.loads(self.run("inspect", container, "--format", "{{json .State}}"))
        return found["Status"], found["ExitCode"]

    def exec(self, service, *command, given=None):
        """Run a command in a container. Returns: its standard output, None where it failed."""
        if self.state(service)[0] != "running":
            return None
        done = subprocess.run([self.engine, "exec", *(["-i"] if given else []), self.container(service), *command],
                              capture_output=True, text=True, check=False, input=given, timeout=120)
        return done.stdout if done.returncode == 0 else None

    def logs(self, service):
        done = subprocess.run([self.engine, "logs", self.container(service)], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    def network(self):
        """The name of the network that its services share."""
        found = json.loads(self.run("inspect", self.container("kafka"), "--format", "{{json .NetworkSettings.Networks}}"))
        return next(iter(found))

    def cut(self, service):
        self.run("network", "disconnect", self.network(), self.container(service))

    def mend(self, service, *options):
        self.run("network", "connect", "--alias", service, *options, self.network(), self.container(service))

    def wait(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                shown = "\n".join(f"--- {name}: {self.state(name)}\n{self.logs(name)[-3000:]}" for name in self.services())
                raise AssertionError(f"after {seconds} s it is not so that {what}\n{shown}")
            time.sleep(0.3)

    def services(self):
        return list(yaml.safe_load(self.file.read_text())["services"])


def ask(port, path, body=None, key="caller", seconds=10):
    """Ask a server. Returns: status and text; status 0 where none answered."""
    headers = {"Authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def stop_in_time(project, *services):
    """Stop services, and see that each ends by itself within its grace."""
    for service in services:
        begun = time.monotonic()
        project.run("stop", "-t", str(GRACE_SECONDS), project.container(service))
        seconds = time.monotonic() - begun
        assert project.state(service) == ("exited", 0), project.logs(service)[-3000:]
        assert seconds < GRACE_SECONDS
        print(f"{service} stopped in {seconds:.1f} s")
