"""Small logs for tests of tables, and readings of a process's memory."""

import dataclasses
import re
from pathlib import Path

import numpy as np

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, SetKey, empty_batch
from streamd.registry import Registry
from streamd.scoring.record import ScoreRecord
from streamd.settings.loading import schema_of
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from tests.builders import SECOND, batch, settings, stream

SHOP = {
    "graph__node_sets": {"user": {"features": {"age": "number"}}, "item": {}},
    "graph__edge_sets": {
        "views": {"source": "user", "target": "item", "features": {"seconds": "number", "app": "bool", "time": "number"}},
        "buys": {"source": "user", "target": "item", "features": {
            "price": "number", "how": {"categories": ["card", "cash"]}, "shop": {"hash": 4}, "text": {"vector": 2}}}},
    "stream__label_dim": 2}
"""Two kinds of edges with features of every kind; a feature of views is called as a column is."""


def shop_schema(path: Path) -> Schema:
    return schema_of(settings(path, **SHOP))


def delete(writer: LogWriter, nodes=(), edges=()) -> None:
    """Commit deletes of nodes, and of edges given as (src, dst, time, number of the edge set)."""
    rows = np.zeros(len(nodes) + len(edges), DELETION)
    rows["edge"] = 0
    for row, node in zip(rows, nodes, strict=False):
        row["src"], row["dst"] = node, -1
    for row, (src, dst, time, number) in zip(rows[len(nodes):], edges, strict=True):
        row["src"], row["dst"], row["time"], row["edge_set"] = src, dst, time, number
    writer.commit(dataclasses.replace(empty_batch(writer.schema), deletions_X=rows), Progress(), writer.watermark)


def long_log(path: Path, num_edges: int, dim: int, segment_edges: int = 150_000, num_nodes: int = 1000) -> None:
    """A log of many events, one a millisecond, with features; keys are "n:<id>"."""
    writer = LogWriter(path, Schema(dim), segment_edges)
    rng = np.random.default_rng(3)
    keys = [f"n:{i}" for i in range(num_nodes)]
    for a in range(0, num_edges, 50_000):
        end = min(a + 50_000, num_edges)
        src, dst = rng.integers(0, num_nodes, (2, end - a))
        writer.commit(batch(writer.schema, src, dst, np.arange(a, end) * 1000, keys if a == 0 else ()), Progress(), end * 1000)
    writer.close()


def shop_log(path: Path, num_events: int = 900) -> None:
    """A log of SHOP: of 20 users and 15 items, in six hours; every 50th event is late, node 3 has features and a label, and node 5 is
    deleted after 700 events, with one more edge."""
    schema = shop_schema(path)
    writer = LogWriter(path, schema, 250)
    src, dst, time = stream(num_events)
    sets = np.random.default_rng(2).integers(0, 2, num_events)
    rows = np.zeros((num_events, schema.edge_feature_dim), np.float32)
    for number, width in enumerate((3, 10)):
        values = np.zeros((int((sets == number).sum()), width), np.float32)
        values[:, 0], values[:, 1] = np.arange(len(values)) % 5, 1
        rows[sets == number] = schema.edge_rows(number, values)
    keys = [f"u:{i}" if i < 20 else SetKey(1, i - 20) for i in range(35)]
    for a in range(0, num_events, 50):
        while writer.remaining_rows() < 50:
            writer.seal()
        at = np.array([0])
        more = {"node_F": at + 3, "node_row_F": at + 51, "node_edge_F": at + 50, "node_values_F": schema.node_rows(0, np.array([[41]], np.float32)),
                "label_node_L": at + 3, "label_time_L": time[a:a + 1], "label_target_L": np.array([[0, 1]], np.float32), "new_keys": tuple(keys)}
        writer.commit(dataclasses.replace(
            empty_batch(schema), src_E=src[a:a + 50], dst_E=dst[a:a + 50], time_E=time[a:a + 50], msg_ED=rows[a:a + 50], late_edge=(29,),
            late_time=(int(time[a + 29]) - 60 * SECOND,), **(more if a == 0 else {})), Progress(), int(time[a + 49]))
        if a == 650:
            delete(writer, [5], [(int(src[10]), int(dst[10]), int(time[10]), int(sets[10]))])
    writer.commit(empty_batch(schema), Progress(), 100 * HOUR_US)
    writer.close()


def learn_shop(path: Path, model: str = "pair") -> None:
    """Let a trainer learn all windows of a log of SHOP."""
    s = settings(path, model__name=model, **SHOP)
    trainer = Trainer(s, Paths.of(s, "train"), "cpu", LogReader.open(path), Registry.of(s), SystemClock(), Heartbeat(path, "train"))
    while due := trainer.due():
        trainer.process(due[0])


def visible_ids(log: LogReader, edge_set: int | None = None, since_us: int = 0, until_us: int = 2**62):
    """Plain reference: ids of the events of a set that are not deleted, in a range of time."""
    ids = np.arange(log.first_edge, log.num_edges)
    time = log.edges(log.first_edge, log.num_edges)[2]
    kept = ~log.hidden(log.first_edge, log.num_edges) & (time >= since_us) & (time < until_us)
    if edge_set is not None:
        kept &= log.edge_sets(log.first_edge, log.num_edges) == edge_set
    return ids[kept]


def own_memory() -> int:
    """Bytes of memory of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def mapped_file(address: int) -> str:
    """Name of the file that is mapped at an address of this process, "" for none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, *rest = line.split(None, 5)
        first, end = (int(x, 16) for x in bounds.split("-"))
        if first <= address < end:
            return rest[4] if len(rest) > 4 else ""
    return ""


def us(column) -> list[int]:
    """Times of an Arrow column in microseconds."""
    return column.cast("int64").to_pylist()


HOUR_US = 3600 * SECOND


def score_lines(path: Path, events: range) -> list[bytes]:
    """Records of the score topic of some events of a shop, also of deleted ones, with invented scores."""
    log = LogReader.open(path)
    names = log.state.schema.edge_set_names
    src, dst, time = log.edges(events.start, events.stop)
    sets = log.edge_sets(events.start, events.stop)
    rank = np.random.default_rng(5).integers(1, 101, len(src)).tolist()
    return [ScoreRecord(event=event, src=f"u:{src[i]}", dst=int(dst[i]) - 20, edge_set=names[sets[i]], time_us=int(time[i]), version="v", memory_event=event,
                        known=True, score=3.0 - rank[i] / 50, rank=float(rank[i]), candidates=100, scored_at=float(time[i]) / 1e6 + 0.25,
                        surprise=rank[i] / 10 if i % 7 else None, p_value=1 - rank[i] / 101 if i % 7 else None).encode(event)
            for i, event in enumerate(events)]
