"""TGN training on the reddit preset, beside PyG's loop in the same run: same sizes, batch 600, 172 edge features."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from streamd.eventlog.reader import LogReader
from streamd.graph.negatives import NUM_SCORED
from streamd.settings.loading import Settings
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.windows import Window
from tests.benchmarks import synth
from tests.benchmarks.measure import SHARED, Row, best_seconds, pick_size, write_edges
from tests.builders import learning, settings

WARM, BATCHES, BATCH, FEATURES, THREADS, ROUNDS = pick_size((100_000, 40, 600, 172, 2, 3), (1_000, 2, 100, 8, 2, 1))
EDGES = BATCHES * BATCH
WINDOWS, WINDOW_EDGES = pick_size((100, 500), (16, 50))


def run() -> list[Row]:
    g = synth.make("reddit")
    middle = len(g["src"]) // 2
    span = slice(middle - WARM, middle + max(EDGES, WINDOWS * WINDOW_EDGES))
    src, dst = g["src"][span], g["dst"][span]
    when = np.maximum.accumulate((g["t"][span] * 1e6).astype(np.int64)) + np.arange(len(src))
    msg = np.random.default_rng(0).normal(size=(len(src), FEATURES)).astype(np.float32)
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        write_edges(path, list(range(g["num_nodes"])), src, dst, when, msg, int(when[-1]) + 10**12)
        s = settings(path, stream__edge_feature_dim=FEATURES, model__dim=100, model__time_dim=100, model__neighbors=10,
                     model__memory_chunk=BATCH, model__max_pairs=2_000_000, training__epochs=1, training__replay_events=0,
                     training__tail_share=0.0, windows__max_events=10**6)
        log = LogReader.open(path)
        return _beside_pyg(s, log) + _window_cost(s, log)


def _beside_pyg(s: Settings, log: LogReader) -> list[Row]:
    """Both loops in turn, the best of each. The peak is what this machine multiplies square matrices at."""
    learn, few, alone, ahead, record = ([] for _ in range(5))
    peers = []
    for _ in range(ROUNDS):
        times = _once(s, log)
        learn.append(times[2])
        with _one_negative():
            few.append(_once(s, log)[2])
        torch.set_num_threads(1)
        record.append(times[0])
        alone.append(sum(_once(s, log)[:2]))
        ahead.append(sum(_once(s, log, prefetch)[:2]))
        torch.set_num_threads(THREADS)
        peers += [rate] if (rate := pyg()) is not None else []
    with FlopCounterMode(display=False) as counter:
        _once(s, log)
    flops = counter.get_total_flops() - _scoring_flops(s, log)
    a, b = torch.randn(2000, 2000), torch.randn(2000, 2000)
    peak = 2 * 2000**3 / best_seconds(lambda: a @ b, 10) / 1e9
    peer = max(peers, default=None)
    return [
        Row("TGN training, one epoch, 1 negative an event", EDGES / min(few), "edges/s", peer, "PyG's TGN, 1 negative"),
        Row("the same with 10 negatives, as we train", EDGES / min(learn), "edges/s", peer, "PyG's TGN, 1 negative"),
        Row("its matrix products", flops / min(learn) / 1e9, "GFLOP/s", peak, "one product of 2000 x 2000 matrices"),
        Row("recording and scoring against 100, 1 thread, recording one chunk ahead", EDGES / min(ahead), "edges/s",
            EDGES / min(alone), "one after the other"),
        Row("of which recording facts and neighbors", EDGES / min(record), "edges/s"),
    ]


@contextlib.contextmanager
def _one_negative() -> Iterator[None]:
    """Learn one negative of each event, as the peer does."""
    learned = np.array([0, 1 + NUM_SCORED])
    with (patch("streamd.training.recorder.NUM_LEARNED", 1), patch("streamd.training.recorder.LEARNED", learned),
          patch("streamd.training.learner.LEARNED", learned)):
        yield


def _once(s: Settings, log: LogReader, recorded=list) -> tuple[float, float, float]:
    """Seconds of recording (nothing where that happens while it is scored), scoring and one epoch of learning."""
    recorder, learner = Recorder(learning(s), log), Learner(learning(s), log, ReplayStore(None, 1, 0))
    learner.start_at(WARM)
    recorder.rebuild(WARM)
    begun = time.perf_counter()
    chunks = recorded(recorder.chunks(Window(0, 1, WARM, WARM + EDGES)))
    done = time.perf_counter()
    for chunk in chunks:
        learner.score(chunk)
    scored = time.perf_counter()
    learner.learn(WARM)
    return done - begun, scored - done, time.perf_counter() - scored


def _scoring_flops(s: Settings, log: LogReader) -> int:
    recorder, learner = Recorder(learning(s), log), Learner(learning(s), log, ReplayStore(None, 1, 0))
    learner.start_at(WARM)
    recorder.rebuild(WARM)
    with FlopCounterMode(display=False) as counter:
        for chunk in recorder.chunks(Window(0, 1, WARM, WARM + EDGES)):
            learner.score(chunk)
    return counter.get_total_flops()


def _window_cost(s: Settings, log: LogReader) -> list[Row]:
    """Windows of equal events with replay: medians of eleven windows around the 10th and before the 100th."""
    s = s.model_copy(update={"training": s.training.model_copy(update={"replay_events": 200, "epochs": 2})})
    recorder, learner = Recorder(learning(s), log), Learner(learning(s), log, ReplayStore(None, 100, 0))
    learner.start_at(WARM)
    recorder.rebuild(WARM)
    seconds = []
    for first in range(WARM, WARM + WINDOWS * WINDOW_EDGES, WINDOW_EDGES):
        begun = time.perf_counter()
        learner.begin()
        for chunk in prefetch(recorder.chunks(Window(first, first + 1, first, first + WINDOW_EDGES))):
            learner.score(chunk)
        learner.learn(first)
        seconds.append(time.perf_counter() - begun)
    return [Row(f"a window of {WINDOW_EDGES} events with replay, the 100th", 1e3 * float(np.median(seconds[-11:])), "ms",
                1e3 * float(np.median(seconds[4:15])), "the 10th")]


def pyg() -> float | None:
    """Edges/s of PyG's loop, None where it cannot run."""
    done = subprocess.run([sys.executable, str(SHARED / "pyg_tgn.py"), str(THREADS), str(BATCHES)], capture_output=True,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": str(THREADS)}, check=False)
    return float(json.loads(done.stdout.splitlines()[-1])["wall_edges_s"]) if done.returncode == 0 else None
