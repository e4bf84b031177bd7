"""Each extra of pyproject.toml can be installed with the versions that constraints.txt pins."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TOGETHER = ("arrow", "client", "iceberg", "mlflow", "msk", "otel", "registry", "s3", "sql", "tfgnn")
"""Extras that are resolved at once: pins under which all of them fit fit each one."""
ALONE = ("azure", "bench", "demo", "dev", "docs", "gpu", "gs")
"""Extras that take minutes or have packages that not every index has; CI installs those of development by the pins."""
WITHOUT_PINS = ("beam",)
"""Apache Beam needs older versions of protobuf and pyarrow, so it has an environment of its own: docs/tfgnn.md."""


def resolve(requirements):
    """Let pip choose versions, without installing any."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--only-binary=:all:", "-c", ROOT / "constraints.txt", *requirements],
        capture_output=True, text=True, check=False, timeout=400)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("names", [TOGETHER, *(pytest.param((name,), marks=pytest.mark.slow) for name in ALONE)], ids="+".join)
def test_an_extra_resolves_with_the_pinned_versions(names):
    done = resolve([requirement for name in names for requirement in EXTRAS[name]])
    if "NewConnectionError" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr[-3000:]


def test_no_extra_is_left_out():
    assert sorted(EXTRAS) == sorted((*TOGETHER, *ALONE, *WITHOUT_PINS))


def test_a_pin_that_contradicts_an_extra_would_be_noticed():
    assert resolve(["botocore>9999"]).returncode != 0
