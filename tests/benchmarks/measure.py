"""Rows of the benchmark table, and the logs they run on."""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from streamd.demo.streams import find_stream
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from tests.builders import batch

SHARED = Path(os.environ.get("BENCH_PEERS", Path(__file__).parents[3] / "shared" / "bench"))
T = TypeVar("T")
SMOKE = "BENCH_SMOKE" in os.environ
"""Whether all sizes are small: the run only shows that every part still runs, and its figures say nothing. Children inherit it."""


def pick_size(usual: T, smoke: T) -> T:
    """A size of a benchmark: usual, or smoke in a run that only shows that the benchmark still runs."""
    return smoke if SMOKE else usual


@dataclass(frozen=True)
class Row:
    """One figure. peer: what stands beside it, with the same unit; None where there is none."""

    what: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""


def best_seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """Least wall time of some rounds: the machine is noisy, its speed is not."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def write_edges(path: Path, keys: list, src, dst, time_E, msg, watermark: int, schema: Schema | None = None) -> Schema:
    """A log of given edges in commits of 20,000. schema: of several edge sets, which rows of `msg` say."""
    import dataclasses

    schema = schema or Schema(msg.shape[1], 0, 0)
    writer = LogWriter(path, schema, len(src))
    writer.keys.update({k: i for i, k in enumerate(keys)})
    for a in range(0, len(src), 20_000):
        b = min(a + 20_000, len(src))
        rows = batch(schema, src[a:b], dst[a:b], time_E[a:b], keys if a == 0 else ())
        writer.commit(dataclasses.replace(rows, msg_ED=np.ascontiguousarray(msg[a:b])), Progress(),
                      watermark if b == len(src) else int(time_E[b - 1]))
    writer.close()
    return schema


def wikipedia_edges() -> dict:
    """The demo's month as synth has its presets: src, dst, t (seconds), num_nodes; and keys."""
    ids: dict[str, int] = {}
    columns: list[list[int]] = [[], [], []]
    for event in wikipedia_events():
        for column, key in zip(columns, (event["src"], event["dst"]), strict=False):
            column.append(ids.setdefault(key, len(ids)))
        columns[2].append(event["time"])
    src, dst, seconds = (np.array(c, np.int64) for c in columns)
    return {"src": src, "dst": dst, "t": seconds, "num_nodes": len(ids), "keys": list(ids)}


def wikipedia_log(path: Path) -> Schema:
    """The demo's month as a log, every window closed."""
    g = wikipedia_edges()
    when = g["t"] * 1_000_000
    return write_edges(path, g["keys"], g["src"], g["dst"], when, np.zeros((len(when), 0), np.float32), int(when[-1]) + 10**12)


def wikipedia_events() -> Iterator[dict]:
    for hour in find_stream("wikipedia").windows(None):
        for event in hour:
            yield json.loads(event.value)
