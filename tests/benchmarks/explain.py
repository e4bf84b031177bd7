"""/v1/explain beside /v1/score of the same pairs in the same run, on the demo's month with a version of the default settings."""

import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.settings.loading import load_settings
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from tests.benchmarks.measure import Row, pick_size, wikipedia_log
from tests.server.world import World, wait

ROUNDS = pick_size(300, 5)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        wikipedia_log(path)
        chosen, _ = load_settings(None, {"data_dir": path, "stream.time_unit": "us", "bootstrap.max_events": 0}, {})
        world = World.of(path, chosen)
        log = LogReader.open(path, keep_keys=False)
        trainer = Trainer(chosen, Paths.of(chosen, "train"), "cpu", log, world.registry, SystemClock(), Heartbeat(path, "train"))
        for _ in range(3):
            trainer.process(next_window(log, trainer.edge, chosen.windows.width_seconds * 1_000_000))
        world.run()
        wait(lambda: world.engine.status.ready, 600)
        src, dst, _ = log.edges(log.num_edges - ROUNDS, log.num_edges)
        keys = LogReader.open(path).keys
        pairs = [(keys[u], keys[v]) for u, v in zip(src, dst, strict=True)]

        # In turn, so that what else the machine does falls on both.
        seconds = np.zeros((ROUNDS, 3))
        for i, (u, v) in enumerate(pairs):
            for n, (route, body) in enumerate((
                    ("explain", {"src": u, "dst": v}), ("score", {"src": u, "dst": [v]}),
                    ("score", {"src": u, "dst": [w for _, w in pairs[:100]]}))):
                begun = time.perf_counter()
                answer = world.client.post(f"/v1/{route}", json=body)
                seconds[i, n] = time.perf_counter() - begun
                assert answer.status_code == 200
        world.stop()
    ms = 1e3 * np.percentile(seconds, (50, 99), axis=0)
    return [Row(f"/v1/explain, in process: p{q}", float(ms[i, 0]), "ms", float(ms[i, n]), f"/v1/score, {c} candidates")
            for i, q in enumerate((50, 99)) for n, c in ((1, 1), (2, 100))]
