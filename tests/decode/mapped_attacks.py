"""Records of four megabytes of mapped topics that stand for far more, as `tests.decode.attacks` has them of our own events."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog

from streamd.decode.decoder import make_decoder
from streamd.settings.loading import load_settings, schema_of
from tests.decode.attacks import megabytes, stream
from tests.decode.mapped import NOW, TOPIC, record

FIELDS = {"src": {"path": "u", "prefix": "u:"}, "dst": "i.0.id", "time": "t", "features": {"x": "x"}}
OBJECTS = b"[" + b",".join([b"{}"] * 1_390_000) + b"]"
LISTS = b"[" * 1 + b"[]," * 1_390_000 + b"1]"
ATTACKS = {
    "a million empty objects": ({}, OBJECTS),
    "a million empty objects in a list place": ({}, b'{"i": ' + OBJECTS + b"}"),
    "a million empty lists as a key": ({}, b'{"u": ' + LISTS + b"}"),
    "a million empty lists as a vector": ({}, b'{"u": 1, "t": 1, "x": ' + LISTS + b"}"),
    "a million empty lists as an operation": ({"envelope": "debezium"}, b'{"op": ' + LISTS + b"}"),
    "an event of each of a million empty objects": ({"each": "l", "fields": FIELDS | {"dst": "l.0.id"}}, b'{"l": ' + OBJECTS + b"}"),
    "lists of a hundred thousand in one record": ({"each": "l", "fields": FIELDS | {"dst": "l"}}, b"[" + b",".join([b'{"l": [' + b",".join([b"1"] * 90_000) + b"]}"] * 22) + b"]"),
    "a million empty objects as text": ({"fields": FIELDS | {"dst": "i.x.id"}}, b'{"i": "' + b"[" + b",".join([b"{}"] * 1_390_000) + b"]" + b'"}'),
    "two million lines": ({"format": "ndjson"}, b"{}\n" * 1_390_000),
    "a batch of a million empty events": ({"envelope": "cloudevents"}, OBJECTS),
    "data in base64": ({"envelope": "cloudevents"}, b'{"data_base64": "' + b"W10s" * 1_000_000 + b'"}'),
    "payload in payload": ({"envelope": "connect"}, b'{"payload":' * 300_000),
    "a struct of many fields": ({"format": "arrow"}, lambda: stream({"a": pa.StructArray.from_arrays([pa.array(np.zeros(90_000, np.int8))] * 40, [f"f{i}" for i in range(40)])})),
    "long lists": ({"format": "arrow"}, lambda: stream({"x": pa.array([np.zeros(3_900_000, np.int8)], pa.list_(pa.int8()))})),
    "lists of structs": ({"format": "arrow"}, lambda: stream({"x": pa.array([[{"a": 1}] * 10])})),
    "structs without fields": ({"format": "arrow"}, lambda: stream({"x": pa.array([{}] * 90_000, pa.struct([]))})),
    "truth values": ({"format": "arrow"}, lambda: stream({f"c{i}": pa.array(np.zeros(100_000, bool)) for i in range(32)})),
    "a dictionary": ({"format": "arrow"}, lambda: stream({"u": pa.DictionaryArray.from_arrays(pa.array([0] * 90_000, pa.int32()), pa.array(["x" * 3_000_000]))})),
}


def main():
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    found = {}
    folder = Path(tempfile.mkdtemp())
    for name in sys.argv[1:] or ATTACKS:
        more, value = ATTACKS[name]
        sent = value() if callable(value) else value
        source = {"topic": TOPIC, "time": "ms", "fields": FIELDS} | more
        s = load_settings(None, {"data_dir": folder, "sources": [source], "graph.edge_sets": {"default": {"features": {"x": {"vector": 2}}}}}, {})[0]
        decoder = make_decoder(s, schema_of(s))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = megabytes("VmRSS")
        block, rejected = decoder.decode([record(sent)], 0, NOW, TOPIC)
        found[name] = sorted({r.reason for r in rejected}), megabytes("VmHWM") - before, len(block)
        del block, rejected
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
