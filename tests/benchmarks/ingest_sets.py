"""Ingest of four edge sets beside ingest of one: topics in memory, the real loop and the real log, in turns, the best of five each."""

import math
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord

from streamd.decode.wire import ARROW
from streamd.eventlog.reader import LogReader
from tests.benchmarks.measure import Row, pick_size
from tests.ingest.world import World

TIMES = pick_size(5, 1)
KINDS = ("views", "buys", "likes", "shares")
FORMS = (("one JSON event a record", pick_size(100_000, 2_000), 1, False), ("JSON arrays of 1,000", pick_size(300_000, 10_000), 1000, False),
         ("Arrow streams of 1,000", pick_size(500_000, 10_000), 1000, True))
NODES = {"user": {}, "item": {}}
FEATURES = {"seconds": "number", "share": "number"}


def declared(kinds) -> dict:
    ends = {"source": "user", "target": "item"}
    return {"graph__node_sets": NODES, "graph__edge_sets": {kind: ends | {"features": FEATURES} for kind in kinds}}


def event(j: int, kinds, named: bool) -> dict:
    features = {"seconds": 1.5, "share": 0.25} if named else [1.5, 0.25]
    of_set = {"edge_set": kinds[j * 7 % len(kinds)]} if len(kinds) > 1 else {}
    return of_set | {"src": f"user:{(7 * j) % 5003}", "dst": f"page:{(11 * j) % 997}", "time": 1_600_000_000_000_000 + j, "features": features}


def records(total: int, size: int, kinds, named: bool, arrow: bool) -> list[ConsumerRecord]:
    made, headers = [], [("content-type", ARROW.encode())] if arrow else []
    for first in range(0, total, size):
        events = [event(j, kinds, named) for j in range(first, first + size)]
        if arrow:
            sink, batch = pa.BufferOutputStream(), pa.RecordBatch.from_pylist(events)
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            value = sink.getvalue().to_pybytes()
        else:
            value = msgspec.json.encode(events if size > 1 else events[0])
        made.append(ConsumerRecord("events", 0, 0, len(made), 1_600_000_100_000, 0, None, value, headers, None, -1, len(value), -1))
    return made


def seconds_of(sent, total: int, kinds) -> float:
    """Seconds until all events are in the log."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = World(Path(folder), segment_edges=1_000_000, ingest__commit_interval_seconds=0, **declared(kinds))
        world.parts[0] += sent
        world.source.max_records = max(1, 20_000 * len(sent) // total)
        begun = time.perf_counter()
        while world.writer.num_edges < total:
            world.step()
        taken = time.perf_counter() - begun
        world.stop()
        log = LogReader.open(Path(folder))
        assert log.num_edges == total and len(log.state.schema.edge_sets) == len(kinds)
        return taken


def run() -> list[Row]:
    found = []
    for form, total, size, arrow in FORMS:
        for named in (False,) if arrow else (True, False):
            one, four = KINDS[:1], KINDS
            sent = {kinds: records(total, size, kinds, named, arrow) for kinds in (one, four)}
            best = dict.fromkeys(sent, math.inf)
            for _ in range(TIMES):
                for kinds in sent:
                    best[kinds] = min(best[kinds], seconds_of(sent[kinds], total, kinds))
            how = "features by name" if named else "features as an array"
            found.append(Row(f"ingest of four edge sets, {form}, {how}", total / best[four], "events/s", total / best[one], "one edge set"))
    return found


if __name__ == "__main__":
    for row in run():
        print(row.what, round(row.ours), round(row.peer), round(row.ours / row.peer, 3))
