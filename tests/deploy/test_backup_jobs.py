"""The examples of a backup and a restore on Kubernetes fit its schemas, run commands that exist, and use the volume of the base."""

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from streamd.cli.main import app
from tests.deploy.test_deploy import K8S, built, needs, one
from tests.deploy.test_volumes import image_environment


def job(name):
    document = yaml.safe_load((K8S / f"examples/{name}.yaml").read_text())
    for version in ("1.30", "1.34"):
        kubernetes_validate.validate(document, version, strict=True)
    spec = document["spec"]
    return (spec["jobTemplate"]["spec"] if document["kind"] == "CronJob" else spec)["template"]


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_a_job_runs_a_command_of_streamd_restricted_and_restartable(name):
    template = job(name)
    pod = template["spec"]
    container = pod["containers"][-1]
    command, *options = container["args"]
    assert command == name
    context = get_command(app).commands[command].make_context(command, list(options))
    if name == "restore":
        assert str(context.params["data_dir"]) == image_environment()["STREAMD_DATA_DIR"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["enableServiceLinks"]
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"] and own["capabilities"] == {"drop": ["ALL"]}
        assert {m["mountPath"] for m in container["volumeMounts"]} == {"/data", "/tmp"}


@needs["kubectl"]
@pytest.mark.parametrize("name", ["backup", "restore"])
def test_a_job_mounts_the_volume_of_the_base(name):
    base = one(built("base"), "StatefulSet")
    claim, = base["spec"]["volumeClaimTemplates"]
    pod = job(name)["spec"]
    volume, = (v for v in pod["volumes"] if "persistentVolumeClaim" in v)
    assert volume["persistentVolumeClaim"]["claimName"] == f"{claim['metadata']['name']}-{base['metadata']['name']}-0"
    assert pod["securityContext"] == base["spec"]["template"]["spec"]["securityContext"]
    assert pod["serviceAccountName"] == base["spec"]["template"]["spec"]["serviceAccountName"]


def test_a_backup_runs_on_the_node_that_has_the_volume_and_a_job_is_no_member_of_the_service():
    base = yaml.safe_load((K8S / "base/statefulset.yaml").read_text())["spec"]["template"]["metadata"]["labels"]
    rule, = job("backup")["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    wanted = rule["labelSelector"]["matchLabels"]
    assert wanted == base | {"app.kubernetes.io/name": "streamd"}
    assert all(job(name)["metadata"]["labels"]["app.kubernetes.io/component"] != base["app.kubernetes.io/component"] for name in ("backup", "restore"))
