"""The recipes of a release, with an engine and a signer that write down their arguments: what is built for which platform, and that the
image is signed by the digest under which it was pushed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUSHED = "sha256:" + "b2" * 32
DOCKER = f"""#!/bin/sh
echo "docker $*" >> calls
while [ $# -gt 0 ]; do [ "$1" = --metadata-file ] && printf '{{\\n  "buildx.build.ref": "x",\\n  "containerimage.digest": "{PUSHED}"\\n}}' > "$2"; shift; done
"""
COSIGN = '#!/bin/sh\necho "cosign $*" >> calls\n'


@pytest.fixture
def recipe(tmp_path):
    """Runs a target of the Makefile in a folder of its own. Returns: the exit status and all calls so far."""
    (tmp_path / "streamd").mkdir()
    for name in ("Makefile", "streamd/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in (("docker", DOCKER), ("cosign", COSIGN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dist").mkdir()
    for name in ("a.whl", "a.tar.gz", "a.cdx.json"):
        (tmp_path / "dist" / name).touch()

    def make(*arguments):
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["make", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        calls = tmp_path / "calls"
        return done.returncode, calls.read_text().splitlines() if calls.exists() else []

    return make


def test_the_image_is_signed_by_the_digest_that_was_pushed_and_so_is_each_file(recipe):
    registry = "REGISTRY=registry.example/team"
    assert recipe("sign", registry) == (2, []), "nothing is signed by a tag"
    assert recipe("image-release", registry)[0] == 0
    status, calls = recipe("sign", registry)
    assert status == 0 and " --sbom=true --provenance=mode=max --push " in calls[0]
    assert calls[1] == f"cosign sign --yes --recursive registry.example/team/streamd@{PUSHED}"
    assert [call.split()[-1] for call in calls[2:]] == ["dist/a.whl", "dist/a.tar.gz", "dist/a.cdx.json"]
    assert all(f"--bundle {call.split()[-1]}.sigstore.json" in call for call in calls[2:])


def test_a_release_without_a_registry_pushes_nothing(recipe):
    assert recipe("image-release") == (2, []) and recipe("sign") == (2, [])


def test_an_image_for_arm64_has_kernels_for_any_such_cpu(recipe):
    assert recipe("image", "PLATFORM=linux/arm64", "CPU=generic", "DOCKER=docker")[0] == 0
    _, calls = recipe("image", "DOCKER=docker")
    arm, plain = calls
    assert "--platform linux/arm64" in arm and "--build-arg CPU=generic" in arm
    assert "--platform" not in plain and "--build-arg CPU=x86-64-v3" in plain
    assert "NUMBA_CPU_NAME=$CPU" in (ROOT / "deploy/Dockerfile").read_text()
