"""The example of a TrainJob fits the types that Kubeflow publishes, and runs the trainer as the overlay of ranks does."""

import copy
import importlib
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import parse_args
from typer.main import get_command

from streamd.cli.main import app

K8S = Path(__file__).parents[2] / "k8s"
KINDS = {"TrainingRuntime": "training_runtime", "TrainJob": "train_job"}


def documents(path):
    return {d["kind"]: d for d in yaml.safe_load_all(path.read_text()) if d}


def checked(document):
    """Raises: ValueError where a value has the wrong type or a field is unknown, which the types pass over."""
    kind = document["kind"]
    module = importlib.import_module(f"kubeflow_trainer_api.models.trainer_v1alpha1_{KINDS[kind]}")
    made = getattr(module, f"TrainerV1alpha1{kind}").from_dict(document).to_dict()
    if made != document:
        raise ValueError(f"a field of {kind} is unknown")


@pytest.fixture(scope="module")
def example():
    return documents(K8S / "examples/trainjob.yaml")


def test_the_example_fits_the_types_of_kubeflow(example):
    assert set(example) == set(KINDS)
    for document in example.values():
        checked(document)


@pytest.mark.parametrize(("kind", "path", "key", "value"), [
    ("TrainJob", ("spec",), "runtimeReference", {"name": "streamd-ranks"}), ("TrainJob", ("spec", "runtimeRef"), "name", 7),
    ("TrainingRuntime", ("spec", "mlPolicy"), "nodes", 2), ("TrainingRuntime", ("spec", "mlPolicy"), "numNodes", "two"),
    ("TrainingRuntime", ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0),
     "arguments", [])])
def test_a_wrong_field_is_noticed(example, kind, path, key, value):
    wrong = copy.deepcopy(example[kind])
    place = wrong
    for step in path:
        place = place[step]
    place[key] = value
    with pytest.raises(ValueError, match="."):
        checked(wrong)


def test_it_runs_the_container_of_the_overlay_and_names_its_own_runtime(example):
    runtime, job = example["TrainingRuntime"], example["TrainJob"]
    assert job["spec"]["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container, = pod["containers"]

    # The same command, but for what Kubeflow sets by variables.
    agent = parse_args(container["args"])
    assert container["command"] == ["torchrun"] and agent.module and agent.training_script == "streamd"
    get_command(app).commands["run"].make_context("run", list(agent.training_script_args[1:]))
    overlay = documents(K8S / "overlays/ranks/ranks.yaml")["StatefulSet"]["spec"]["template"]["spec"]
    other, = overlay["containers"]
    theirs = parse_args(other["args"])
    for name in ("nproc_per_node", "max_restarts", "training_script_args"):
        assert getattr(agent, name) == getattr(theirs, name), name
    assert str(runtime["spec"]["mlPolicy"]["numNodes"]) == theirs.nnodes
    assert [e for e in other["env"] if e not in container["env"]] == []
    for name in ("envFrom", "volumeMounts", "securityContext", "resources"):
        assert container[name] == other[name], name
    assert pod["volumes"] == overlay["volumes"]
