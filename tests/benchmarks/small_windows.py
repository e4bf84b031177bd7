"""A backtest of all regimes in small windows beside the same events in large ones: events a second of processor time."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from streamd.evaluation.backtest import Plan, Result, backtest
from streamd.eventlog.reader import LogReader
from streamd.settings.loading import load_settings
from tests.benchmarks.measure import Row, pick_size, wikipedia_edges, write_edges
from tests.builders import learning

EVENTS = pick_size(10_000, 300)
SMALL, LARGE = 5, pick_size(500, 100)
"""Events of a window."""
GAP_SECONDS = 144
"""Between two events: a large window is shorter than a day, so that the nightly models learn too."""
GOAL = 500
"""Events a second in small windows."""


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        # The first backtest also loads the kernels, which takes seconds.
        few, all_of_them = Path(folder) / "few", Path(folder) / "all"
        write_evenly(few, min(EVENTS, 1_000))
        played(few, LARGE)
        write_evenly(all_of_them, EVENTS)
        small, large = (played(all_of_them, size)[0] for size in (SMALL, LARGE))
    return [Row(f"backtest of five regimes, windows of {SMALL} events", EVENTS / small, "events/s of processor time", GOAL, "goal"),
            Row("the same", EVENTS / small, "events/s of processor time", EVENTS / large, f"windows of {LARGE} events")]


def write_evenly(path: Path, events: int) -> None:
    """The demo's first events as a log, one every GAP_SECONDS."""
    g = wikipedia_edges()
    when = np.arange(events) * GAP_SECONDS * 1_000_000
    src, dst = g["src"][:events], g["dst"][:events]
    write_edges(path, g["keys"], src, dst, when, np.zeros((events, 0), np.float32), int(when[-1]) + 10**12)


def played(path: Path, window_events: int) -> tuple[float, Result]:
    """Play a log in windows of so many events, with the default settings. Returns: seconds of processor time, and what came of it."""
    torch.set_num_threads(1)
    chosen, _ = load_settings(None, {"data_dir": path, "stream.time_unit": "us", "windows.width_seconds": window_events * GAP_SECONDS}, {})
    log = LogReader.open(path, keep_keys=False)
    begun = time.process_time()
    result = backtest(learning(chosen), log, Plan())
    assert result is not None
    return time.process_time() - begun, result
