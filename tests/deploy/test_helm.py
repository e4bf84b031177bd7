"""The Helm chart beside the kustomize base: rendered by Helm's own engine, and the same objects where both say the same."""

import json
import os
import re
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from streamd import __version__
from streamd.settings.loading import load_settings
from tests.deploy.test_deploy import built, needs, one

ROOT = Path(__file__).parents[2]
CHART = ROOT / "k8s" / "helm"
PYTHON = os.environ.get("HELM_PYTHON", "")
rendered = pytest.mark.skipif(not PYTHON, reason="`make helm` installs a renderer and runs this")
OWN_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/config"}
FULL = {
    "image": {"repository": "registry.example/streamd", "tag": "1.2", "pullPolicy": "IfNotPresent"}, "imagePullSecrets": [{"name": "pull"}],
    "config": {"STREAMD_TRAINING__EPOCHS": 3}, "keys": {"existingSecret": "mine"}, "kafkaSecret": "broker", "startupFailureThreshold": 600,
    "storage": {"size": "1Ti", "className": "fast"}, "monitoring": {"enabled": False}, "podAnnotations": {"a": "b"},
    "networkPolicy": {"extraEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]}, "serviceAccount": {"annotations": {"role": "r"}},
    "nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}


def render(values):
    return subprocess.run([PYTHON, ROOT / "tests/deploy/render_chart.py", CHART], input=json.dumps(values), capture_output=True, text=True)


def documents(values):
    done = render(values)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["lint"] == []
    return [d for text in told["files"].values() for d in yaml.safe_load_all(text) if d]


def plain(value):
    """A part of an object without what only Helm, or only kustomize, adds."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return re.sub(r"^streamd-[a-z0-9]{10}$", "streamd", value) if isinstance(value, str) else value
    cleaned = {k: plain(v) for k, v in value.items() if k not in OWN_LABELS}
    return {k: v for k, v in cleaned.items() if not (k in ("labels", "annotations") and not v)}


@rendered
@needs["kubectl"]
def test_the_chart_makes_the_objects_of_the_base():
    ours, theirs = (sorted((plain(d) for d in found), key=lambda d: (d["kind"], d["metadata"]["name"])) for found in (documents({}), built("base")))
    for document in theirs + ours:
        # By kustomize the claim carries the common label too, and the monitor's selector does not.
        for claim in document["spec"].get("volumeClaimTemplates", []) if "spec" in document else []:
            claim["metadata"].pop("labels", None)
            for name in ("apiVersion", "kind", "status"):
                claim.pop(name, None)
        if document["kind"] == "ServiceMonitor":
            document["spec"]["selector"]["matchLabels"].pop("app.kubernetes.io/name", None)
            document["spec"]["endpoints"].sort(key=lambda e: e["port"])
    assert [d["kind"] for d in ours] == [d["kind"] for d in theirs]
    for mine, base in zip(ours, theirs, strict=True):
        assert mine == base, mine["kind"]


@rendered
@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "all"])
def test_the_objects_fit_the_schemas_of_kubernetes(values):
    for document in documents(values):
        if "monitoring.coreos.com" not in document["apiVersion"]:
            for version in ("1.30", "1.34"):
                kubernetes_validate.validate(document, version, strict=True)


@rendered
def test_values_reach_the_objects_that_they_name():
    made = documents(FULL)
    pod = one(made, "StatefulSet")["spec"]["template"]
    assert {c["image"] for c in pod["spec"]["containers"]} == {"registry.example/streamd:1.2"} and pod["metadata"]["annotations"]["a"] == "b"
    assert {v["name"]: v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v} == {"keys": "mine", "kafka": "broker"}
    assert {c["startupProbe"]["failureThreshold"] for c in pod["spec"]["containers"]} == {600}
    environ = one(made, "ConfigMap")["data"]
    assert environ["STREAMD_TRAINING__EPOCHS"] == "3" and load_settings(None, None, environ)[0].training.epochs == 3
    assert {d["kind"] for d in made} & {"Secret", "ServiceMonitor", "PrometheusRule"} == set()
    assert {"port": 443, "protocol": "TCP"} in one(made, "NetworkPolicy")["spec"]["egress"][-1]["ports"]
    claim, = one(made, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast" and claim["spec"]["resources"]["requests"]["storage"] == "1Ti"


@rendered
def test_changed_settings_start_the_pod_anew():
    sums = [one(documents({"config": c}), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for c in ({}, {"STREAMD_TRAINING__EPOCHS": 3}, {})]
    assert sums[0] == sums[2] != sums[1]


@rendered
def test_a_value_that_does_not_exist_is_refused_by_helm():
    done = render({"imagee": {}})
    assert done.returncode != 0 and "imagee" in done.stderr


def values():
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("given", [{}, FULL], ids=["defaults", "all"])
def test_values_fit_their_schema(given):
    jsonschema.validate(values() | given, json.loads((CHART / "values.schema.json").read_text()))


@pytest.mark.parametrize("wrong", [{"imagee": {}}, {"storage": {}}, {"config": {"EPOCHS": "3"}}, {"resources": {"ingest": {"request": {}}}}])
def test_wrong_values_do_not(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values() | wrong, json.loads((CHART / "values.schema.json").read_text()))


def test_the_charts_settings_are_those_of_the_base_and_known():
    environ = dict(line.split("=", 1) for line in (ROOT / "k8s/base/config.env").read_text().splitlines() if line and line[0] != "#")
    assert values()["config"] == environ
    assert load_settings(None, None, environ)[0].server.host == "0.0.0.0"


def test_the_charts_alerts_and_version_are_ours():
    assert (CHART / "alerts.yaml").read_text() == (ROOT / "deploy/alerts.yaml").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__ and chart["version"].replace("-", ".") == __version__


def test_every_file_that_names_an_image_names_that_of_this_version():
    """The version is set in `streamd/__init__.py`; a release changes these texts too."""
    for name in ("k8s/base/kustomization.yaml", "k8s/overlays/ha/kustomization.yaml", "k8s/overlays/ranks/kustomization.yaml",
                 "k8s/overlays/gpu/kustomization.yaml", "deploy/compose.yaml", "deploy/compose.replicas.yaml", "deploy/Dockerfile", "docs/operations.md"):
        found = re.findall(r"(?:newTag: |image: streamd:|`streamd:|VERSION=)([0-9][\w.]*)(?:-cuda)?", (ROOT / name).read_text())
        assert found and set(found) == {__version__}, name


def test_every_value_is_documented():
    guide = (ROOT / "docs/operations.md").read_text().split("### Helm")[1].split("\n#")[0]
    told = re.findall(r"^\| `([\w.]+)` \|", guide, re.M)
    have = [f"{k}.{inner}" if isinstance(v, dict) and v and k not in ("config", "resources") else k for k, v in values().items()
            for inner in (v if isinstance(v, dict) and v and k not in ("config", "resources") else [""])]
    assert told == have
