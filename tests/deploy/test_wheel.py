"""What `make wheel` made: the wheel holds all that the package needs, installs alone, and its SBOM says what it brings."""

import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = Path(os.environ.get("WHEEL_DIST", "none"))
BIN = Path(os.environ.get("WHEEL_BIN", "none"))
pytestmark = pytest.mark.skipif(not DIST.is_dir(), reason="`make wheel` builds it and runs this")


def tracked():
    """Files of the package that git knows."""
    done = subprocess.run(["git", "ls-files", "streamd"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_wheel_holds_every_file_of_the_package_and_no_other():
    wheel, = DIST.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    have = tracked()
    assert {Path(n).suffix for n in have} >= {".py", ".typed", ".html", ".gz", ".cu", ".proto", ".binpb"}
    assert names == have


def test_wheel_and_source_have_the_licence():
    wheel, = DIST.glob("*.whl")
    source, = DIST.glob("*.tar.gz")
    assert any(n.endswith("licenses/LICENSE") for n in zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        assert any(n.endswith("/LICENSE") for n in archive.getnames())


def test_it_runs_where_nothing_else_is(tmp_path):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for args, says in ((["--help"], "backtest"), (["--version"], "."), (["config", "--schema"], "$schema"), (["config"], "model.name")):
        done = subprocess.run([BIN / "streamd", *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and says in done.stdout, done.stderr
    where = subprocess.run([BIN / "python", "-c", "import streamd; print(streamd.__file__)"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert Path(where.stdout.strip()).is_relative_to(BIN.parent)


def test_the_sbom_lists_what_was_installed_as_pinned():
    file, = DIST.glob("*.cdx.json")
    bom = json.loads(file.read_text())
    assert bom["bomFormat"] == "CycloneDX" and bom["metadata"]["component"]["name"] == "streamd"
    listed = {re.sub(r"[-_.]+", "-", c["name"]).lower(): c["version"] for c in bom["components"]}
    pins = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    assert {"torch", "numba", "fastapi", "kafka-python"} <= listed.keys() and not {"pytest", "mypy", "pip"} & listed.keys()
    wrong = {n: v for n, v in listed.items() if n != "streamd" and pins.get(n, v).split("+")[0] != v.split("+")[0]}
    assert wrong == {}
