"""The Helm chart, rendered by Helm's own engine: each mode makes the objects of its overlay of kustomize."""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
PYTHON = os.environ.get("HELM_PYTHON", "") or next(map(str, ROOT.glob(".venv-helm/bin/python")), "")
rendered = pytest.mark.skipif(not PYTHON, reason="`make helm` installs a renderer and runs this")
OWN_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/config",
              "helm.sh/resource-policy"}
"""Labels and annotations that only Helm adds."""
STORE = {"STREAMD_LOG__STORE": "s3://streamd/log"}
MODES = {"base": {}, "overlays/gpu": {"gpu": {"enabled": True}}, "overlays/ha": {"mode": "ha", "config": STORE}, "overlays/ranks": {"mode": "ranks"}}
"""Overlay of kustomize -> the values that make its objects."""
CONFIG_OF = {"score": {"STREAMD_SERVER__SCORE_TOPIC": "scores"}, "trial": {
    "STREAMD_TRIALS__NAME": "ranking", "STREAMD_TRIALS__ARMS": '{"champion": 0.5, "rule": 0.5}', "STREAMD_TRIALS__TOPIC": "impressions"}}
"""Optional role -> the settings that it needs."""
FULL = {
    "image": {"repository": "registry.example/streamd", "tag": "1.2", "digest": "sha256:" + "0a" * 32, "pullPolicy": "IfNotPresent"},
    "imagePullSecrets": [{"name": "pull"}], "score": {"enabled": True}, "trial": {"enabled": True},
    "config": {"STREAMD_TRAINING__EPOCHS": 3} | CONFIG_OF["score"] | CONFIG_OF["trial"],
    "keys": {"existingSecret": "mine"}, "kafkaSecret": "broker", "storeSecret": "bucket",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}], "extraEnvFrom": [{"secretRef": {"name": "more"}}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "authority"}}], "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "initContainers": [{"name": "first", "image": "busybox:1"}],
    "probes": {"startup": {"failureThreshold": 600}, "liveness": {"initialDelaySeconds": 7}, "readiness": {"periodSeconds": 9}},
    "terminationGracePeriodSeconds": 90, "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, "resources": {"serve": {"limits": {"memory": "9Gi"}}},
    "storage": {"size": "1Ti", "className": "fast", "retentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"}},
    "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"cloud": "internal"}},
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"i": "n"}, "hosts": ["graph.example"], "tls": [{"hosts": ["graph.example"], "secretName": "tls"}]},
    "httpRoute": {"enabled": True, "annotations": {"h": "r"}, "parentRefs": [{"name": "gateway"}], "hostnames": ["graph.example"]},
    "networkPolicy": {"extraIngress": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "extraEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]},
    "monitoring": {"enabled": False}, "dashboard": {"enabled": True, "labels": {"folder": "graphs"}, "annotations": {"d": "b"}},
    "serviceAccount": {"annotations": {"role": "r"}}, "podAnnotations": {"a": "b"}, "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}], "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}
ALL = {"defaults": {}, "all": FULL, "all-ha": FULL | {"mode": "ha", "config": FULL["config"] | STORE},
       "all-ranks": FULL | {"mode": "ranks", "gpu": {"enabled": True}, "storage": {"existingClaim": "shared"}}}


def render(values, release="streamd"):
    return subprocess.run([PYTHON, ROOT / "tests/deploy/render_chart.py", CHART, release], input=json.dumps(values), capture_output=True, text=True)


def documents(values, release="streamd"):
    done = render(values, release)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["lint"] == []
    return [d for name, text in told["files"].items() if name.endswith(".yaml") for d in yaml.safe_load_all(text) if d]


