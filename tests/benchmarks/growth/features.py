"""One update of node features after many of them, the memory they take in a role that follows the log, and what pruning
leaves of their file once the log's first event lies behind them."""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog

from streamd.eventlog.layout import FEATURES
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, empty_batch
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.live import LiveGraph
from streamd.settings.loading import ModelSettings, RetentionSettings
from streamd.storage import BLOCK_BYTES
from tests.benchmarks.growth.journal import UnsyncedDisk, in_child, peak_megabytes
from tests.benchmarks.measure import Row, pick_size
from tests.builders import batch

SCHEMA = Schema(0, 16, 0)
UPDATES = pick_size((100_000, 2_000_000), (20_000, 40_000))
NODES = 10_000


def run() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        few, many = (in_child(__name__, Path(folder) / str(n), n) for n in UPDATES)
    units = {"one more update, taken in": "ms", "restart: all updates": "s", "memory after it": "MB", "its peak": "MB"}
    for name, unit in units.items():
        rows.append(Row(f"{name}, after {UPDATES[1]:,} of {NODES:,} nodes", many[name], unit, few[name], f"{UPDATES[0]:,}"))
    rows.append(Row(f"their file on the disk, {UPDATES[1]:,} pruned", many["pruned"], "MB", many["stored"], "before"))
    rows.append(Row("pruning it, in steps of 50 ms", many["pruning"], "s", many["look"], "a step that finds nothing"))
    rows.append(Row("restart of a role: pruned updates", many["restart, pruned"], "s", many["restart: all updates"], "before"))
    return rows


def updates_of(nodes: np.ndarray) -> object:
    return dataclasses.replace(
        empty_batch(SCHEMA), node_F=nodes, node_row_F=np.arange(len(nodes)), node_edge_F=np.zeros(len(nodes), np.int64),
        node_values_F=np.full((len(nodes), 16), nodes[-1], np.float32))


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def main(path: Path, updates: int) -> None:
    """A log of updates, written and then opened by this process; a line of figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    writer = LogWriter(path, SCHEMA, 1000, UnsyncedDisk())
    one = np.zeros(1, np.int64)
    writer.commit(batch(SCHEMA, one, one + 1, one + 5, range(NODES)), Progress(), 5)
    for a in range(0, updates, 50_000):
        writer.commit(updates_of(np.arange(a, a + 50_000) % NODES), Progress(), 5)

    # The restart of a role: what it opens, and the features in force.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_megabytes()
    begun = time.perf_counter()
    reader = LogReader.open(path)
    live = LiveGraph(reader, BlockGraph(), ModelSettings())
    live.take_features(reader.num_edges)
    restarted = time.perf_counter() - begun
    found = {"restart: all updates": restarted, "memory after it": resident_megabytes() - before, "its peak": peak_megabytes() - before}

    # One update at a time.
    seconds = []
    for at in range(20):
        writer.commit(updates_of(np.array([at])), Progress(), 5)
        begun = time.perf_counter()
        reader.refresh()
        live.take_features(reader.num_edges)
        seconds.append(time.perf_counter() - begun)
        assert (live.features.of(np.array([at])) == at).all()
    found["one more update, taken in"] = 1e3 * float(np.median(seconds))
    print(json.dumps({**found, **pruned(writer)}))


def pruned(writer: LogWriter) -> dict[str, float]:
    """What the file takes before and after the steps in which ingest drops the only segment before it."""
    house = Housekeeper(writer, RetentionSettings(max_bytes=1), lambda _: ())
    found = {"stored": stored_megabytes(writer), "look": seconds_of(house.step)}
    writer.seal()
    one = np.zeros(1, np.int64)
    writer.commit(batch(SCHEMA, one, one + 1, one + 6), Progress(), 6)
    found |= {"pruning": seconds_of(house.compact), "pruned": stored_megabytes(writer)}

    # A role that starts now.
    reader = LogReader.open(writer.data_dir)
    live = LiveGraph(reader, BlockGraph(), ModelSettings())
    found["restart, pruned"] = seconds_of(lambda: live.take_features(reader.num_edges))
    assert (live.features.of(np.arange(20))[:, 0] == np.arange(20)).all()
    return found


def stored_megabytes(writer: LogWriter) -> float:
    return (writer.data_dir / FEATURES).stat().st_blocks * BLOCK_BYTES / 1e6


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
