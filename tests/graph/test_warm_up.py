"""Kernels are compiled by one process of an installation at a time, and nothing waits for that for ever."""

import os
import subprocess
import time

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
        monkeypatch.setattr(warm_up, name, lambda _: True)
    folder.mkdir(exist_ok=True)
    (folder / "facts_kernels.advance-1.nbi").touch()
    return warm_up.warm_up()


def test_kernels_are_waited_for_only_where_this_installation_compiles_them_and_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "KERNELS_SECONDS", 0.2)
    # As a stopped process would hold it.
    with FileLock(tmp_path / jit.LOCK):
        assert warmed_up(monkeypatch, tmp_path / "other") < 10
        with pytest.raises(LockedError, match="has been compiling or loading kernels for 0.2 s.*is stopped"):
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


def test_a_stop_ends_the_compilers_at_once_and_is_asked_for_all_along(tmp_path):
    code = ("import threading; from streamd.graph import warm_up; stop = threading.Event(); asked = []; threading.Timer(2, stop.set).start(); "
            "warm_up.warm_up(lambda: asked.append(1) or stop.is_set()); print(len(asked))")
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    begun = time.monotonic()
    done = subprocess.run([*PYTHON, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 10 and time.monotonic() - begun < 8, "to compile all takes 12 s of two cores"
    assert not list(tmp_path.rglob(jit.COMPILED))


def test_a_wait_for_another_process_stops_too(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "CACHE", tmp_path)
    with FileLock(tmp_path / jit.LOCK):
        asked = iter([False, False, True])
        assert warm_up.warm_up(lambda: next(asked)) < 5


WARM = ("from streamd.graph import jit, warm_up; import numba; warm_up.warm_up(); "
        "print(numba.config.CPU_NAME, sum(sum(k.dispatcher.stats.cache_misses.values()) for k in jit.KERNELS), jit.cache_problem())")


def warm(cache, **env):
    done = subprocess.run([*PYTHON, "-c", WARM], env=os.environ | {"NUMBA_CACHE_DIR": str(cache)} | env, capture_output=True, text=True, check=True)
    cpu, misses, problem = done.stdout.rstrip("\n").split(" ", 2)
    return cpu, int(misses), problem


@pytest.mark.slow
def test_a_container_takes_the_kernels_that_its_image_has_for_a_level_of_cpus(tmp_path):
    level = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    assert warm(tmp_path / "image", **level)[0] == "x86-64-v3"
    shipped = {jit.SHIPPED: str(tmp_path / "image")}
    assert warm(tmp_path / "cache", **level, **shipped) == ("x86-64-v3", 0, "")
    assert list((tmp_path / "cache").rglob("*.nbc"))


def test_a_cpu_without_the_level_compiles_for_itself(monkeypatch):
    for have, name in ((dict.fromkeys(jit.CPU_LEVELS["x86-64-v3"], True), "x86-64-v3"), ({"avx2": False}, None)):
        monkeypatch.setattr(jit.numba.config, "CPU_NAME", "x86-64-v3")
        monkeypatch.setattr(jit.numba.config, "CPU_FEATURES", "")
        monkeypatch.setattr(jit, "get_host_cpu_features", lambda have=have: have)
        jit.compile_for_this_cpu()
        assert name == jit.numba.config.CPU_NAME


def test_a_cache_that_cannot_be_kept_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/cache/numba")
    monkeypatch.setattr(jit, "CACHE", tmp_path / "kernels-1")
    assert jit.cache_problem() == ""
    for cache in (jit.TEMPORARY / "kernels-1", None):
        monkeypatch.setattr(jit, "CACHE", cache)
        assert "/cache/numba" in jit.cache_problem() and "set NUMBA_CACHE_DIR" in jit.cache_problem()