def plain(value, dropped):
    """A part of an object without the labels and annotations `dropped`; mounts and volumes by name."""
    if isinstance(value, list):
        cleaned = [plain(v, dropped) for v in value]
        named = all(isinstance(v, dict) and ("mountPath" in v or {"name"} < set(v) <= {"name", "emptyDir", "secret", "persistentVolumeClaim", "ephemeral"}) for v in value)
        return sorted(cleaned, key=lambda v: v["name"]) if named else cleaned
    if not isinstance(value, dict):
        return re.sub(r"^streamd-[a-z0-9]{10}$", "streamd", value) if isinstance(value, str) else value
    cleaned = {k: plain(v, dropped) for k, v in value.items() if k not in dropped}
    return {k: v for k, v in cleaned.items() if not (k in ("labels", "annotations") and not v)}


def comparable(documents, dropped):
    """{(kind, name): object}, but for the pod of `helm test`."""
    found = {}
    for document in (plain(d, dropped) for d in documents):
        if "helm.sh/hook" in document["metadata"].get("annotations", {}):
            continue
        spec = document.get("spec", {})
        # By kustomize the claim carries the common label too, and the monitors' selectors do not; a release is a job.
        for claim in spec.get("volumeClaimTemplates", []):
            claim["metadata"].pop("labels", None)
            for name in ("apiVersion", "kind", "status"):
                claim.pop(name, None)
        if document["kind"] in ("ServiceMonitor", "PodMonitor"):
            spec["selector"]["matchLabels"].pop("app.kubernetes.io/name", None)
            del spec["jobLabel"]
            for endpoints in (v for k, v in spec.items() if k in ("endpoints", "podMetricsEndpoints")):
                endpoints.sort(key=lambda e: e["port"])
        if document["kind"] == "PrometheusRule":
            down, = (r for r in spec["groups"][0]["rules"] if r["alert"] == "StreamdRoleDown")
            down["expr"] = down["expr"].replace('job="streamd"', 'job=~"streamd.*"')
        found[document["kind"], document["metadata"]["name"]] = document
    return found


@rendered
@needs["kubectl"]
@pytest.mark.parametrize("overlay", MODES)
def test_a_mode_of_the_chart_makes_the_objects_of_its_overlay(overlay):
    ours, theirs = comparable(documents(MODES[overlay]), OWN_LABELS), comparable(built(overlay), OWN_LABELS)
    assert set(ours) == set(theirs)
    for key, document in theirs.items():
        assert ours[key] == document, key


@rendered
@pytest.mark.parametrize("values", [*MODES.values(), *ALL.values()], ids=[*MODES, *ALL])
def test_the_objects_fit_the_schemas_of_kubernetes(values):
    for document in documents(values):
        if document["apiVersion"].split("/")[0] not in ("monitoring.coreos.com", "gateway.networking.k8s.io"):
            for version in ("1.30", "1.34"):
                kubernetes_validate.validate(document, version, strict=True)


def pods(made):
    return [d["spec"]["template"]["spec"] for d in made if d["kind"] in ("StatefulSet", "Deployment")]


