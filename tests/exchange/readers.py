"""The same rows written in every format that streamd reads, and the events that its readers make of them.

A column is a list of Python values, one a row. `Typed` columns have the type of a format: an Arrow array, an Avro schema, a type of
Protobuf or of TF-GNN; without it the type follows from the values.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from streamd.clock import SystemClock
from streamd.decode.decoder import make_decoder
from streamd.errors import StreamdError
from streamd.events import split_key
from streamd.exchange.event_files import EventFile
from streamd.exchange.load import FileRow
from streamd.exchange.sourced import rows_of_sources
from streamd.exchange.tables import Columns, read_events, resolved
from streamd.exchange.times import Times
from streamd.settings.loading import load_settings, schema_of
from streamd.tfgnn.logs.declared import declared_sets
from streamd.tfgnn.logs.table_events import TableEvents, TimeOptions
from streamd.tfgnn.schema.messages import GraphSchema
from streamd.tfgnn.schema.schema import new_feature, schema_text
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table
from tests.builders import Record
from tests.decode.registry import F, avro, file_text, framed

NOW = 1_790_000_000_000_000
FILES = ("csv", "ndjson", "parquet", "arrow")
ARROW = ("parquet", "arrow", "live arrow")
TOPICS = ("json", "json-schema", "live arrow", "avro", "protobuf")
COLUMNS = tuple(f"{kind} by columns" for kind in FILES)
"""Files whose columns are named by options, without a source."""
READERS = (*FILES, *COLUMNS, *TOPICS, "own events", "tfgnn")


@dataclass(frozen=True)
class Typed:
    """A column of values with the type that a format has for them."""

    kind: Any
    values: list


@functools.lru_cache(None)
def settings_of(form, feature, time, where, keys, url):
    """Settings of one topic whose rows are edges from `src` to `dst` with a feature `x`. feature, where: as JSON. keys: the type of keys."""
    feature, where = json.loads(feature), json.loads(where)
    features = {} if feature is None else {"x": feature}
    source = {"topic": "t", "time": time, "format": form, "where": where, "fields": {"src": {"path": "src", "type": keys}, "dst": {"path": "dst", "type": keys}, "time": "time", "features": {n: n for n in features}}}
    registry = {"schema_registry.url": url} if form in ("avro", "protobuf") else {}
    return load_settings(None, {"graph.edge_sets": {"default": {"features": features}}, "sources": [source], "kafka.topics": ["t"], **registry}, {})[0]


@functools.lru_cache(None)
def decoder_of(*settings):
    """One decoder for all tests of the same settings: its keys stay known, as those of a daemon do."""
    made = settings_of(*settings)
    return make_decoder(made, schema_of(made))


def read(reader, folder, columns, feature=None, time="ms", where=None, keys=None, registry=None):
    """What a reader makes of the rows: keys, times and features of the edges, and the reasons of those that are refused.

    Raises: StreamdError if it refuses a whole file.
    """
    if reader == "tfgnn":
        return _of_tables(folder, columns, feature, time)
    form = "arrow" if reader == "live arrow" else reader if reader in TOPICS else "json"
    asked = form, json.dumps(feature), time, json.dumps(where or {}), keys, registry.url if registry is not None else ""
    made, decoder, topic = settings_of(*asked), decoder_of(*asked), "t"
    if reader in FILES:
        records = [FileRow(offset=n, value=v) for n, v in rows_of_sources(made.sources, EventFile(write(folder, reader, columns)), "ms")]
    elif reader in COLUMNS:
        kind, topic = reader.removesuffix(" by columns"), ""
        named = resolved(Columns(features=() if feature is None else ("x",), keys=keys), made)
        times = Times(time, "ms", 60, SystemClock())
        records = [FileRow(offset=e.row, value=e.value) for e in read_events(EventFile(write(folder, kind, columns)), named, times)]
    else:
        topic = "" if reader == "own events" else "t"
        records = [Record(value, at, NOW // 1000) for at, value in enumerate(values_of(reader, columns, registry))]
    block, rejected = decoder.decode(records, 0, NOW, topic)
    known = decoder.keys.keys
    values = np.asarray(block.values).tolist()
    return [(known[r["a"]], known[r["b"]], int(r["time"]), v) for r, v in zip(block.rows, values, strict=True)], [r.reason for r in rejected]


def plain(column):
    return column.values if isinstance(column, Typed) else column


def table_of(columns):
    """An Arrow table; `Typed` columns are Arrow arrays."""
    return pa.table({n: c.kind if isinstance(c, Typed) else pa.array(c) for n, c in columns.items()})


def write(folder, kind, columns):
    """A file of some columns."""
    path = folder / f"t.{kind}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*map(plain, columns.values()), strict=True)]
    if kind == "parquet":
        pyarrow.parquet.write_table(table_of(columns), path)
    elif kind == "arrow":
        pyarrow.feather.write_feather(table_of(columns), str(path))
    elif kind == "csv":
        cells = [list(columns), *(["" if cell is None else str(cell) for cell in row.values()] for row in rows)]
        path.write_text("".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in cells))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def values_of(reader, columns, registry):
    """The values of records: one a row, or one of all rows."""
    if reader == "live arrow":
        return [stream_of(table_of(columns))]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*map(plain, columns.values()), strict=True)]
    if reader == "own events":
        own = ("src", "dst", "time")
        return [json.dumps({n: row[n] for n in own} | {"features": {n: v for n, v in row.items() if n not in own}}).encode() for row in rows]
    if reader == "json":
        return [json.dumps(row).encode() for row in rows]
    if reader == "json-schema":
        return [framed(1, json.dumps(row).encode()) for row in rows]
    # An equal schema has the same id, as in a registry.
    kinds = {n: c.kind if isinstance(c, Typed) else kind_of(reader, c) for n, c in columns.items()}
    if reader == "avro":
        schema = {"type": "record", "name": "Row", "fields": [{"name": n, "type": kind} for n, kind in kinds.items()]}
        number = registry.register("t", {"schema": json.dumps(schema)})["id"]
        return [avro(number, schema, row) for row in rows]
    file = proto_file(kinds)
    number = registry.register("t", {"schema": file_text(file), "schemaType": "PROTOBUF"})["id"]
    made = proto_class(file.SerializeToString())
    return [framed(number, b"\0" + made(**{n: v for n, v in row.items() if v is not None}).SerializeToString()) for row in rows]


def kind_of(reader, values):
    """The type of plain values in Avro or Protobuf."""
    types = {type(v) for v in values} - {type(None)}
    kind = types.pop() if types else str
    if reader == "protobuf":
        return {int: F.TYPE_INT64, float: F.TYPE_DOUBLE, str: F.TYPE_STRING, bool: F.TYPE_BOOL, bytes: F.TYPE_BYTES, list: [F.TYPE_DOUBLE]}[kind]
    kinds = {int: "long", float: "double", str: "string", bool: "boolean", bytes: "bytes", list: {"type": "array", "items": "double"}}
    return ["null", kinds[kind]] if None in values else kinds[kind]


def stream_of(table, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def proto_file(kinds):
    """A file with one message of optional fields. kinds: by name; a list of one for a repeated field, a name for a message."""
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", package="rows", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    file.enum_type.add(name="Word").value.extend([descriptor_pb2.EnumValueDescriptorProto(name="b", number=0), descriptor_pb2.EnumValueDescriptorProto(name="a", number=1)])
    row = file.message_type.add(name="Row")
    row.nested_type.add(name="Inner").field.add(name="a", number=1, type=F.TYPE_INT64, label=1)
    for number, (name, kind) in enumerate(kinds.items(), 1):
        if isinstance(kind, list):
            row.field.add(name=name, number=number, type=kind[0], label=3)
            continue
        row.oneof_decl.add(name=f"_{name}")
        named = {"type": F.TYPE_ENUM if kind == ".rows.Word" else F.TYPE_MESSAGE, "type_name": kind} if isinstance(kind, str) else {"type": kind}
        row.field.add(name=name, number=number, label=1, oneof_index=len(row.oneof_decl) - 1, proto3_optional=True, **named)
    return file


@functools.lru_cache(64)
def proto_class(file):
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rows.Row"))


DTYPES = {int: ("DT_INT64", np.int64), float: ("DT_DOUBLE", np.float64), bool: ("DT_BOOL", bool), str: ("DT_STRING", object), list: ("DT_DOUBLE", np.float64)}


def _of_tables(folder, columns, feature, time):
    """The events of TF-GNN's tables. A `Typed` column has a dtype and an array."""
    edge_sets = {"e": {"source": "n", "target": "n", "features": {} if feature is None else {"x": feature}}}
    made = load_settings(None, {"graph.node_sets": {"n": {}}, "graph.edge_sets": edge_sets, "stream.time_unit": "us"}, {})[0]
    schema = GraphSchema()
    schema.node_sets["n"].SetInParent()
    one = schema.edge_sets["e"]
    one.source = one.target = "n"
    one.metadata.filename = "e.tfrecord"
    features = {}
    for name, column in columns.items():
        if name in ("src", "dst", "time"):
            continue
        dtype, kind = (column.kind, None) if isinstance(column, Typed) else DTYPES[type(column[0])]
        values = np.array([v.encode() if isinstance(v, str) else v for v in plain(column)], kind)
        one.features[name].CopyFrom(new_feature(dtype, values.shape[1:]))
        features[name] = values
    keys = [np.array([str(k).encode() for k in columns[n]], object) for n in ("src", "dst")]
    rows = Rows(first=0, num=len(keys[0]), source=keys[0], target=keys[1], time=np.array(columns["time"], np.int64), features=features)
    write_table(one, folder / "e.tfrecord", [rows])
    (folder / "graph.pbtxt").write_text(schema_text(schema))
    options = TimeOptions(stream_unit="us", max_ahead_seconds=60, unit=time)
    decoder = make_decoder(made, schema_of(made))
    events = TableEvents(declared_sets(made), schema, folder, options, SystemClock()).events("us")
    block, rejected = decoder.decode([Record(e.value, at, NOW // 1000) for at, e in enumerate(events)], 0, NOW)
    if rejected:
        raise StreamdError(rejected[0].error)
    is_edge = block.rows["b"] >= 0
    return [(split_key(decoder.keys.keys[r["a"]])[1], split_key(decoder.keys.keys[r["b"]])[1], int(r["time"]), v)
            for r, v in zip(block.rows[is_edge], np.asarray(block.values)[is_edge].tolist(), strict=True)], []
