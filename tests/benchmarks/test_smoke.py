"""Every benchmark runs at a tiny scale: its rows are there, its figures are finite, and the processes that it started have ended."""

import json
import math
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.benchmarks.parts import ALL

QUICK = ("files", "table", "ingest-sets", "traces", "cache", "growth-deletes", "growth-headers", "growth-status", "sampling-hub", "sampling-sets", "restart-sets",
         "ranks-entries", "ranks-counts-reddit-tgn", "store")
"""Parts that start no roles and take a second or two."""


def test_the_quick_benchmarks_run(tmp_path):
    check(QUICK, tmp_path, 220)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in QUICK])
def test_a_benchmark_runs(name, tmp_path):
    check((name,), tmp_path, 850)


def check(names, folder: Path, seconds: float) -> None:
    """seconds: limit of the run, less than that of pytest-timeout."""
    found, run = folder / "rows.json", uuid.uuid4().hex
    environment = os.environ | {"TMPDIR": str(folder), "BENCH_RUN": run}
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.benchmarks", "--smoke", "--json", str(found), *names]
    process = subprocess.Popen(command, env=environment)
    try:
        assert process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # It prints the stacks of its threads.
        process.wait()
        raise
    for row in json.loads(found.read_text()):
        assert row["what"] and math.isfinite(row["ours"]) and (row["peer"] is None or math.isfinite(row["peer"])), row
    assert children_of(run) == []


def children_of(run: str) -> list[str]:
    """Command lines of the processes that still have this run's mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"BENCH_RUN={run}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
