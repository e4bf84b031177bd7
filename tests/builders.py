"""Small streams and logs for tests, all seeded."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import Hold, ask_to_compact, write_hold
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import EDGE, EventBatch, Int64, Progress, Schema, SetKey, empty_batch
from streamd.schema import EdgeSet, NodeSet
from streamd.settings.loading import RetentionSettings, Settings, load_settings
from streamd.settings.sets import EdgeSetSettings, SetSettings
from streamd.training.learning_settings import LearningSettings

SECOND = 1_000_000
HOUR = 3600 * SECOND


def stream(num_edges: int = 600, num_users: int = 20, num_items: int = 15, seed: int = 0, hours: int = 6):
    """Users that mostly return to their last item: src, dst int64 ids, sorted times with ties, microseconds."""
    rng = np.random.default_rng(seed)
    src = rng.integers(0, num_users, num_edges)
    dst = num_users + rng.integers(0, num_items, num_edges)
    last: dict[int, int] = {}
    for i, u in enumerate(src.tolist()):
        if u in last and rng.random() < 0.7:
            dst[i] = last[u]
        last[u] = int(dst[i])
    time = np.sort(rng.integers(0, hours * 3600, num_edges)) * SECOND
    return src, dst, time


def batch(schema: Schema, src: Int64, dst: Int64, time: Int64, new_keys=(), seed: int = 0) -> EventBatch:
    """A commit of edges whose features are a function of the seed and the times."""
    msg = (np.arange(len(src) * schema.edge_feature_dim).reshape(len(src), -1) % 7 + seed).astype(np.float32)
    return dataclasses.replace(empty_batch(schema), src_E=np.asarray(src), dst_E=np.asarray(dst), time_E=np.asarray(time),
                               msg_ED=msg.reshape(len(src), schema.edge_feature_dim), new_keys=tuple(new_keys))


def write_log(path: Path, src, dst, time, schema: Schema = Schema(), tails=(97,), watermark=None, segment_edges=100_000,
              key_of="n:{}".format):
    """A log of the given edges, committed in runs of the given lengths in turn; keys are "n:<id>", or `key_of` an id."""
    writer = LogWriter(path, schema, segment_edges)
    at, turn = 0, 0
    keys = [key_of(i) for i in range(int(max(src.max(), dst.max())) + 1)]
    while at < len(src):
        end = min(at + min(tails[turn % len(tails)], writer.remaining_rows()), len(src))
        new = keys if at == 0 else ()
        for key in new:
            writer.keys[key] = len(writer.keys)
        mark = int(time[end - 1]) if end < len(src) or watermark is None else watermark
        writer.commit(batch(schema, src[at:end], dst[at:end], time[at:end], new, at), Progress(), mark)
        at, turn = end, turn + 1
    writer.close()


SETS = Schema.declared(
    (NodeSet("user", 2), NodeSet("item", 1)),
    (EdgeSet("views", "user", "item", 1), EdgeSet("buys", "user", "item", 2), EdgeSet("follows", "user", "user")), 1)
"""Two kinds of nodes and three kinds of edges, with features and labels."""


def declared() -> dict:
    """The settings that declare the sets of SETS."""
    def features(dim):
        return {f"f{i}": "number" for i in range(dim)}

    return {
        "graph.node_sets": {s.name: SetSettings(features=features(s.feature_dim)) for s in SETS.node_sets},
        "graph.edge_sets": {s.name: EdgeSetSettings(source=s.source, target=s.target, features=features(s.feature_dim))
                            for s in SETS.edge_sets},
        "stream.label_dim": 1}


def sets_stream(num_edges: int = 900, num_users: int = 20, num_items: int = 15, seed: int = 0, hours: int = 6):
    """A stream of the sets of SETS: src, dst, time as `stream` gives them, and the number of each edge's set.

    Users come first, then items; who buys something viewed it before; follows lead to users."""
    rng = np.random.default_rng(seed)
    src, dst, time = stream(num_edges, num_users, num_items, seed, hours)
    sets = rng.choice(3, num_edges, p=[0.6, 0.2, 0.2])
    dst[sets == 2] = (src[sets == 2] + 1 + rng.integers(0, 3, int((sets == 2).sum()))) % num_users
    return src, dst, time, sets


def sets_rows(sets: Int64, seed: int = 0):
    """Rows of edge features of the sets of SETS, whose values follow from their places."""
    rows = np.zeros((len(sets), SETS.edge_feature_dim), np.float32)
    for i, number in enumerate(sets.tolist()):
        columns = SETS.edge_columns(number)
        value = np.arange(columns.stop - columns.start, dtype=np.float32)[None] + (i + seed) % 7
        rows[i] = SETS.edge_rows(number, value)[0]
    return rows


def write_sets_log(path: Path, src, dst, time, sets, num_users: int = 20, watermark=None, segment_edges=100_000, tail=97):
    """A log of the sets of SETS; keys are numbers within their node set."""
    writer = LogWriter(path, SETS, segment_edges)
    msg, keys = sets_rows(sets), [i if i < num_users else SetKey(1, i - num_users) for i in range(int(max(src.max(), dst.max())) + 1)]
    writer.keys.update({key: i for i, key in enumerate(keys)})
    at = 0
    while at < len(src):
        end = min(at + min(tail, writer.remaining_rows()), len(src))
        rows = dataclasses.replace(
            empty_batch(SETS), src_E=src[at:end], dst_E=dst[at:end], time_E=time[at:end], msg_ED=msg[at:end],
            new_keys=tuple(keys) if at == 0 else ())
        writer.commit(rows, Progress(), int(time[end - 1]) if end < len(src) or watermark is None else watermark)
        at = end
    writer.close()


def feature_updates(reader: LogReader, until: int = 2**62) -> list[tuple[int, list[float]]]:
    """(node, values) of the updates of node features before an edge, in log order."""
    return [(n, v.tolist()) for nodes, values, _ in reader.feature_updates().until(until)
            for n, v in zip(nodes.tolist(), values, strict=True)]


def compact(log: LogWriter, held: int | None = None):
    """Make deletes physical in one pass, as ingest does between commits. held: the edge that a role replays from."""
    if held is not None:
        write_hold(log.data_dir, "train", Hold(held, held))
    ask_to_compact(log.data_dir, log.num_edges)
    return Housekeeper(log, RetentionSettings(), lambda keys: ()).compact()


class ManualClock:
    """A clock that a test moves by hand; owner: the test."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._monotonic = 0.0

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def set_wall(self, now_us: int) -> None:
        """Set the wall clock alone, as an operator or NTP does."""
        self._now_us = now_us

    def advance(self, seconds: float) -> None:
        self._now_us += int(seconds * 1e6)
        self._monotonic += seconds


