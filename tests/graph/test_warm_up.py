"""Kernels are compiled by one process of an installation at a time, and nothing waits for that for ever."""

import os
import subprocess

import pytest
from filelock import FileLock

from streamd.errors import LockedError
from streamd.graph import jit, warm_up
from streamd.processes import PYTHON
from tests.processes import children, is_alive, soon


def warmed_up(monkeypatch, folder):
    """Warm up with kernels that a folder keeps, all of which are there."""
    monkeypatch.setattr(jit, "CACHE", folder)
    for name in ("warm_graph", "warm_facts"):
        monkeypatch.setattr(warm_up, name, lambda: None)
    folder.mkdir(exist_ok=True)
    (folder / "facts_kernels.advance-1.nbi").touch()
    return warm_up.warm_up()


def test_kernels_are_waited_for_only_where_this_installation_compiles_them_and_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "KERNELS_SECONDS", 0.2)
    # As a stopped process would hold it.
    with FileLock(tmp_path / jit.LOCK):
        assert warmed_up(monkeypatch, tmp_path / "other") < 10
        with pytest.raises(LockedError, match="has compiled or loaded kernels for 0.2 s.*is stopped"):
            warmed_up(monkeypatch, tmp_path)
    warmed_up(monkeypatch, tmp_path)


def test_compilers_end_with_the_process_that_started_them(tmp_path):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    process = subprocess.Popen([*PYTHON, "-c", "from streamd.graph.warm_up import warm_up; warm_up()"], env=env)
    try:
        compilers = soon(lambda: len(found := children(process.pid)) == 2 and found, "it compiles")
    finally:
        process.kill()
        process.wait()
    soon(lambda: not any(map(is_alive, compilers)), "no compiler is left", seconds=10)
    assert not list(tmp_path.rglob(jit.COMPILED))
