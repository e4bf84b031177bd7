"""Every file of deploy/ and k8s/, checked as far as it can be without an engine or a cluster."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import kubernetes_validate
import prometheus_client
import pytest
import yaml

from streamd import __version__
from streamd.cli.health import ANSWER_SECONDS
from streamd.cli.main import app as cli
from streamd.settings.loading import Settings, effective, load_settings
from streamd.telemetry import metrics, replica_metrics, score_metrics, trial_metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port

ROOT = Path(__file__).parents[2]
DEPLOY, K8S = ROOT / "deploy", ROOT / "k8s"
BUILDS = ["base", "overlays/gpu", "overlays/dev"]
PROCESS = {"process_resident_memory_bytes", "up"}
needs = {tool: pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed") for tool in ("kubectl", "promtool", "prometheus")}


def built(overlay):
    done = subprocess.run(["kubectl", "kustomize", str(K8S / overlay)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def one(documents, kind, name="streamd"):
    found, = (d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def config_map(documents):
    """The one ConfigMap: its name is that of the base and a hash of what it holds."""
    found, = (d for d in documents if d["kind"] == "ConfigMap")
    assert re.fullmatch(r"streamd-[a-z0-9]{10}", found["metadata"]["name"])
    return found


def overlay(tmp_path, text):
    """Documents of an overlay with this kustomization, beside those we have."""
    shutil.copytree(K8S, tmp_path / "k8s")
    folder = tmp_path / "k8s/overlays/own"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(text)
    return built(folder)


def exported():
    """Names of all series that streamd can export."""
    names = set(PROCESS)
    for metric in [m for module in (metrics, replica_metrics, score_metrics, trial_metrics) for m in vars(module).values()]:
        if isinstance(metric, prometheus_client.metrics.MetricWrapperBase):
            described, = metric.describe()
            suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[described.type]
            names |= {described.name + s for s in suffixes}
    return names


def used(expression):
    return set(re.findall(r"\b((?:streamd|process)_[a-z_]+|up)\b", re.sub(r'"[^"]*"', "", expression)))


@needs["kubectl"]
@pytest.mark.parametrize("overlay", BUILDS)
def test_every_overlay_builds_and_fits_the_schemas_of_kubernetes(overlay):
    documents = built(overlay)
    for document in documents:
        if "monitoring.coreos.com" in document["apiVersion"]:
            continue
        for version in ("1.30", "1.34"):
            kubernetes_validate.validate(document, version, strict=True)
    assert {"StatefulSet", "Service", "ConfigMap", "Secret", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"} <= {d["kind"] for d in documents}


@needs["kubectl"]
@pytest.mark.parametrize("overlay", BUILDS)
def test_the_pod_runs_restricted_and_only_serve_can_be_unready(overlay):
    documents = built(overlay)
    pod = one(documents, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [c["name"] for c in pod["containers"]] == ["ingest", "train", "serve"]
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"] and own["capabilities"] == {"drop": ["ALL"]}
        assert "startupProbe" in container and "livenessProbe" in container
        assert ("readinessProbe" in container) == (container["name"] == "serve")
        assert "memory" in container["resources"]["limits"] and "cpu" not in container["resources"]["limits"]
        assert container["args"] == ["run", "--role", container["name"]]
    assert not pod["enableServiceLinks"], "a Service named streamd makes variables that are no settings"
    grace = float(config_map(documents)["data"]["STREAMD_SERVER__DRAIN_SECONDS"]) + 30
    assert pod["terminationGracePeriodSeconds"] > grace
    assert one(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@needs["kubectl"]
@pytest.mark.parametrize("overlay", BUILDS)
def test_the_config_map_holds_settings_and_ports_are_those_listened_on(overlay):
    documents = built(overlay)
    environ = config_map(documents)["data"]
    s, origin = load_settings(None, None, environ)
    assert origin["server.api_keys_file"] == "environment"
    containers = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert [c["ports"][0]["containerPort"] for c in containers] == [s.telemetry.ingest_port, s.telemetry.train_port, s.server.port]
    keys = set(one(documents, "Secret", "streamd-keys")["stringData"])
    mounted = next(m["mountPath"] for m in containers[2]["volumeMounts"] if m["name"] == "keys")
    assert {f"{mounted}/{k}" for k in keys} >= {str(s.server.api_keys_file), str(s.server.admin_keys_file)}
    assert ("cuda" in overlay + s.device) == (overlay == "overlays/gpu")


@needs["kubectl"]
@pytest.mark.parametrize("overlay", BUILDS)
def test_no_secret_stands_in_the_config_map(overlay):
    environ = config_map(built(overlay))["data"]
    assert secrets_of(environ) == []


@pytest.mark.parametrize(("name", "value"), [
    ("STREAMD_SERVER__API_KEYS", '["hush"]'), ("STREAMD_SERVER__ADMIN_KEYS", '["hush"]'),
    ("STREAMD_KAFKA__CLIENT", '{"sasl_plain_password": "hush"}'), ("STREAMD_KAFKA__CLIENT", '{"ssl_password": "hush"}')])
def test_a_secret_in_a_config_map_would_be_noticed(name, value):
    assert secrets_of({name: value}) == [name]


def secrets_of(environ):
    """Names of variables whose setting, or a part of it, the settings mask."""
    shown = {"STREAMD_" + key.replace(".", "__").upper(): str(value)
             for key, value in effective(load_settings(None, None, environ)[0]).items()}
    return [name for name in environ if "***" in shown[name]]


@needs["kubectl"]
def test_changed_settings_start_the_pod_anew_and_the_same_ones_do_not(tmp_path):
    plain = "resources: [../../base]\n"
    changed = plain + ("configMapGenerator: [{name: streamd, behavior: merge, "
                       "literals: [STREAMD_TRAINING__EPOCHS=3]}]\n")
    names = []
    for number, text in enumerate((plain, changed, plain)):
        documents = overlay(tmp_path / str(number), text)
        containers = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
        used_names = {c["envFrom"][0]["configMapRef"]["name"] for c in containers}
        assert used_names == {config_map(documents)["metadata"]["name"]}
        names += used_names
    assert names[0] == names[2] != names[1]


@needs["kubectl"]
def test_the_overlay_for_kafka_with_credentials_builds_and_mounts_the_secret_of_the_guide():
    guide = (ROOT / "docs/operations.md").read_text()
    documents = built(K8S / "examples/kafka")
    for document in documents:
        if "monitoring.coreos.com" not in document["apiVersion"]:
            kubernetes_validate.validate(document, "1.34", strict=True)
    environ = config_map(documents)["data"]
    s, _ = load_settings(None, None, environ)
    assert s.kafka.topics == ("rides",) and secrets_of({k: v for k, v in environ.items() if k.startswith("STREAMD_")}) == []
    pod = one(documents, "StatefulSet")["spec"]["template"]["spec"]
    mounts = {c["name"]: {m["name"]: m["mountPath"] for m in c["volumeMounts"]} for c in pod["containers"]}
    assert mounts["ingest"]["kafka"] == mounts["serve"]["kafka"] == str(s.kafka.client_file.parent)
    assert "kafka" not in mounts["train"], "the trainer speaks to no broker"
    secret, = (v["secret"] for v in pod["volumes"] if v["name"] == "kafka")
    assert secret["optional"] and f"secret generic {secret['secretName']} --from-file={s.kafka.client_file.name}" in guide
    egress = one(documents, "NetworkPolicy")["spec"]["egress"]
    assert {19092, 443, 5353} <= {p["port"] for rule in egress for p in rule["ports"]}


@needs["kubectl"]
@pytest.mark.parametrize("overlay", BUILDS)
def test_metrics_are_open_to_monitoring_and_no_port_to_every_namespace(overlay):
    documents = built(overlay)
    policy = one(documents, "NetworkPolicy")["spec"]
    by_port = {}
    for rule in policy["ingress"]:
        assert all(peer.get("namespaceSelector") != {} for peer in rule["from"]), "all namespaces"
        for port in rule["ports"]:
            by_port.setdefault(port["port"], []).extend(rule["from"])
    containers = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert set(by_port) == {c["ports"][0]["containerPort"] for c in containers}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert by_port[9101] == by_port[9102] == [monitoring] and monitoring in by_port[8000]
    names, brokers = policy["egress"]
    assert {"ipBlock": {"cidr": "169.254.20.10/32"}} in names["to"], "the cache on the node"
    assert [(p["port"], p["endPort"]) for p in brokers["ports"]] == [(9092, 9098)]


@needs["kubectl"]
def test_the_base_has_no_keys_so_that_nobody_runs_with_known_ones():
    assert set(one(built("base"), "Secret", "streamd-keys")["stringData"].values()) == {""}


@needs["kubectl"]
def test_the_operators_rules_are_those_of_deploy():
    assert one(built("base"), "PrometheusRule")["spec"]["groups"] == yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]


@needs["promtool"]
def test_prometheus_takes_configuration_and_rules(tmp_path):
    key = tmp_path / "metrics_key"
    key.write_text("key\n")
    config = tmp_path / "prometheus.yaml"
    config.write_text((DEPLOY / "prometheus.yaml").read_text().replace("/run/secrets/metrics_key", str(key)))
    shutil.copy(DEPLOY / "alerts.yaml", tmp_path)
    subprocess.run(["promtool", "check", "config", str(config)], check=True, capture_output=True)


def test_alerts_and_dashboard_ask_for_series_that_exist_and_the_guide_has_every_alert():
    have = exported()
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert used(rule["expr"]) and used(rule["expr"]) <= have, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"].endswith(".")
    guide = (ROOT / "docs/operations.md").read_text()
    assert re.findall(r"^\| `(Streamd\w+)` \|", guide, re.M) == [r["alert"] for r in rules]
    board = json.loads((DEPLOY / "grafana/streamd.json").read_text())
    expressions = [t["expr"] for p in board["panels"] for t in p["targets"]]
    assert len(expressions) > 20 and all(used(e) and used(e) <= have for e in expressions)
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])


def test_the_dashboard_works_with_any_data_source_and_explains_each_panel():
    board = json.loads((DEPLOY / "grafana/streamd.json").read_text())
    variables = {v["name"]: v for v in board["templating"]["list"]}
    source, = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == source["type"]
    asking = [*board["panels"], variables["namespace"], variables["job"]]
    assert {(a["datasource"]["type"], a["datasource"]["uid"]) for a in asking} == {(source["type"], "${datasource}")}
    for panel in board["panels"]:
        assert panel["description"].endswith("."), panel["title"]
        well, limit = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert well["value"] is None and limit["value"] is not None and {well["color"], limit["color"]} == {"green", "red"}
        # Every series is one of the deployment that was chosen.
        for target in panel["targets"]:
            assert len(used(target["expr"])) and target["expr"].count('namespace=~"$namespace", job="$job"') == len(
                re.findall(r"\b(?:streamd|process)_\w+\{", target["expr"])), target["expr"]
    # The alerts that a panel names are alerts.
    alerts = {r["alert"] for r in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]}
    named = set(re.findall(r"Streamd[A-Z]\w+", " ".join(p["description"] for p in board["panels"])))
    assert len(named) >= 8 and named <= alerts


def test_compose_names_files_that_exist_and_settings_that_are_known():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        assert ":" in service["image"] and not service["image"].endswith(":latest"), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), volume
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        assert all(p.startswith("127.0.0.1:") for p in service.get("ports", [])), "published to this machine only"
    daemon = compose["services"]["streamd"]
    image = dict(re.findall(r"(STREAMD_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text()))
    s, _ = load_settings(None, None, image | daemon["environment"])
    assert daemon["read_only"]
    assert float(daemon["stop_grace_period"].rstrip("s")) > s.server.drain_seconds + 30
    jobs = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"]
    assert [j["targets"][0] for j in jobs] == [f"streamd:{p}" for p in (s.server.port, s.telemetry.ingest_port, s.telemetry.train_port)]
    made = re.findall(r"deploy/secrets/(\w+)", (ROOT / "Makefile").read_text()) + ["admin_keys", "grafana_password"]
    assert {Path(x["file"]).name for x in compose["secrets"].values()} <= set(made)


def test_the_image_is_built_from_files_that_reach_the_builder_and_runs_as_nobody():
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = {source for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M) for source in line.split()}
    assert copied and all((ROOT / c).exists() and f"!{c}" in ignored for c in copied)
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.M)
    assert {"packages-cpu", "packages-cuda"} <= set(stages) and "FROM packages-$PACKAGES AS packages\n" in text
    assert "\nARG PACKAGES=cpu\n" in text and stages[-1] == "image", "without an argument the image is that for a CPU"
    assert "USER 10001:10001" in text and "STREAMD_SERVER__HOST=0.0.0.0" in text
    ports = {int(p) for p in re.search(r"^EXPOSE (.*)$", text, re.M)[1].split()}
    defaults = Settings()
    assert ports == {defaults.server.port, defaults.telemetry.ingest_port, defaults.telemetry.train_port}


def test_the_image_asks_its_health_by_a_command_that_reads_the_settings():
    check = re.search(r"^HEALTHCHECK (.*) CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.M)
    program, *arguments = json.loads(check[2])
    assert program == "streamd" and arguments[0] in {c.name or c.callback.__name__ for c in cli.registered_commands}
    assert float(re.search(r"--timeout=(\d+)s", check[1])[1]) > ANSWER_SECONDS


def test_the_image_says_what_it_is():
    text = (DEPLOY / "Dockerfile").read_text()
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (labels["title"], labels["licenses"]) == ("streamd", project["license"])
    assert f"ARG VERSION={__version__}\n" in text
    said = subprocess.run(["make", "-n", "image", "TORCH_INDEX=the-index", "SOURCE=the-source"], cwd=ROOT,
                          capture_output=True, text=True, check=True).stdout
    given = dict(re.findall(r'--build-arg (\w+)="([^"]*)"', said))
    assert given["VERSION"] == __version__ and (given["SOURCE"], given["TORCH_INDEX"]) == ("the-source", "the-index")
    assert f"-t streamd:{__version__} ." in said
    asked = {label: re.fullmatch(r"\$(\w+)", labels[label])[1] for label in ("version", "revision", "source")}
    assert set(asked.values()) <= set(given) and set(given) == set(re.findall(r"^ARG (?!BASE)(\w+)=", text, re.M))
    assert len(re.findall("^LABEL ", text, re.M)) == 1, "labels are said once, for both images"


@pytest.mark.parametrize(("names", "status"), [
    (["torch", "numpy"], 0), (["torch", "nvidia-cudnn-cu13", "triton"], 1), (["torch", "cuda-bindings"], 1)])
def test_the_cpu_image_refuses_a_torch_for_cuda_by_what_pip_would_install(tmp_path, names, status):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": [{"metadata": {"name": n}} for n in names]}))
    done = subprocess.run([sys.executable, DEPLOY / "check_torch.py", report], capture_output=True, text=True, check=False)
    assert done.returncode == status and ("TORCH_INDEX" in done.stderr) == bool(status)


@pytest.mark.parametrize("before", ["", "@sha256:" + "0" * 64])
def test_the_base_image_is_pinned_to_the_digest_that_the_registry_tells(tmp_path, before):
    shutil.copy(DEPLOY / "pin_base.py", tmp_path)
    text = re.sub(r"^(ARG BASE=[^@\n]+).*$", rf"\1{before}", (DEPLOY / "Dockerfile").read_text(), count=1, flags=re.M)
    (tmp_path / "Dockerfile").write_text(text)
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\necho "sha256:$DIGEST"\n')
    engine.chmod(0o755)

    def pin(digest):
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DIGEST": digest}
        return subprocess.run([sys.executable, tmp_path / "pin_base.py"], env=env, capture_output=True, check=False).returncode

    assert pin("<no value>") == 1 and (tmp_path / "Dockerfile").read_text() == text
    assert pin("a1" * 32) == 0
    pinned = (tmp_path / "Dockerfile").read_text()
    assert "@sha256:" + "a1" * 32 + "\n" in pinned and "0" * 64 not in pinned
    assert len(pinned.splitlines()) == len(text.splitlines())


@needs["prometheus"]
def test_a_real_prometheus_scrapes_a_role_with_its_key_and_loads_the_rules(tmp_path):
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        role, web = a.getsockname()[1], b.getsockname()[1]
    open_port(role, "127.0.0.1", Heartbeat(tmp_path, "train"), lambda key: key == "sesame")
    (tmp_path / "key").write_text("sesame\n")
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    # The target comes by the file of further ones, as those of replicas do.
    config["scrape_configs"][0] |= {"authorization": {"credentials_file": str(tmp_path / "key")}, "static_configs": []}
    (tmp_path / "replicas.yaml").write_text(yaml.safe_dump([{"targets": [f"127.0.0.1:{role}"], "labels": {"role": "train"}}]))
    shutil.copy(DEPLOY / "alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    metrics.trained_until.set(1234)
    child = subprocess.Popen(["prometheus", f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/tsdb",
                              f"--web.listen-address=127.0.0.1:{web}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline, found = time.monotonic() + 30, []
        while not found and time.monotonic() < deadline:
            time.sleep(0.3)
            try:
                found = ask(web, "query?query=streamd_trained_until_timestamp_seconds")["data"]["result"]
            except OSError:
                continue
        assert found[0]["value"][1] == "1234" and found[0]["metric"]["role"] == "train"
        target, = ask(web, "targets")["data"]["activeTargets"]
        assert target["health"] == "up" and target["lastError"] == ""
        rules = ask(web, "rules")["data"]["groups"][0]["rules"]
        assert len(rules) >= 16 and all(r["health"] in ("ok", "unknown") for r in rules)
    finally:
        child.terminate()
        child.wait()


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}") as answer:
        return json.load(answer)
