"""The overlay of a leader and replicas, and the same by compose: checked as far as it can be without a cluster or an engine."""

import copy
import json
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from streamd.cli.main import app
from streamd.roles import ALL_ROLES
from streamd.settings.loading import load_settings
from tests.deploy.test_deploy import DEPLOY, K8S, built, config_map, exported, needs, one, used


@pytest.fixture(scope="module")
def documents():
    return built("overlays/ha")


def pod_of(documents, kind, name):
    return one(documents, kind, name)["spec"]["template"]["spec"]


def settings_of(documents, container):
    """The settings that a container runs with: those of the ConfigMap, and its own above them."""
    own = {e["name"]: e.get("value", "").replace("$(ZONE)", "b") for e in container.get("env", []) if e["name"] != "ZONE"}
    return load_settings(None, None, config_map(documents)["data"] | own)[0]


@needs["kubectl"]
def test_the_overlay_fits_the_schemas_of_kubernetes(documents):
    for document in documents:
        if "monitoring.coreos.com" not in document["apiVersion"]:
            for version in ("1.30", "1.34"):
                kubernetes_validate.validate(document, version, strict=True)


@needs["kubectl"]
@pytest.mark.parametrize(("kind", "name"), [("Deployment", "streamd-replica"), ("HorizontalPodAutoscaler", "streamd-replica"),
                                            ("PodDisruptionBudget", "streamd-replica"), ("NetworkPolicy", "streamd-replica")])
