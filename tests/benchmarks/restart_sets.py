"""Restart on a log of four edge sets beside one of the same events in one set: in turns, the best of five each.

`python -m tests.benchmarks restart-sets`
"""

import math
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.graph.live import save_facts
from streamd.schema import EdgeSet
from streamd.settings.loading import Settings
from streamd.training.recorder import Recorder
from tests.benchmarks.measure import Row, pick_size
from tests.builders import batch, learning, settings, stream

TIMES = pick_size(5, 1)
TOTAL, SEGMENT, COMMIT = pick_size((2_000_000, 500_000, 20_000), (20_000, 10_000, 1_000))
KINDS = ("views", "buys", "likes", "shares")
PARTS = ("log opened, its keys read", "graph, with facts stored", "graph and facts, nothing stored")


def write(path: Path, kinds) -> Settings:
    """A log of the events, dealt to the sets at random, in whole segments. Returns: settings to read it with."""
    src, dst, when = stream(TOTAL, 20_000, 2_000)
    schema = Schema.declared((), [EdgeSet(kind, feature_dim=2) for kind in kinds]) if len(kinds) > 1 else Schema(2, 0, 0)
    set_E, features = np.random.default_rng(0).integers(0, len(kinds), TOTAL), np.ones((COMMIT, 2), np.float32)
    writer = LogWriter(path, schema, SEGMENT)
    keys = [f"n:{i}" for i in range(int(max(src.max(), dst.max())) + 1)]
    writer.keys.update({key: i for i, key in enumerate(keys)})
    for a in range(0, TOTAL, COMMIT):
        b = a + COMMIT
        rows = batch(schema, src[a:b], dst[a:b], when[a:b], keys if a == 0 else ())
        rows.msg_ED[:] = sum(schema.edge_rows(n, features) * (set_E[a:b] == n)[:, None] for n in range(len(kinds))) if len(kinds) > 1 else 1.0
        writer.commit(rows, Progress(), int(when[b - 1]))
    writer.close()
    return settings(path, stream__edge_feature_dim=schema.edge_feature_dim)


def seconds_of(own: Settings, folder: Path) -> tuple[float, float, float]:
    """Seconds of the PARTS of a restart, each with what comes before it."""
    begun = time.perf_counter()
    log = LogReader.open(own.data_dir)
    opened = time.perf_counter() - begun

    recorder = Recorder(learning(own), log)
    stored = folder.exists() and recorder.live.restore_facts(folder, log.num_edges) == log.num_edges
    recorder.rebuild(log.num_edges)
    taken = time.perf_counter() - begun
    assert recorder.edge == recorder.live.graph.next_event == TOTAL
    if not stored:
        save_facts(recorder.live.facts, folder)
    return opened, taken if stored else math.inf, math.inf if stored else taken


def run() -> list[Row]:
    best = {}
    with tempfile.TemporaryDirectory() as place:
        logs = {kinds: write(Path(place) / str(len(kinds)), kinds) for kinds in (KINDS[:1], KINDS)}
        for turn in range(TIMES):
            for kinds, own in logs.items():
                # Once without stored facts, which it stores, and once with them.
                for _ in range(2):
                    found = seconds_of(own, Path(place) / f"facts-{len(kinds)}-{turn}")
                    best[kinds] = np.minimum(best.get(kinds, math.inf), found)
    return [Row(f"restart on four edge sets: {part}", TOTAL / best[KINDS][i] / 1e6, "M events/s", TOTAL / best[KINDS[:1]][i] / 1e6, "one edge set")
            for i, part in enumerate(PARTS)]


if __name__ == "__main__":
    for row in run():
        print(row.what, round(row.ours, 3), round(row.peer, 3), round(row.ours / row.peer, 3))
