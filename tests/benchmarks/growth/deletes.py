"""Deletes of single edges and of nodes: as they come, a hundred a commit, and all at a restart."""

import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
import structlog

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from tests.benchmarks.growth.journal import UnsyncedDisk
from tests.benchmarks.measure import Row, pick_size

SCHEMA = Schema()
DELETES, EVENTS, SEGMENT_EDGES = pick_size(((10_000, 100_000), 1_000_000, 50_000), ((200, 1_000), 10_000, 1_000))
A_COMMIT = 100


def run() -> list[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    rows = []
    for kind in ("single edges", "nodes"):
        with tempfile.TemporaryDirectory() as folder:
            few, many = (life(Path(folder) / str(n), n, kind == "nodes") for n in DELETES)
        rows += [Row(f"{DELETES[1]:,} deletes of {kind}, {name}", many[name], "us a delete", few[name], f"{DELETES[0]:,}")
                 for name in few]
    return rows


def life(path: Path, deletes: int, of_nodes: bool) -> dict[str, float]:
    """Microseconds a delete: in ingest's check and in a tail that follows, and at a restart."""
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 200_000, (2, EVENTS))
    when = np.arange(EVENTS) // 10
    writer = LogWriter(path, SCHEMA, SEGMENT_EDGES, UnsyncedDisk())
    writer.keys.update({i: i for i in range(200_000)})
    for a in range(0, EVENTS, SEGMENT_EDGES):
        part = slice(a, a + SEGMENT_EDGES)
        edges = dataclasses.replace(empty_batch(SCHEMA), src_E=src[part], dst_E=dst[part], time_E=when[part],
                                    msg_ED=np.zeros((SEGMENT_EDGES, 0), np.float32), new_keys=range(200_000) if not a else ())
        writer.commit(edges, Progress(), int(when[part][-1]))

    # Each commit of deletes is checked as ingest does and taken in by a tail, which asks what is hidden.
    reader = LogReader.open(path)
    doomed = rng.permutation(200_000 if of_nodes else EVENTS)[:deletes]
    checked = followed = 0.0
    for a in range(0, deletes, A_COMMIT):
        rows = np.zeros(A_COMMIT, DELETION)
        some = doomed[a:a + A_COMMIT]
        rows["src"], rows["dst"], rows["time"] = (some, -1, -1) if of_nodes else (src[some], dst[some], when[some])
        begun = time.perf_counter()
        if not of_nodes:
            assert writer.count_edges(*(np.ascontiguousarray(rows[n]) for n in ("src", "dst", "time"))).all()
        checked += time.perf_counter() - begun
        writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), int(when[-1]))
        begun = time.perf_counter()
        reader.refresh()
        reader.hidden(EVENTS - 100, EVENTS)
        followed += time.perf_counter() - begun
    writer.close()
    begun = time.perf_counter()
    again = LogReader.open(path)
    restarted = time.perf_counter() - begun
    assert np.array_equal(np.sort(again.deletions.edges), np.sort(reader.deletions.edges))
    assert (of_nodes and len(again.deletions.nodes) == deletes) or len(again.deletions.edges) >= deletes
    found = {"checked by ingest": checked, f"followed, {A_COMMIT} a commit": followed, "restart, keys included": restarted}
    return {name: 1e6 * seconds / deletes for name, seconds in found.items() if seconds and (name[0] != "c" or not of_nodes)}