def settings(data_dir: Path, **values) -> Settings:
    """Small, fast settings; double underscores name branches."""
    small = {"model.dim": 8, "model.time_dim": 4, "model.neighbors": 3, "model.memory_chunk": 40, "model.max_pairs": 5000,
             "training.replay_share": 1, "training.replay_events": 40, "training.replay_capacity_events": 400, "training.min_steps": 0, "stream.time_unit": "us",
             "telemetry.ingest_port": 0, "telemetry.train_port": 0}
    small |= {k.replace("__", "."): v for k, v in values.items()}
    return load_settings(None, {"data_dir": data_dir, **small}, environ={})[0]


def learning(settings: Settings) -> LearningSettings:
    """The settings of a learner and its recorder, on the CPU unless they name another device."""
    return LearningSettings.of(settings, "cpu" if settings.device == "auto" else settings.device)


class Record(NamedTuple):
    """A Kafka record as kafka-python hands it over, as far as ingest looks."""

    value: bytes | None
    offset: int = 42
    timestamp: int = 1_690_000_000_000
    timestamp_type: int = 0
    headers: tuple = ()
    key: bytes | None = None


class Decoded(NamedTuple):
    """An event of a block, spelled out."""

    time: int
    source: int
    offset: int
    item: int
    kind: int
    a: str | int
    b: str | int | None
    values: list[float]


def spell(block, keys) -> list[Decoded]:
    """The events of a block with their keys and values."""
    return [Decoded(*(int(r[n]) for n in ("time", "source", "offset", "item", "kind")), keys[int(r["a"])],
                    keys[int(r["b"])] if r["b"] >= 0 else None,
                    list(block.extras[int(r["extra"])]) if r["extra"] >= 0 else values.tolist() if r["kind"] == EDGE else [])
            for r, values in zip(block.rows, block.values, strict=True)]