@rendered
@pytest.mark.parametrize("values", list(ALL)[1:])
def test_values_reach_each_pod_and_container_that_they_name(values):
    made = documents(ALL[values])
    assert len(pods(made)) == (1 if values == "all" else 2)
    for pod in pods(made):
        assert pod["securityContext"] == {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["initContainers"] == FULL["initContainers"] and pod["imagePullSecrets"] == FULL["imagePullSecrets"]
        assert pod["terminationGracePeriodSeconds"] == 90 and pod["nodeSelector"] == FULL["nodeSelector"] and pod["affinity"] == FULL["affinity"]
        assert pod["tolerations"][0] == FULL["tolerations"][0]
        assert {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}.items() <= {"keys": "mine", "kafka": "broker"}.items()
        assert FULL["extraVolumes"][0] in pod["volumes"]
        for c in pod["containers"]:
            assert c["image"] == "registry.example/streamd@sha256:" + "0a" * 32 and c["imagePullPolicy"] == "IfNotPresent"
            assert FULL["extraEnv"][0] in c["env"] and FULL["extraEnvFrom"][0] in c["envFrom"] and FULL["extraVolumeMounts"][0] in c["volumeMounts"]
            assert c["securityContext"]["readOnlyRootFilesystem"] and c["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            if c["name"] != "train" or "command" not in c:
                assert c["startupProbe"]["failureThreshold"] == 600 and c["startupProbe"]["timeoutSeconds"] == 5
                assert c["livenessProbe"]["initialDelaySeconds"] == 7 and c["livenessProbe"]["httpGet"]["path"] == "/livez"
            if c["name"] == "serve":
                assert c["readinessProbe"]["periodSeconds"] == 9
                assert c["resources"]["limits"]["memory"] == "9Gi"
            store = [e for e in c["envFrom"] if e.get("secretRef", {}).get("name") == "bucket"]
            assert bool(store) == (values == "all-ha")
    for document in made:
        if document["kind"] in ("StatefulSet", "Deployment"):
            assert document["spec"]["template"]["metadata"]["annotations"]["a"] == "b"
    assert {d["kind"] for d in made} & {"Secret", "ServiceMonitor", "PodMonitor", "PrometheusRule"} == set()
    for policy in (d["spec"] for d in made if d["kind"] == "NetworkPolicy" and not d["metadata"]["name"].endswith("-ranks")):
        assert {"port": 443, "protocol": "TCP"} in policy["egress"][-1]["ports"]
    callers = one(made, "NetworkPolicy", "streamd-replica" if values == "all-ha" else "streamd")["spec"]["ingress"]
    assert {"from": FULL["networkPolicy"]["extraIngress"], "ports": [{"port": 8000, "protocol": "TCP"}]} in callers


@rendered
def test_values_reach_the_objects_that_they_name():
    made = documents(FULL)
    environ = one(made, "ConfigMap")["data"]
    assert environ["STREAMD_TRAINING__EPOCHS"] == "3" and load_settings(None, None, environ)[0].training.epochs == 3
    state = one(made, "StatefulSet")["spec"]
    claim, = state["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast" and claim["spec"]["resources"]["requests"]["storage"] == "1Ti"
    assert state["persistentVolumeClaimRetentionPolicy"] == FULL["storage"]["retentionPolicy"]
    service = one(made, "Service")
    assert service["spec"]["type"] == "LoadBalancer" and service["metadata"]["annotations"] == {"cloud": "internal"}
    assert one(made, "ServiceAccount")["metadata"]["annotations"] == {"role": "r"}
    board = one(made, "ConfigMap", "streamd-dashboard")
    assert json.loads(board["data"]["streamd.json"]) == json.loads((ROOT / "deploy/grafana/streamd.json").read_text())
    assert board["metadata"]["labels"].items() >= {"folder": "graphs", "grafana_dashboard": "1"}.items() and board["metadata"]["annotations"] == {"d": "b"}
    ingress, route = one(made, "Ingress"), one(made, "HTTPRoute")
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    port, = (p["port"] for p in service["spec"]["ports"] if p["name"] == backend["port"]["name"])
    assert backend["name"] == service["metadata"]["name"] and ingress["spec"]["ingressClassName"] == "nginx"
    assert (ingress["spec"]["tls"], ingress["metadata"]["annotations"]) == (FULL["ingress"]["tls"], {"i": "n"})
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "streamd", "port": port}] and port == 8080
    assert route["spec"]["parentRefs"] == [{"name": "gateway"}] and route["spec"]["hostnames"] == ["graph.example"]


@rendered
def test_a_claim_of_ones_own_takes_the_volumes_part():
    pod, = pods(documents({"storage": {"existingClaim": "mine"}}))
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "mine"}} in pod["volumes"]
    made = documents(ALL["all-ranks"])
    assert {v["persistentVolumeClaim"]["claimName"] for pod in pods(made) for v in pod["volumes"] if v["name"] == "data"} == {"shared"}
    assert "PersistentVolumeClaim" not in {d["kind"] for d in made}
    # A claim that the chart makes stays when the release goes, unless asked otherwise.
    for policy, kept in (({}, {"helm.sh/resource-policy": "keep"}), ({"whenDeleted": "Delete"}, None)):
        claim = one(documents({"mode": "ranks", "storage": {"retentionPolicy": policy}}), "PersistentVolumeClaim", "streamd-data")
        assert claim["metadata"].get("annotations") == kept


