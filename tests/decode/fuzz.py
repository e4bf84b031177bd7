"""Hostile records of mapped topics. Run as a program, it decodes as many as asked: `python -m tests.decode.fuzz 1000000 [seed]`.

Of each batch it holds that decoding raises nothing, that valid records among the others come out as they went in, and that every record
becomes the same in company as alone.
"""

import copy
import json
import math
import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import structlog

from streamd.decode.wire import ARROW, OWN_EVENT, OWN_ROW
from streamd.events import DELETE, EDGE, LABEL, NODE
from streamd.ingest.dead_letters.sinks import REASONS
from tests.decode.mapped import NOW, TOPIC, Topic, record, source

BATCH = 24
SETS = {"edge_sets": {"default": {"features": {"a": {"type": "number", "missing": 0}, "b": {"categories": ["x", "y"], "missing": "x"}, "c": {"hash": 2, "missing": ""}}}},
        "node_sets": {"default": {"features": {"age": "number", "v": {"vector": 2, "missing": [0, 0]}, "ok": {"type": "bool", "missing": False}}}}}
FIELDS = "fields: {src: {path: u, prefix: 'u:'}, dst: i.id, time: t, features: {a: n.0.a, b: b, c: c}}"
OTHERS = """
deletes: {where: {k: [forget, null]}, fields: {node: {path: u, prefix: 'u:'}}}
labels: {where: {k: [rate, 1, true]}, fields: {node: i.id, time: t, target: [s]}}
nodes: {where: {k: profile}, fields: {id: {path: u, prefix: 'u:', default: nobody}, features: {age: n.0.a, v: v, ok: ok}}}
"""
SHAPES = {
    "json": f"time: ms\n{FIELDS}\nwhere: {{k: [view, 2]}}{OTHERS}",
    "iso": f"time: iso8601\n{FIELDS}",
    "ndjson": f"format: ndjson\ntime: s\n{FIELDS}\nwhere: {{k: view}}{OTHERS}",
    "arrow": f"format: arrow\ntime: ms\n{FIELDS.replace('n.0.a', 'n.a')}",
    "record": "time: record\nfields: {src: $key.u, dst: $headers.h, features: {a: a.b.c.d}}\nwhere: {k: [view, null]}",
    "connect": f"envelope: connect\ntime: ms\n{FIELDS}",
    "cloudevents": f"envelope: cloudevents\ntime: ms\n{FIELDS}\nwhere: {{$envelope.type: [view]}}",
    "each": f"time: ms\neach: l\n{FIELDS.replace('i.id', 'l.id').replace('b: b', 'b: l.b')}\nwhere: {{k: [view, 2], l.x: [null, 1]}}{OTHERS.replace('i.id', 'l.id')}",
    "several": f"""
each: l
time: ms
where: {{k: view}}
{FIELDS.replace('i.id', 'l.id').replace('path: u', 'path: [w, u]')}
---
time: s
where: {{k: [forget, 2]}}
fields: {{src: u, dst: i.id, time: t}}
---
also: true
each: i.l
time: ms
nodes: {{where: {{k: [profile, 2, view]}}, fields: {{id: i.l.id, features: {{age: i.l.a}}}}}}
---
time: ms
{OTHERS.replace('forget, null', 'forget, 2, null')}
""",
    "several rows": f"envelope: debezium\ntime: ms\neach: l\nwhere: {{k: view}}\n{FIELDS.replace('i.id', 'l.id')}\n---\nenvelope: debezium\ntime: ms\nalso: true\nwhere: {{k: profile}}\n{FIELDS}",
    "debezium": f"envelope: debezium\ntime: ms\n{FIELDS}\nwhere: {{k: view}}\nnodes: {{where: {{k: profile}}, fields: {{id: u, features: {{age: n.0.a}}}}}}",
}
SCALARS = [None, True, False, 0, 1, -1, 2, 0.0, -0.0, 1.5, 1e308, -1e308, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, "", "x", "y", "view", "forget", "rate",
           "profile", "0", "1", "5.5", "1e400", "nan", "inf", "NaT", "now", "\x00", "\x1b[2J", "\ud800", "é", "𝔘" * 70, "k" * 300, "2026-11-22T10:00:00Z", "2026-11-22",
           "2026-11-22T10:00:00.5+02:00", "2016-12-31T23:59:60Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "c", "d", "u", "r", "t", [], {}, [1, 2], [None], [[]],
           {"id": 1}, {"0": {"a": 1}}, [{"a": 2}], [1, True], {"b": {"c": {"d": 5}}}, NOW // 1000, NOW // 1_000_000, NOW, 1_600_000_000_000]
FEW = [None, True, 1, 1.5, "", "x", [], {}, 2**63, "view"]
"""Those that find most."""
TEXTS = [b"", b" ", b"\n", b"null", b"[]", b"{}", b"[[]]", b'"x"', b"5", b"NaN", b"{", b"[", b'{"u": 1e400}', b'{"u": NaN}', b'{"u": 01}', b'{"u": "\\ud800"}', b"\xef\xbb\xbf{}", b"\xff\xfe{\x00",
         b"\x00\x00\x00\x00\x07{}", b"[{}, {}", b"{}\n{}", b"{} {}", b'{"u": ' + b"[" * 2000 + b"]" * 2000 + b"}", b'{"u": ' + b"9" * 400 + b"}", b"Obj\x01", b"\x1f\x8b\x08"]


class Fuzz:
    """One run. Owner: the caller. topics: a decoder for batches and one for single records, of each shape."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics = {}
        for name, body in SHAPES.items():
            text = source(body, graph=SETS, stream={"label_dim": 1})
            self.topics[name] = [Topic(text, folder, ingest__tombstones="delete", ingest__max_record_events=50) for _ in range(2)]
        self.num_records = 0

    def run(self, count: int) -> None:
        while self.num_records < count:
            self.batch(self.random.choice(list(SHAPES)))

    def batch(self, shape: str) -> None:
        """Decode one batch of a shape and hold it to what was promised."""
        valid = {i for i in range(BATCH) if self.random.random() < 0.4}
        records = [self.valid(shape, i) if i in valid else self.hostile(shape, i) for i in range(BATCH)]
        self.connect(shape, valid, records)
        self.num_records += BATCH
        together, alone = self.topics[shape]
        events, rejected = together.of(records)
        ones = [alone.of([r]) for r in records]

        # In company as alone, but for the order of letters among records.
        assert events == [e for part, _ in ones for e in part], shape
        told = [(r.offset, r.index, r.reason, r.error, r.raw) for r in rejected]
        assert sorted(told) == sorted((r.offset, r.index, r.reason, r.error, r.raw) for _, part in ones for r in part), shape
        for i in valid:
            assert not ones[i][1] and [(e.offset, e.item, e.kind, e.time) for e in ones[i][0]] == [(i, 0, EDGE, (NOW // 1_000_000 - 100 - i) * 1_000_000)], (shape, records[i].value[:300], ones[i])
        for e in events:
            assert e.kind in (EDGE, NODE, LABEL, DELETE) and 0 <= e.time <= NOW + 60_000_000 and all(math.isfinite(v) for v in e.values), (shape, e)
        assert all(r.reason in REASONS and len(r.error) <= 490 for r in rejected)

    def connect(self, shape: str, valid: set[int], records: list) -> None:
        """Make neighbors that are hostile together: an object cut in two before two objects in one value, a deleted row and its tombstone."""
        draw = self.random
        for i in range(BATCH - 2):
            if draw.random() > 0.1 or not valid.isdisjoint((i, i + 1, i + 2)):
                continue
            text = json.dumps(self.wrapped(shape, self.row(i) | {"t": NOW // 1000, "z": {"z": {}}})).encode()
            at = draw.choice([n for n, byte in enumerate(text) if byte in b"{:,"]) + 1
            if shape in ("debezium", "several rows") and draw.random() < 0.5:
                change = {"op": "d", "before": self.row(i) | {"t": NOW // 1000}, "after": None}
                values = draw.sample([json.dumps(change).encode(), None, text], 3)
            else:
                values = [text[:at], text[at:], text * 2]
            for n, value in enumerate(values, i):
                records[n] = record(value, n, key=b'{"u": 5}', headers=(("h", b"x"),), timestamp=NOW // 1000 - 5000)

    def row(self, i: int) -> dict:
        """The data of a valid record."""
        return {"u": i, "i": {"id": f"b{i}"}, "k": "view", "n": [{"a": i / 2}], "b": "y", "c": "z", "l": [{"id": f"b{i}"}], "junk": {"deep": [{"x": None}]}}

    def valid(self, shape: str, i: int):
        seconds = NOW // 1_000_000 - 100 - i
        row = self.row(i)
        row["t"] = {"ndjson": seconds, "iso": f"{_iso(seconds)}Z"}.get(shape, seconds * 1000)
        more = {"key": b'{"u": 5}', "headers": (("h", b"x"),), "timestamp": seconds * 1000}
        if shape == "arrow":
            return record(_arrow([self.wrapped(shape, row) | {"n": {"a": i / 2}, "junk": [1]}]), i, **more)
        return record(self.wrapped(shape, row), i, **more)

    def wrapped(self, shape: str, row):
        if shape == "arrow":
            return {name: value for name, value in row.items() if name != "l"}
        if shape == "connect":
            return {"schema": {}, "payload": row}
        if shape == "cloudevents":
            return {"specversion": "1.0", "type": "view", "data": row}
        if shape in ("debezium", "several rows"):
            change = {"op": "c", "before": None, "after": row}
            return {"schema": {}, "payload": change} if self.random.random() < 0.5 else change
        return row

    def hostile(self, shape: str, i: int):
        draw = self.random
        value = self.value(shape, i)
        key = draw.choice([None, b"", b"5", b'{"u": 5}', b"\xff", b'{"schema": {}, "payload": {"u": 7}}', b"[" * 99])
        headers = draw.choice([(), (), (), (("h", b"x"),), (("h", None),), (("h", b"\xff"), ("ce_type", b"view")), (("content-type", draw.choice(
            [OWN_EVENT.encode(), OWN_ROW.encode(), ARROW.encode(), b"", b"\xff", b"application/cloudevents+json", b"application/cloudevents-batch+json"])),)])
        return record(value, i, key=key, headers=headers, timestamp=draw.choice([NOW // 1000, -1, 0, 2**62, NOW // 1000 - 5000]))

    def value(self, shape: str, i: int):
        draw = self.random
        kind = draw.random()
        if kind < 0.04:
            return None
        if kind < 0.10:
            return draw.choice(TEXTS)
        if kind < 0.13:
            return draw.randbytes(draw.randrange(40))
        objects = [self.changed(json.loads(json.dumps(self.wrapped(shape, self.row(i) | {"t": NOW // 1000})))) for _ in range(1 if kind < 0.8 else draw.randrange(1, 6))]
        if shape == "arrow" and kind < 0.7:
            try:
                return self.bitten(_arrow(objects))
            except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError):
                return b"x"
        texts = [json.dumps(o, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass") for o in objects]
        if kind < 0.8:
            return self.bitten(texts[0])
        return self.bitten(b"\n".join(texts) if shape == "ndjson" or draw.random() < 0.2 else b"[" + b",".join(texts) + b"]")

    def changed(self, value):
        """A value with some of its parts replaced, removed or added."""
        draw = self.random
        for _ in range(draw.choice([0, 1, 1, 1, 2, 4])):
            at = value
            for _ in range(draw.choice([0, 0, 0, 1, 2, 3])):
                inner = [v for v in (at.values() if isinstance(at, dict) else at) if isinstance(v, dict | list)]
                at = draw.choice(inner) if inner else at
            place = draw.choice(list(at) if isinstance(at, dict) else range(len(at))) if at else None
            if place is None or draw.random() < 0.1:
                if isinstance(at, dict):
                    at[draw.choice(["op", "u", "t", "payload", "data_base64", "é"])] = copy.deepcopy(draw.choice(SCALARS if draw.random() < 0.6 else FEW))
            elif draw.random() < 0.15 and isinstance(at, dict):
                del at[place]
            else:
                at[place] = copy.deepcopy(draw.choice(SCALARS if draw.random() < 0.6 else FEW))
        return value if draw.random() < 0.95 else [value]

    def bitten(self, text: bytes) -> bytes:
        """Bytes with a few of them changed, in one of four cases."""
        draw = self.random
        if not text or draw.random() > 0.25:
            return text
        at, end = draw.randrange(len(text)), draw.randrange(len(text) + 1)
        return draw.choice([text[:at], text[:at] + bytes([draw.randrange(256)]) + text[at + 1:], text[:at] + text[min(at, end):], text[:at] + draw.choice(TEXTS) + text[at:], b" " + text])


def _iso(seconds: int) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None).isoformat()


def _arrow(rows: list) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"{count:,} records, seed {seed}, topic {TOPIC}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Fuzz(Path(folder), seed).run(count)
    print("all became what was promised")
