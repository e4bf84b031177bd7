"""TGN training on the reddit preset, beside PyG's loop in the same run: same sizes, batch 600, 172 edge features."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from streamd.segments.reader import LogReader
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import Window
from tests.benchmarks.measure import SHARED, Row, load_synth, write_edges
from tests.builders import settings

WARM, BATCHES, BATCH, FEATURES, THREADS = 100_000, 40, 600, 172, 2


def run() -> list[Row]:
    synth = load_synth()
    if synth is None:
        return []
    g = synth.make("reddit")
    middle = len(g["src"]) // 2
    span = slice(middle - WARM, middle + BATCHES * BATCH)
    src, dst = g["src"][span], g["dst"][span]
    when = np.maximum.accumulate((g["t"][span] * 1e6).astype(np.int64)) + np.arange(len(src))
    msg = np.random.default_rng(0).normal(size=(len(src), FEATURES)).astype(np.float32)
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        schema = write_edges(path, list(range(g["num_nodes"])), src, dst, when, msg, int(when[-1]) + 10**12)
        s = settings(path, stream__edge_feature_dim=FEATURES, model__dim=100, model__time_dim=100, model__neighbors=10,
                     model__memory_chunk=BATCH, model__max_pairs=2_000_000, training__epochs=1, training__replay_events=0,
                     training__tail_share=0.0, windows__max_events=10**6)
        log = LogReader(path)
        log.refresh()
        recorder, learner = Recorder(s, log), Learner(s, schema, ReplayStore(None, 1, 0), WARM)
        recorder.rebuild(WARM)
        begun = time.perf_counter()
        chunks = list(recorder.chunks(Window(0, 1, WARM, len(src))))
        recorded = time.perf_counter()
        for chunk in chunks:
            learner.score(chunk)
        scored = time.perf_counter()
        learner.learn(WARM)
        learned = time.perf_counter()
    edges = BATCHES * BATCH
    peer = pyg()
    return [
        Row("TGN training, one epoch, 10 negatives an event", edges / (learned - scored), "edges/s", peer,
            "PyG's TGN, 1 negative an event"),
        Row("TGN: record inputs, score against 100, learn", edges / (learned - begun), "edges/s"),
        Row("TGN: of which recording facts and neighbours", edges / (recorded - begun), "edges/s"),
    ]


def pyg() -> float | None:
    """Edges/s of PyG's loop, None where it cannot run."""
    done = subprocess.run([sys.executable, str(SHARED / "pyg_tgn.py"), str(THREADS), str(BATCHES)], capture_output=True,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": str(THREADS)}, check=False)
    return float(json.loads(done.stdout.splitlines()[-1])["wall_edges_s"]) if done.returncode == 0 else None
