"""Every volume is mounted at a path that its service writes to, and all that a service writes is on a volume: topics that Kafka keeps
beside its volume are lost with the container."""

import re
from pathlib import Path

import pytest
import yaml

from streamd.settings.loading import load_settings
from tests.deploy.test_deploy import DEPLOY, built, config_map, needs

IMAGES_OWN = {"grafana": ["/var/lib/grafana"], "nginx": []}
"""Paths that an image writes to where nothing else is set."""


def image_environment():
    """Variables that streamd's image sets."""
    text = (DEPLOY / "Dockerfile").read_text()
    stage, = re.findall(r"^ENV (PATH=.*?[^\\])$", text, re.M | re.S)
    return {name: value.strip('"') for name, value in re.findall(r"(\w+)=(\S*)", stage)}


def name_of(image):
    return image.rpartition("/")[2].partition(":")[0]


def written(image, environ, command):
    """Paths below which a container writes, by its image, variables and command."""
    name = name_of(image)
    if name == "kafka":
        return [environ.get("KAFKA_LOG_DIRS", "/tmp/kraft-combined-logs")]
    if name == "prometheus":
        return [a.partition("=")[2] for a in command if a.startswith("--storage.tsdb.path=")]
    if name != "streamd":
        return IMAGES_OWN[name]
    environ = image_environment() | environ
    s, _ = load_settings(None, None, {k: v for k, v in environ.items() if k.startswith("STREAMD_")})
    found = [str(s.data_dir), environ["NUMBA_CACHE_DIR"], environ["CUPY_CACHE_DIR"], environ["HOME"]]
    return found + [s.log.store.removeprefix("file://")] * s.log.store.startswith("file://")


def check(paths, volumes, read_only=True):
    """volumes: paths where a service may write. read_only: whether it can write nowhere else."""
    for volume in volumes:
        assert any(Path(p).is_relative_to(volume) for p in paths), f"nothing is written to {volume}, but to {paths}"
    for path in paths if read_only else ():
        assert any(Path(path).is_relative_to(v) for v in volumes), f"{path} is on no volume of {volumes}"


def compose_services():
    first, more = (yaml.safe_load((DEPLOY / name).read_text()) for name in ("compose.yaml", "compose.replicas.yaml"))
    for name in [*first["services"], *(n for n in more["services"] if n not in first["services"])]:
        service = dict(first["services"].get(name, {}))
        for key, value in more["services"].get(name, {}).items():
            old = service.get(key, type(value)())
            service[key] = old | value if isinstance(value, dict) else old + value if isinstance(value, list) else value
        yield pytest.param(service, id=name)


@pytest.mark.parametrize("service", list(compose_services()))
def test_services_of_compose_write_to_their_volumes(service):
    mounts = [v.split(":") for v in service.get("volumes", [])]
    writable = [m[1] for m in mounts if not m[0].startswith(".") and m[2:] != ["ro"]]
    readable = [m[1] for m in mounts if m[2:] == ["ro"]]
    paths = written(service["image"], service.get("environment", {}), service.get("command", []))
    if name_of(service["image"]) == "kafka" and service.get("entrypoint"):
        assert writable == [], "it only makes a topic"
        return
    check([p for p in paths if p not in readable], writable + service.get("tmpfs", []), bool(writable))


def test_an_engine_gives_new_volumes_to_the_user_of_the_image():
    made = re.search(r"install -d -o 10001 -g 10001 (.*)", (DEPLOY / "Dockerfile").read_text())[1].split()
    for service in (p.values[0] for p in compose_services()):
        if service["image"].startswith("streamd"):
            assert {v.split(":")[1] for v in service["volumes"]} <= set(made), "a volume at another path is root's"


@needs["kubectl"]
@pytest.mark.parametrize("overlay", ["base", "overlays/dev", "overlays/gpu", "overlays/ha", "overlays/ranks"])
def test_containers_of_pods_write_to_their_volumes(overlay):
    documents = built(overlay)
    settings = config_map(documents)["data"]
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("StatefulSet", "Deployment")]
    for container in (c for pod in pods for c in pod["containers"]):
        environ = {e["name"]: e.get("value", "{}").replace("$(ZONE)", "") for e in container.get("env", []) if e["name"] != "ZONE"}
        is_ours = container["image"].startswith("streamd")
        volumes = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
        paths = written(container["image"], (settings if is_ours else {}) | environ, [])
        # The archive compiles no kernels.
        check([p for p in paths if container["name"] != "archive" or not p.startswith("/cache")], volumes)


@pytest.mark.parametrize("wrong", [{}, {"KAFKA_LOG_DIRS": "/var/lib/kafka"}])
def test_a_volume_that_nothing_is_written_to_would_be_noticed(wrong):
    with pytest.raises(AssertionError, match="/var/lib/kafka/data"):
        check(written("apache/kafka:4.1.0", wrong, []), ["/var/lib/kafka/data"])