@rendered
@pytest.mark.parametrize("role", ["score", "trial"])
def test_an_optional_role_runs_as_the_server_does_but_for_its_port(role):
    made = documents({role: {"enabled": True}, "config": CONFIG_OF[role]})
    pod, = pods(made)
    containers = {c["name"]: c for c in pod["containers"]}
    serve, own = containers["serve"], containers[role]
    assert own["args"] == ["run", "--role", role] and not {"score", "trial"} - {role} & containers.keys()
    s, _ = load_settings(None, None, one(made, "ConfigMap")["data"])
    port = getattr(s.telemetry, f"{role}_port")
    assert [p["containerPort"] for p in own["ports"]] == [port]
    assert {k: v for k, v in own.items() if k in ("image", "envFrom", "volumeMounts", "securityContext")} == {
        k: v for k, v in serve.items() if k in ("image", "envFrom", "volumeMounts", "securityContext")}
    endpoint, = one(made, "PodMonitor", f"streamd-{role}")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == role and endpoint["relabelings"][0]["replacement"] == role
    opened = {p["port"] for rule in one(made, "NetworkPolicy")["spec"]["ingress"] for p in rule["ports"]}
    assert port in opened


@rendered
def test_replicas_are_as_many_as_asked_for_or_as_an_autoscaler_says():
    for replicas, count, kinds in (({}, None, {"HorizontalPodAutoscaler"}), ({"count": 3}, 3, set()), ({"autoscaling": {"enabled": False}}, None, set())):
        made = documents(MODES["overlays/ha"] | {"replicas": replicas})
        assert one(made, "Deployment", "streamd-replica")["spec"].get("replicas") == count
        assert {d["kind"] for d in made} & {"HorizontalPodAutoscaler"} == kinds
    alone = documents(MODES["overlays/ha"] | {"members": {"count": 1}})
    assert one(alone, "StatefulSet")["spec"]["replicas"] == 1 and one(alone, "ConfigMap")["data"]["STREAMD_LOG__MEMBER"] == "leader"


@rendered
@pytest.mark.parametrize(("values", "says"), [
    ({"mode": "ha"}, "STREAMD_LOG__STORE"), ({"mode": "ha", "config": STORE, "storage": {"existingClaim": "mine"}}, "existingClaim"),
    ({"score": {"enabled": True}}, "STREAMD_SERVER__SCORE_TOPIC"), ({"trial": {"enabled": True}}, "STREAMD_TRIALS__NAME"), ({"ingress": {"enabled": True}}, "ingress.hosts"), ({"httpRoute": {"enabled": True}}, "parentRefs")])
def test_values_that_cannot_be_are_refused_with_what_to_set(values, says):
    done = render(values)
    assert done.returncode != 0 and says in done.stderr


