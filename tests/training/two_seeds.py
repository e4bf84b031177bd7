"""Makes `two_seeds.npz`: ranks of the same events of two demo streams by two models that differ in their seed alone.

`python -m tests.training.two_seeds` takes a quarter of an hour. For each stream: uint8[2, E], twice the rank of the true
destination among 101 candidates, by seed; every window of the default width is scored before it is learned.
"""

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import torch

from streamd.demo.streams import STREAMS
from streamd.eventlog.reader import LogReader
from streamd.graph.negatives import SCORED
from streamd.graph.ranking import ranks
from streamd.settings.loading import load_settings
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.benchmarks.measure import write_edges
from tests.builders import learning

FILE = Path(__file__).with_name("two_seeds.npz")
DAYS = 10


def both(name: str) -> np.ndarray:
    """uint8[2, E] of the first days of a demo stream."""
    stream = STREAMS[name]
    parts, nodes = [], {}
    for hour in stream.windows(DAYS):
        for out in hour:
            event = msgspec.json.decode(out.value)
            src, dst = (nodes.setdefault(event[end], len(nodes)) for end in ("src", "dst"))
            parts.append((src, dst, event["time"], event.get("features", [])))
    src, dst, seconds = (np.array([p[i] for p in parts], np.int64) for i in range(3))
    features = np.array([p[3] for p in parts], np.float32).reshape(len(parts), len(stream.edge_features))
    with tempfile.TemporaryDirectory() as folder:
        write_edges(Path(folder), list(nodes), src, dst, seconds * 1_000_000, features, int(seconds[-1] + 7200) * 1_000_000)
        settings = load_settings(None, {"data_dir": folder, "stream.edge_feature_dim": features.shape[1]}, environ={})[0]
        log = LogReader.open(Path(folder))
        recorder = Recorder(learning(settings), log)
        learners = []
        for seed in (0, 1):
            own = settings.model_copy(update={"training": settings.training.model_copy(update={"seed": seed})})
            learners.append(Learner(learning(own), log, ReplayStore.of(learning(own))))
        found, edge = [], 0
        while (window := next_window(log, edge, settings.windows.width_seconds * 1_000_000)) is not None:
            for learner in learners:
                learner.begin()
            for chunk in recorder.chunks(window):
                logits = [learner.score(chunk) for learner in learners]
                if chunk.score is not None:
                    found.append(np.stack([2 * ranks(own[:, SCORED]) for own in logits]))
            for learner in learners:
                learner.learn(window.first_edge)
            edge = window.end_edge
            print(f"{name} {edge} of {len(src)}", end="\r")
        return np.concatenate(found, 1).astype(np.uint8)


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.savez_compressed(FILE, **{name: both(name) for name in STREAMS})
