"""Records of a few megabytes that stand for gigabytes. Run as a program, it decodes each and prints, as
JSON, the reasons of its dead letters and by how many megabytes the process grew at its peak."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog

from streamd.decode.arrow_metadata import field, follow
from streamd.decode.checks import Rules
from streamd.decode.decoder import Decoder
from streamd.decode.wire import ARROW, NDJSON
from streamd.events import Schema
from tests.builders import Record

ROWS = 50_000
BIG = "x" * 3_000_000
ARROW_HEADER = (("content-type", ARROW.encode()),)
NDJSON_HEADER = (("content-type", NDJSON.encode()),)


def stream(columns, **options):
    """An Arrow stream of one batch."""
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def beside_edges(**columns):
    """Columns beside a `dst` that is missing, so that rows are looked at one by one."""
    num_rows = len(next(iter(columns.values())))
    return {"time": pa.array(np.arange(num_rows)), "dst": pa.nulls(num_rows), **columns}


def views_of(text, count):
    """So many string views of the same text."""
    one = pa.array([text], pa.string_view()).buffers()
    return pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(one[1].to_pybytes()[:16] * count), one[2]])


def aliased():
    """Four columns of strings whose buffers are all those of the first."""
    value = bytearray(stream({"src": ["\x01" * 3_000_000], "dst": [""], "id": [""], "node": [""]}))
    # Behind the schema: its marker, its length, its flatbuffer; then the same of the batch.
    at = 8 + struct.unpack_from("<I", value, 4)[0] + 8
    data = bytes(value[at:])
    header = follow(data, field(data, follow(data, 0), 2))
    buffers = at + follow(data, field(data, header, 2)) + 4
    first = bytes(value[buffers: buffers + 48])
    for column in range(1, 4):
        value[buffers + 48 * column: buffers + 48 * (column + 1)] = first
    return bytes(value)


def schema_of_millions(levels=21, padding=1_000_000):
    """A schema whose only field has twice the same child, which has twice the same child, and so on."""
    data = bytearray(4)

    def table(entries, body):
        """Append a table behind its vtable. entries: place of each field in it, 0 where absent."""
        data.extend(b"\0" * (-len(data) % 8))
        vtable = len(data)
        size = 4 + 2 * len(entries)
        data.extend(struct.pack(f"<{2 + len(entries)}H", size, 4 + len(body), *entries))
        data.extend(b"\0" * (-len(data) % 8 + 4))
        here = len(data)
        data.extend(struct.pack("<i", here - vtable) + body)
        return here

    def point(at):
        struct.pack_into("<I", data, at, len(data) - at)

    # Message: version V5, a schema, at the end no body. Then Schema, then its vector of one field.
    message = table([4, 6, 8], struct.pack("<hBxI", 4, 1, 0))
    struct.pack_into("<I", data, 0, message)
    schema = table([0, 4], bytes(4))
    struct.pack_into("<I", data, message + 8, schema - message - 8)
    point(schema + 4)
    data.extend(struct.pack("<I", 1))
    waiting = [len(data)]
    data.extend(bytes(4))
    for level in range(levels):
        # Field: type_type Struct, type an empty table, children a vector of twice the next field.
        field = table([0, 0, 4, 8, 0, 12], struct.pack("<BxxxII", 13, 0, 0))
        for at in waiting:
            struct.pack_into("<I", data, at, field - at)
        kind = table([], b"")
        struct.pack_into("<I", data, field + 8, kind - field - 8)
        point(field + 12)
        count = 2 if level < levels - 1 else 0
        data.extend(struct.pack("<I", count))
        waiting = [len(data) + 4 * i for i in range(count)]
        data.extend(bytes(4 * count))
    data.extend(bytes(padding + -len(data) % 8))
    return b"\xff" * 4 + struct.pack("<I", len(data)) + bytes(data) + b"\xff" * 4 + bytes(4)


ATTACKS = {
    "3,000 columns of nulls": lambda: (stream({f"c{i}": pa.nulls(ROWS) for i in range(3_000)}), ARROW_HEADER),
    "list views of one list": lambda: (stream(beside_edges(features=pa.ListViewArray.from_arrays(
        pa.array([0] * 2_000, pa.int32()), pa.array([200_000] * 2_000, pa.int32()),
        pa.array(np.zeros(200_000, np.float32))))), ARROW_HEADER),
    "one string, run-end encoded": lambda: (stream(beside_edges(src=pa.RunEndEncodedArray.from_arrays(
        pa.array([2_000], pa.int32()), pa.array([BIG])))), ARROW_HEADER),
    "one string in a dictionary": lambda: (stream(beside_edges(src=pa.DictionaryArray.from_arrays(
        pa.array([0] * 2_000, pa.int32()), pa.array([BIG])))), ARROW_HEADER),
    "views of one string": lambda: (stream(beside_edges(src=views_of(BIG, 2_000))), ARROW_HEADER),
    "a struct of structs": lambda: (stream(beside_edges(node=pa.array([{"a": {"b": [1]}}] * 10))), ARROW_HEADER),
    "a fixed size list without items": lambda: (stream(beside_edges(features=pa.array(
        [[]] * ROWS, pa.list_(pa.null(), 0)))), ARROW_HEADER),
    "a compressed body": lambda: (stream(beside_edges(src=[BIG * 3]), options=pa.ipc.IpcWriteOptions(
        compression="zstd")), ARROW_HEADER),
    "columns that share their bytes": lambda: (aliased(), ARROW_HEADER),
    "a schema of two million fields": lambda: (schema_of_millions(), ARROW_HEADER),
    "a long list in each row": lambda: (stream(beside_edges(features=pa.array([[1.0] * 1_000_000],
        pa.list_(pa.float32())))), ARROW_HEADER),
    "an array of a million empty objects": lambda: (b"[" + b",".join([b"{}"] * 1_000_000) + b"]", ()),
    "an array of two million numbers": lambda: (b"[" + b",".join([b"1"] * 2_000_000) + b"]", ()),
    "an array of bad events": lambda: (b"[" + b",".join([b"{}"] * 20_000) + b"]", ()),
    "two million lines": lambda: (b"1\n" * 2_000_000, NDJSON_HEADER),
    "four million blank lines": lambda: (b"\n" * 4_000_000, NDJSON_HEADER),
    "nesting": lambda: (b'{"x":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}", ()),
    "a number of four million digits": lambda: (b'{"src": ' + b"9" * 4_000_000 + b"}", ()),
    "half a million fields": lambda: (json.dumps({f"{i:x}": 0 for i in range(300_000)}).encode()[:-1] + b"}", ()),
    "half a million features by name": lambda: (b'{"src":1,"dst":2,"features":' + json.dumps({f"{i:x}": 0 for i in range(300_000)}).encode() + b"}", ()),
    "a feature of a million lists": lambda: (b'{"src":1,"dst":2,"features":{"a":[' + b"[]," * 1_300_000 + b"1]}}", ()),
    "20 records of a million features": lambda: (b'{"src":1,"dst":2,"features":[' + b"1," * 999_999 + b"1]}", ()),
}


def megabytes(name):
    """A size of this process as the system knows it."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith(name))


def main():
    # Standard output is for the answer.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    found = {}
    for name in sys.argv[1:] or ATTACKS:
        value, headers = ATTACKS[name]()
        records = [Record(value, at, headers=headers) for at in range(20 if name.startswith("20 ") else 1)]
        decoder = Decoder(Rules(Schema(2, 1, 1)))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = megabytes("VmRSS")
        block, rejected = decoder.decode(records, 0, 1_700_000_000_000_000)
        found[name] = sorted({r.reason for r in rejected}), megabytes("VmHWM") - before, len(block)
        del block, rejected, records, value
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