def test_a_field_that_kubernetes_does_not_know_is_noticed(documents, kind, name):
    wrong = copy.deepcopy(one(documents, kind, name))
    wrong["spec"]["maxReplica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="maxReplica"):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


@needs["kubectl"]
def test_two_pods_may_lead_and_the_others_follow(documents):
    leader, replica = pod_of(documents, "StatefulSet", "streamd"), pod_of(documents, "Deployment", "streamd-replica")
    assert [c["name"] for c in leader["containers"]] == ["ingest", "train", "archive"]
    assert {c["args"][-1] for c in leader["containers"] + replica["containers"]} == set(ALL_ROLES) - {"score", "trial"}, "these run where the settings name a topic"
    assert [c["name"] for c in replica["containers"]] == ["follow", "serve"]
    assert {settings_of(documents, c).log.member for c in leader["containers"]} == {"standby"}
    assert {settings_of(documents, c).log.member for c in replica["containers"]} == {"replica"}
    assert len({(s.log.name, s.log.store) for c in leader["containers"] + replica["containers"] for s in [settings_of(documents, c)]}) == 1
    assert json.loads(replica["containers"][0]["env"][2]["value"].replace("$(ZONE)", "b")) == {"client_rack": "b"}
    for container in leader["containers"] + replica["containers"]:
        get_command(app).commands["run"].make_context("run", list(container["args"][1:]))


@needs["kubectl"]
def test_members_are_two_on_two_machines_and_none_waits_for_the_other(documents):
    found = one(documents, "StatefulSet", "streamd")
    spec, pod = found["spec"], found["spec"]["template"]["spec"]
    assert spec["replicas"] == 2 and spec["podManagementPolicy"] == "Parallel"
    s = settings_of(documents, pod["containers"][0])
    assert spec["minReadySeconds"] >= 2 * s.leader.timeout_seconds
    rule, = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["volumeClaimTemplates"], "each has a volume of its own"
    # Who follows takes manifests and versions from the store, with its credentials.
    assert all({"secretRef": {"name": "streamd-store", "optional": True}} in c["envFrom"] for c in pod["containers"])
    assert one(documents, "PodDisruptionBudget", "streamd")["spec"]["maxUnavailable"] == 1


@needs["kubectl"]
def test_replicas_run_restricted_and_only_their_servers_can_be_unready(documents):
    pod = pod_of(documents, "Deployment", "streamd-replica")
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["enableServiceLinks"] and not pod["automountServiceAccountToken"]
    for container in pod["containers"] + pod_of(documents, "StatefulSet", "streamd")["containers"]:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"] and own["capabilities"] == {"drop": ["ALL"]}
        assert "startupProbe" in container and "livenessProbe" in container
        assert ("readinessProbe" in container) == (container["name"] == "serve")
        assert "memory" in container["resources"]["limits"] and "cpu" not in container["resources"]["limits"]
    assert {c["topologyKey"] for c in pod["topologySpreadConstraints"]} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    grace = settings_of(documents, pod["containers"][1]).server.drain_seconds + 30
    assert pod["terminationGracePeriodSeconds"] > grace


@needs["kubectl"]
def test_callers_reach_replicas_alone_and_prometheus_every_role(documents):
    labels = {"app.kubernetes.io/name": "streamd", "app.kubernetes.io/component": "replica"}
    assert one(documents, "Service")["spec"]["selector"] == labels
    assert one(documents, "Deployment", "streamd-replica")["spec"]["selector"]["matchLabels"] == labels
    for name, policy, pod in (("streamd-replica", "streamd-replica", pod_of(documents, "Deployment", "streamd-replica")),
                              ("streamd", "streamd", pod_of(documents, "StatefulSet", "streamd"))):
        ports = {p["name"]: p["containerPort"] for c in pod["containers"] for p in c["ports"]}
        s = settings_of(documents, pod["containers"][0])
        listened = {"ingest": s.telemetry.ingest_port, "train": s.telemetry.train_port, "archive": s.telemetry.archive_port,
                    "follow": s.telemetry.ingest_port, "http": s.server.port}
        assert ports == {name: listened[name] for name in ports}
        monitor, = (d["spec"] for d in documents if d["kind"] in ("ServiceMonitor", "PodMonitor") and d["metadata"]["name"] == name)
        endpoints = monitor.get("endpoints") or monitor["podMetricsEndpoints"]
        assert {e["port"] for e in endpoints} == set(ports) and monitor["jobLabel"] == "app.kubernetes.io/name"
        opened = {p["port"] for rule in one(documents, "NetworkPolicy", policy)["spec"]["ingress"] for p in rule["ports"]}
        assert opened == set(ports.values())
        # Of the members a Service names the ports; of the replicas it has the callers' alone, and Prometheus asks the pods.
        component = monitor["selector"]["matchLabels"]["app.kubernetes.io/component"]
        service, = (d["spec"] for d in documents if d["kind"] == "Service" and d["metadata"]["labels"]["app.kubernetes.io/component"] == component)
        assert {p["name"] for p in service["ports"]} == ({"http"} if component == "replica" else set(ports))
        out = {p["port"] for rule in one(documents, "NetworkPolicy", policy)["spec"]["egress"] for p in rule["ports"]}
        assert out == {53, 443, 9092}


@needs["kubectl"]
def test_the_autoscaler_waits_for_as_long_as_a_replica_takes_to_start(documents):
    spec = one(documents, "HorizontalPodAutoscaler", "streamd-replica")["spec"]
    assert spec["scaleTargetRef"]["name"] == one(documents, "Deployment", "streamd-replica")["metadata"]["name"]
    assert "replicas" not in one(documents, "Deployment", "streamd-replica")["spec"], "applying again would undo the autoscaler"
    assert spec["minReplicas"] >= 2 and spec["behavior"]["scaleUp"]["stabilizationWindowSeconds"] >= 60
    assert {m["type"] for m in spec["metrics"]} == {"ContainerResource", "Pods"}
    assert one(documents, "PodDisruptionBudget", "streamd-replica")["spec"]["maxUnavailable"] == 1


@needs["kubectl"]
def test_the_example_for_keda_scales_as_the_autoscaler_does(documents):
    spec = yaml.safe_load((K8S / "examples/keda.yaml").read_text())["spec"]
    scaler = one(documents, "HorizontalPodAutoscaler", "streamd-replica")["spec"]
    assert spec["scaleTargetRef"]["name"] == scaler["scaleTargetRef"]["name"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (scaler["minReplicas"], scaler["maxReplicas"])
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    cpu, requests = (t["metadata"] for t in spec["triggers"])
    resource, pods = (m.get("containerResource") or m["pods"] for m in scaler["metrics"])
    assert (cpu["containerName"], cpu["value"]) == (resource["container"], str(resource["target"]["averageUtilization"]))
    assert f"sum({pods['metric']['name']}{{" in requests["query"] and requests["threshold"] == pods["target"]["averageValue"]
    assert used(requests["query"]) <= exported()


def test_compose_runs_two_replicas_of_its_streamd_behind_a_proxy(tmp_path):
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    more = yaml.safe_load((DEPLOY / "compose.replicas.yaml").read_text())
    image = dict(re.findall(r"(STREAMD_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text()))
    leader, _ = load_settings(None, None, image | compose["services"]["streamd"]["environment"] | more["services"]["streamd"]["environment"])
    replicas = [more["services"][name] for name in ("replica-1", "replica-2")]
    for replica in replicas:
        s, _ = load_settings(None, None, image | replica["environment"])
        assert (s.log.name, s.log.store, s.kafka.bootstrap_servers) == (leader.log.name, leader.log.store, leader.kafka.bootstrap_servers)
        assert s.log.member == "replica" and replica["image"] == compose["services"]["streamd"]["image"] and replica["read_only"]
        assert set(replica["secrets"]) <= set(compose["secrets"])
    volumes = [v.split(":")[0] for r in replicas for v in r["volumes"]]
    assert len(set(volumes)) == 5 and set(volumes) <= set(more["volumes"]), "each has a directory of its own, the store is one"
    # Prometheus looks at each role of each of the machines: of the leader's those that compose.yaml alone does not run.
    mounted, = (v.split(":") for v in more["services"]["prometheus"]["volumes"])
    pattern, = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]["file_sd_configs"][0]["files"]
    assert fnmatch(Path(mounted[1]).name, pattern) and Path(mounted[1]).parent == Path("/etc/prometheus")
    jobs = {job["labels"]["role"]: job["targets"] for job in yaml.safe_load((DEPLOY / mounted[0]).read_text())}
    ports = {"archive": leader.telemetry.archive_port, "serve": s.server.port, "follow": s.telemetry.ingest_port}
    assert jobs == {role: [f"{host}:{port}" for host in (["streamd"] if role == "archive" else ["replica-1", "replica-2"])]
                    for role, port in ports.items()}
    proxy = (DEPLOY / "proxy.conf").read_text()
    assert set(re.findall(r"server (\S+):8000 resolve ", proxy)) == {"replica-1", "replica-2"}, "a replica that starts again has another address"
    assert more["services"]["proxy"]["volumes"] == ["./proxy.conf:/etc/nginx/proxy.conf:ro"]
    start = more["services"]["proxy"]["entrypoint"][2].replace("$$", "$")
    (tmp_path / "resolv.conf").write_text("search dns.podman\nnameserver 10.89.0.1\nnameserver 192.0.2.53\n")
    start = start.replace("/etc/resolv.conf", f"{tmp_path}/resolv.conf").replace("/etc/nginx/proxy.conf", str(DEPLOY / "proxy.conf"))
    start = start.replace("/etc/nginx/conf.d/default.conf", f"{tmp_path}/made.conf").partition("&& exec nginx")[0]
    subprocess.run(["sh", "-c", start], check=True)
    made = (tmp_path / "made.conf").read_text()
    assert made == proxy.replace("resolver NAME_SERVER ", "resolver 10.89.0.1 ").replace("NAME_SERVER", "10.89.0.1") != proxy
    assert not re.search(r"events", re.search(r"location ~ (\S+) ", proxy)[1]), "events are sent once"
