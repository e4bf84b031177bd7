"""Changed kernels are compiled again: the cache is named by all sources that machine code is made of."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streamd
from streamd.graph import jit
from streamd.graph.kernel_types import INTS, WRITTEN_INTS

PACKAGE = Path(streamd.__file__).parent
INNER = """
from numba import njit
from streamd.graph.jit import inner

@inner
def value():
    return {}
"""
OUTER = """
from streamd.graph.jit import kernel
from streamd.graph.inner_of_test import value

@kernel
def answer():
    return value()
"""


def test_files_with_kernels_lie_where_the_hash_looks():
    for path in PACKAGE.rglob("*.py"):
        if "streamd.graph.jit import kernel" in path.read_text() or "import inner" in path.read_text():
            assert path.relative_to(PACKAGE).parts[0] in jit.ROOMS, path


def test_kernels_of_the_roles_declare_what_they_are_compiled_for():
    """Of ranks and of a GPU too, whose roles no test warms up."""
    for room in ("graph", "gpu"):
        for path in (PACKAGE / room).glob("*.py"):
            assert "@kernel" not in path.read_text() and "njit" not in path.read_text() or path.name == "jit.py", path


def doubled(values, out):
    for i in range(len(values)):
        out[i] = 2 * values[i]


def test_a_kernel_takes_arrays_of_any_layout_and_is_compiled_once():
    double = jit.Kernel(doubled, (INTS, WRITTEN_INTS))
    double.dispatcher = jit.njit(nogil=True)(doubled)  # nothing of it is kept
    read_only = np.arange(4)
    read_only.flags.writeable = False
    for values in (np.arange(4), read_only, np.arange(8)[::2], np.arange(4, dtype=np.int32), np.arange(8).reshape(4, 2)[:, 1]):
        out = np.zeros(4, np.int64)
        double(values, out)
        assert out.tolist() == (2 * values).tolist()
    assert len(double.dispatcher.signatures) == 1
    for wrong in ((np.ones(4), np.zeros(4, np.int64)), (np.arange(4), np.zeros(8, np.int64)[::2]), (np.arange(4), read_only)):
        with pytest.raises(TypeError, match="No matching definition"):
            double(*wrong)


def test_the_hash_follows_every_source(tmp_path):
    shutil.copytree(PACKAGE / "graph", tmp_path / "graph", ignore=shutil.ignore_patterns("__pycache__"))
    before = jit.sources_hash(tmp_path)
    assert before == jit.sources_hash(tmp_path)
    for path in [tmp_path / "graph" / name for name in ("hashing.py", "blocks/kernels.py", "facts/kernels.py")]:
        path.write_text(path.read_text() + "\n# changed\n")
        assert (after := jit.sources_hash(tmp_path)) != before
        before = after


def test_each_installation_has_kernels_of_its_own(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "graph/blocks").mkdir(parents=True)
        (tmp_path / name / "graph/blocks/kernels.py").touch()
    assert jit.sources_hash(tmp_path / "one") != jit.sources_hash(tmp_path / "two")


def test_a_kernel_whose_inlined_function_changed_in_another_file_gives_the_new_answer(tmp_path):
    package = tmp_path / "streamd"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "static", "data"))
    (package / "graph/outer_of_test.py").write_text(OUTER)
    command = [sys.executable, "-c", "from streamd.graph.outer_of_test import answer; print(answer())"]
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for value in (1, 2):
        (package / "graph/inner_of_test.py").write_text(INNER.format(value))
        for _ in range(2):
            done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
            assert done.stdout.strip() == str(value)
    assert len(list((tmp_path / "cache/streamd").glob("kernels-*"))) == 2


def test_a_cache_that_others_may_write_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "TEMPORARY", tmp_path / "other")
    assert jit.cache_folder().is_relative_to(tmp_path / "streamd")
    (tmp_path / "streamd").chmod(0o777)
    assert jit.cache_folder().is_relative_to(tmp_path / "other")
    (tmp_path / "other").chmod(0o777)
    assert jit.cache_folder() is None
