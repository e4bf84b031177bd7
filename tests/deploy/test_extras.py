"""The extras that an image may have can be installed together with the versions that constraints.txt pins."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_AN_IMAGE = ("arrow", "client", "msk", "otel", "registry", "s3", "tfgnn")
"""The extras but for those of development (dev, docs, bench, demo), Beam's runners, a GPU, whose package is large, and azure, which needs
a package that not every index has. All are resolved at once: pins under which all of them fit fit each one."""


def resolve(requirements):
    """Let pip choose versions, without installing any."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--only-binary=:all:", "-c", ROOT / "constraints.txt", *requirements],
        capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.parametrize("names", [OF_AN_IMAGE, pytest.param((*OF_AN_IMAGE, "gs"), marks=pytest.mark.slow)], ids=["all", "and gs"])
def test_what_an_image_may_have_resolves_with_the_pinned_versions(names):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    done = resolve([requirement for name in names for requirement in extras[name]])
    if "NewConnectionError" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_pin_that_contradicts_an_extra_would_be_noticed():
    assert resolve(["botocore>9999"]).returncode != 0