@rendered
@pytest.mark.parametrize("mode", MODES)
def test_two_releases_in_one_namespace_share_no_object_no_pod_and_no_job(mode):
    values = MODES[mode] | {"dashboard": {"enabled": True}}
    ours, others = (documents(values, release) for release in ("streamd", "graph"))
    assert not {(d["kind"], d["metadata"]["name"]) for d in ours} & {(d["kind"], d["metadata"]["name"]) for d in others}
    for document in others:
        spec = document.get("spec", {})
        for selector in (spec.get("selector"), spec.get("podSelector")):
            if selector:
                assert selector.get("matchLabels", selector)["app.kubernetes.io/instance"] == "graph", document["kind"]
        # What an object names is of its own release.
        names = re.findall(r'"(?:secretName|claimName|serviceName|serviceAccountName)": "([^"]*)"', json.dumps(document))
        assert all(name.startswith("graph") for name in names), names
        assert spec.get("jobLabel", "app.kubernetes.io/instance") == "app.kubernetes.io/instance"
    rules = one(others, "PrometheusRule", "graph")["spec"]["groups"][0]["rules"]
    assert 'up{job="graph"} == 0' in [r["expr"] for r in rules if r["alert"] == "StreamdRoleDown"]


@rendered
def test_helm_asks_the_service_whether_it_is_ready_and_takes_the_key():
    made = documents({})
    pod = one(made, "Pod", "streamd-answers")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    container, = pod["spec"]["containers"]
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["authorization"]))
            self.send_response(200 if self.path == "/readyz" or "sesame" in self.headers["authorization"] else 401)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for key, status in (("sesame", 0), ("wrong", 1)):
            env = {"ADDRESS": f"http://127.0.0.1:{server.server_port}", "KEY": key}
            assert {e["name"] for e in container["env"]} == set(env)
            assert subprocess.run([sys.executable, "-c", container["args"][0]], env=env, capture_output=True).returncode == status
        server.shutdown()
    assert [path for path, _ in asked] == ["/readyz", "/metrics"] * 2
    address = next(e["value"] for e in container["env"] if e["name"] == "ADDRESS")
    assert address == f"http://streamd:{one(made, 'Service')['spec']['ports'][0]['port']}"


@rendered
def test_changed_settings_start_the_pod_anew():
    sums = [one(documents({"config": c}), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for c in ({}, {"STREAMD_TRAINING__EPOCHS": 3}, {})]
    assert sums[0] == sums[2] != sums[1]


@rendered
def test_a_value_that_does_not_exist_is_refused_by_helm():
    done = render({"imagee": {}})
    assert done.returncode != 0 and "imagee" in done.stderr


def merged(values, given):
    """The values of a release, as Helm merges them: null takes one out."""
    found = values | {k: merged(values[k], v) if isinstance(v, dict) and isinstance(values.get(k), dict) else v for k, v in given.items()}
    return {k: v for k, v in found.items() if v is not None}


def values():
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("given", [{}, FULL], ids=["defaults", "all"])
def test_values_fit_their_schema(given):
    jsonschema.validate(merged(values(), given), json.loads((CHART / "values.schema.json").read_text()))


@pytest.mark.parametrize("wrong", [{"imagee": {}}, {"storage": {"size": ""}}, {"mode": "replicas"}, {"image": {"digest": "1.2"}}, {"config": {"EPOCHS": "3"}}, {"resources": {"ingest": {"request": {}}}}])
def test_wrong_values_do_not(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(values(), wrong), json.loads((CHART / "values.schema.json").read_text()))


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


def test_comments_describe_every_value():
    """A block of values.yaml begins with its comment, and names those of its fields whose meaning a reader cannot guess."""
    blocks = [block for block in (CHART / "values.yaml").read_text().split("\n\n") if block.strip()]
    assert [block for block in blocks if not block.startswith("# ")] == []
    described = {key: block for block in blocks for key in yaml.safe_load(block) or {}}
    assert described.keys() == values().keys()
    for path in ("image.digest", "replicas.progressDeadlineSeconds", "replicas.autoscaling.queueRequests", "keys.existingSecret", "keys.metricsKey",
                 "storage.existingClaim", "storage.retentionPolicy", "networkPolicy.extraIngress", "networkPolicy.extraEgress", "httpRoute.hostnames"):
        comment = "\n".join(line for line in described[path.split(".")[0]].splitlines() if line.startswith("#"))
        assert re.search(rf"\b{path.split('.')[-1]}\b", comment), path
