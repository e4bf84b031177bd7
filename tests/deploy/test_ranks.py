"""The overlay of trainers on several pods: its files, and its very command as two agents on this machine."""

import copy
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
from torch.distributed.run import parse_args
from typer.main import get_command

from streamd.cli.main import app
from streamd.demo.broker import free_port
from streamd.registry import Registry
from streamd.settings.loading import as_environment, load_settings
from streamd.windows.history import HistoryReader
from tests.deploy.test_deploy import built, config_map, needs, one
from tests.deploy.test_volumes import image_environment
from tests.processes import children, is_alive, soon
from tests.ranks.test_kills import SMALL
from tests.ranks.test_trainer import check_alike
from tests.ranks.worlds import World

pytestmark = needs["kubectl"]


@pytest.fixture(scope="module")
def documents():
    return built("overlays/ranks")


def container_of(documents):
    found, = one(documents, "StatefulSet", "streamd-ranks")["spec"]["template"]["spec"]["containers"]
    return found


def test_the_overlay_fits_the_schemas_of_kubernetes(documents):
    for document in documents:
        if "monitoring.coreos.com" not in document["apiVersion"]:
            for version in ("1.30", "1.34"):
                kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "streamd-ranks"), ("Service", "streamd-ranks"),
                                            ("NetworkPolicy", "streamd-ranks"), ("PersistentVolumeClaim", "streamd-data")])
def test_a_field_that_kubernetes_does_not_know_is_noticed(documents, kind, name):
    wrong = copy.deepcopy(one(documents, kind, name))
    wrong["spec"]["podManagmentPolicy"] = "Parallel"
    with pytest.raises(kubernetes_validate.ValidationError, match="podManagmentPolicy"):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


def test_agents_meet_at_the_first_pod_and_all_pods_share_one_volume(documents):
    ranks, service = one(documents, "StatefulSet", "streamd-ranks")["spec"], one(documents, "Service", "streamd-ranks")
    container, pod = container_of(documents), ranks["template"]["spec"]
    agent = parse_args(container["args"])
    assert container["command"] == ["torchrun"] and agent.nnodes == str(ranks["replicas"]) and agent.rdzv_backend == "c10d"
    host, port = agent.rdzv_endpoint.split(":")
    assert host == f"streamd-ranks-0.{ranks['serviceName']}" and service["metadata"]["name"] == ranks["serviceName"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"].items() <= ranks["template"]["metadata"]["labels"].items()
    assert int(port) in {p["port"] for p in service["spec"]["ports"]} & {p["containerPort"] for p in container["ports"]}
    assert ranks["podManagementPolicy"] == "Parallel"
    assert {e["name"]: e["value"] for e in container["env"]} == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    # What follows `-m streamd` is a command of streamd.
    assert agent.module and agent.training_script == "streamd" and agent.training_script_args[0] == "run"
    get_command(app).commands["run"].make_context("run", list(agent.training_script_args[1:]))

    s, _ = load_settings(None, None, config_map(documents)["data"])
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert s.training.checkpoint_dir == Path(mounts["data"]) / "log" == Path(image_environment()["STREAMD_DATA_DIR"])
    claims = [v["persistentVolumeClaim"]["claimName"] for p in (pod, one(documents, "StatefulSet")["spec"]["template"]["spec"])
              for v in p["volumes"] if v["name"] == "data"]
    assert claims == ["streamd-data"] * 2
    assert one(documents, "PersistentVolumeClaim", "streamd-data")["spec"]["accessModes"] == ["ReadWriteMany"]
    names = [c["name"] for c in one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]]
    assert names == ["ingest", "serve"], "one trainer for a log"
    assert container["image"] == one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["image"]


class Machines:
    """Two agents, each on a directory of its own that holds the same log, started as the pods start them."""

    def __init__(self, tmp_path, container):
        first = World(tmp_path / "first", **SMALL).grow()
        shutil.copytree(first.path, tmp_path / "second")
        self.shared = tmp_path / "shared"
        self.shared.mkdir()
        self.own = [as_environment(first.settings) | {"STREAMD_DATA_DIR": str(tmp_path / n), "STREAMD_TRAINING__CHECKPOINT_DIR": str(self.shared)}
                    for n in ("first", "second")]
        self.variables = {e["name"]: e["value"] for e in container["env"]} | {"GLOO_SOCKET_IFNAME": "lo"}
        endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        arguments = [endpoint if a.startswith("--rdzv-endpoint=") else a for a in container["args"]]
        self.command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        self.output, self.agents, self.seen = tmp_path / "output", [None, None], set()

    def start(self, number):
        env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | self.own[number] | self.variables
        with self.output.open("ab") as output:
            self.agents[number] = subprocess.Popen(self.command, env=env, stdout=output, stderr=output)

    def done(self):
        return len(HistoryReader(self.shared).refresh())

    def wait_for(self, count):
        """Wait until so many windows are learned; an agent that ends is started again, as a StatefulSet does."""
        def learned():
            for number, agent in enumerate(self.agents):
                self.seen |= set(children(agent.pid))
                if agent.poll() is not None:
                    self.start(number)
            return self.done() >= count

        soon(learned, f"{count} windows are learned", 180)

    def close(self):
        pids = {a.pid for a in self.agents if a is not None}
        for pid in pids | self.seen | {c for p in pids for c in children(p)}:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        for agent in self.agents:
            if agent is not None:
                agent.wait()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_two_agents_learn_all_windows_although_one_was_killed(tmp_path, documents, killed):
    alone = World(tmp_path / "alone", training__nice=0).grow()
    alone.learn(1)
    wanted = len(HistoryReader(alone.path).refresh())
    machines = Machines(tmp_path, container_of(documents))
    try:
        machines.start(0)
        machines.start(1)
        machines.wait_for(1)
        machines.agents[killed].kill()
        machines.agents[killed].wait()
        at = machines.done()
        assert at < wanted, "it was killed before the end"
        machines.wait_for(wanted)
    finally:
        machines.close()
        print(machines.output.read_text()[-6000:])
    check_alike(machines.shared, alone.path)
    names = Registry.of(load_settings(None, None, machines.own[0])[0].model_copy(update={"data_dir": machines.shared})).names()
    assert names == Registry.of(alone.settings).names() and len(set(names)) == len(names)
