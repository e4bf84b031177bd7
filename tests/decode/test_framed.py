"""Topics in Avro, Protobuf and JSON Schema, whose values begin with the id of a schema."""

import datetime
import json
import random
import resource

import pytest
from google.protobuf import descriptor_pb2
from structlog.testing import capture_logs

from streamd.decode.sources import registry_framing as framed
from streamd.decode.sources.avro import compile_avro
from streamd.decode.sources.protobuf import compile_protobuf
from streamd.decode.sources.registry_framing import JSONValues, RegistryValues
from streamd.errors import BadEvent, SchemaRegistryError, SettingsError
from streamd.events import EDGE
from streamd.ingest.dead_letters.sinks import REASONS
from streamd.settings.loading import SchemaRegistrySettings, load_settings
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import read_beat
from tests.decode import registry as written
from tests.decode.mapped import NOW, Topic, record, source
from tests.decode.registry import (
    CLICK,
    F,
    Registry,
    add_proto,
    avro,
    file_text,
    proto,
    proto_class,
    proto_file,
)
from tests.decode.registry import framed as frame
from tests.ingest.world import World
from tests.readings import reading

SECONDS = NOW // 10**6 - 100
FIELDS = "fields: {src: {path: user_id, prefix: 'user:'}, dst: item.id, time: ts, features: {seconds: seconds, price: %s}}\nwhere: {kind: [view, VIEW]}"
SETS = {"edge_sets": {"default": {"features": {"seconds": {"type": "number", "missing": 0}, "price": {"type": "number", "missing": -1}}}}}
VALUE = {"user_id": 8, "item": {"id": "b41"}, "ts": datetime.datetime.fromtimestamp(SECONDS, datetime.UTC), "kind": "view", "seconds": 3.5, "price": None, "tags": ["a"], "more": {"x": 1}}


@pytest.fixture
def registry():
    server = Registry()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(framed, "TRY_SECONDS", 0.01)


def topic(registry, tmp_path, format, price="price", time="time: ms"):
    return Topic(source(f"format: {format}\n{time}\n{FIELDS % price}", graph=SETS, schema_registry={"url": registry.url}), tmp_path)


def values_of(registry, format="avro"):
    return RegistryValues(format, SchemaRegistrySettings(url=registry.url, timeout_seconds=1))


def edge(event):
    return event.kind, event.a, event.b, event.time, list(event.values)


def test_avro_becomes_events_as_its_mapping_says(registry, tmp_path):
    from decimal import Decimal

    registry.add(7, CLICK)
    one = topic(registry, tmp_path, "avro").one(avro(7, CLICK, VALUE | {"price": Decimal("12.25")}))
    assert edge(one) == (EDGE, "user:8", "b41", SECONDS * 10**6, [12.25, 3.5])
    events, rejected = topic(registry, tmp_path, "avro").decode(*(avro(7, CLICK, VALUE | {"user_id": i, "seconds": None}) for i in range(50)), avro(7, CLICK, VALUE | {"kind": "buy"}))
    assert [e.a for e in events] == [f"user:{i}" for i in range(50)] and not rejected and list(events[0].values) == [-1, 0]


def test_a_decimal_without_places_may_be_a_key(registry, tmp_path):
    from decimal import Decimal

    number = {"type": "bytes", "logicalType": "decimal", "precision": 38}
    schema = {"type": "record", "name": "Row", "fields": [{"name": n, "type": number | {"scale": s}} for n, s in (("u", 0), ("v", 0), ("x", 1))]}
    registry.add(1, schema)
    rows = Topic(source("{format: avro, time: record, fields: {src: u, dst: v}}", schema_registry={"url": registry.url}), tmp_path)
    event = rows.one(avro(1, schema, {"u": Decimal(2**62), "v": Decimal(-5), "x": Decimal("0.5")}))
    assert (event.a, event.b) == (2**62, -5)
    fraction = Topic(source("{format: avro, time: record, fields: {src: x, dst: v}}", schema_registry={"url": registry.url}), tmp_path)
    assert fraction.refused(avro(1, schema, {"u": Decimal(1), "v": Decimal(1), "x": Decimal("0.5")}))[0] == "bad_key"


def test_protobuf_becomes_events_as_its_mapping_says(registry, tmp_path):
    add_proto(registry, 9)
    click = proto_class()(user_id=8, item={"id": "b41"}, kind=0, tags=["a"], more={"x": 1}, parts=[{"id": "p"}], price={"amount": 2.5}, seconds=0)
    click.ts.FromSeconds(SECONDS)
    got = topic(registry, tmp_path, "protobuf", "price.amount", "time: iso8601")
    assert edge(got.one(proto(9, click))) == (EDGE, "user:8", "b41", SECONDS * 10**6, [2.5, 0])
    # A number in a field without presence is 0 where it was not written; one with presence is missing.
    values = values_of(registry, "protobuf")
    empty = values.decode(proto(9, proto_class()()))[0]
    assert empty == {"user_id": 0, "kind": "view", "tags": [], "more": {}, "parts": []}
    assert values.decode(proto(9, click))[0] == {"user_id": 8, "kind": "view", "tags": ["a"], "more": {"x": 1}, "parts": [{"id": "p"}], "item": {"id": "b41"}, "price": {"amount": 2.5},
                                                 "seconds": 0.0, "ts": datetime.datetime.fromtimestamp(SECONDS, datetime.UTC)}


def test_message_indexes_name_a_type_in_the_file(registry):
    add_proto(registry, 9)
    values = values_of(registry, "protobuf")
    item = proto_class("shop.Click.Item")(id="x")
    assert values.decode(proto(9, item, b"\x04\x02\x02")) == [{"id": "x"}]  # [1, 1]
    assert values.decode(frame(9, b"\0")) == values.decode(frame(9, b"\x02\0")) == [{}]  # [0], short and long
    for bad in (b"", b"\x02", b"\x02\x08", b"\x01", b"\x02\x01", b"\x7e" * 30, b"\xff" * 9, b"\x06\x02\x02\x02", b"\x80" * 4 + b"\x01"):
        with pytest.raises(BadEvent) as error:
            values.decode(frame(9, bad))
        assert error.value.reason == "bad_protobuf"


def test_json_behind_an_id_needs_no_registry(tmp_path):
    one = Topic(source(f"format: json-schema\ntime: s\n{FIELDS % 'price'}", graph=SETS), tmp_path)
    rows = [{"user_id": i, "item": {"id": "b"}, "ts": SECONDS, "kind": "view"} for i in range(3)]
    assert [e.a for e in one.decode(frame(1, json.dumps(rows[0]).encode()), frame(2**31, json.dumps(rows[1:]).encode()))[0]] == ["user:0", "user:1", "user:2"]
    assert one.refused(rows[0])[0] == "bad_frame" and one.refused(frame(1, b"{"))[0] == "bad_json" and one.refused(frame(1, b"[" * 9000))[0] == "too_deep"


def test_json_as_deep_as_can_just_be_read_costs_no_other_record(tmp_path):
    topic = Topic(source("{format: json-schema, time: record, fields: {src: u, dst: v}}"), tmp_path)
    for depth in (400, *range(880, 1000)):
        deep = b'[{"u": null, "x": ' + b"[" * depth + b"1" + b"]" * depth + b'}, {"u": 1, "v": 2}]'
        events, rejected = topic.decode(frame(1, deep), frame(1, b'{"u": 3, "v": 4}'))
        assert events[-1].a == 3 and [(r.offset, r.reason) for r in rejected] == [(0, "missing_field" if depth == 400 else "too_deep")]


def test_references_are_resolved(registry):
    inner = {"type": "record", "name": "Inner", "namespace": "a", "fields": [{"name": "x", "type": "int"}]}
    outer = {"type": "record", "name": "Outer", "namespace": "a", "fields": [{"name": "one", "type": "a.Inner"}, {"name": "two", "type": "Inner"}]}
    registry.refer("inner", 2, inner)
    registry.add(3, outer, references=[("a.Inner", "inner", 2)])
    registry.add(4, ["a.Inner"], references=[("a.Inner", "inner", 2)])
    values = values_of(registry)
    assert values.decode(frame(3, b"\x04\x06")) == [{"one": {"x": 2}, "two": {"x": 3}}]
    assert values.decode(frame(4, b"\0\x06")) == [{"x": 3}]
    registry.add(5, outer)
    with pytest.raises(BadEvent, match=r"schema 5 cannot be used.*a\.Inner"):
        values.decode(frame(5, b"\x04\x06"))
    file = proto_file()
    registry.add(6, file, "PROTOBUF")
    with pytest.raises(BadEvent, match="schema 6 cannot be used"):
        values_of(registry, "protobuf").decode(frame(6, b"\0"))


def test_schemas_and_those_that_cannot_be_used_are_asked_once_and_the_oldest_are_dropped(registry, monkeypatch):
    monkeypatch.setattr(framed, "MAX_SCHEMAS", 3)
    for number in range(6):
        registry.add(number, {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]} if number else "nope")
    values = values_of(registry)
    batch = [frame(n, b"\x02") for n in (0, 1, 2)] * 5
    values.prepare(batch, lambda: None)
    assert values.decode(batch[1]) == [{"x": 1}]
    with pytest.raises(BadEvent, match="schema 0 cannot be used"):
        values.decode(batch[0])
    values.prepare(batch, lambda: None)
    assert len(registry.asked) == 3
    values.prepare([frame(0, b""), frame(3, b"")], lambda: None)
    values.prepare([frame(0, b""), frame(2, b"")], lambda: None)
    assert registry.asked[3:] == ["/schemas/ids/3"]
    assert values.decode(frame(1, b"\x02")) == [{"x": 1}] and len(registry.asked) == 5


def test_an_unknown_id_is_asked_a_few_times_and_again_after_a_while(registry, monkeypatch):
    values, seen = values_of(registry), []
    values.prepare([frame(5, b""), b"", b"\0\0", b"{}", b"\1\0\0\0\1"], lambda: seen.append(1))
    values.prepare([frame(5, b"")], lambda: seen.append(1))
    assert len(registry.asked) == len(seen) == 3
    with pytest.raises(BadEvent, match="does not know schema 5") as error:
        values.decode(frame(5, b"\x02"))
    assert error.value.reason == "unknown_schema" and len(registry.asked) == 3
    # A follower that learns of it between two tries.
    registry.fault = (404, "application/json", b'{"error_code": 40403}')
    monkeypatch.setattr(framed.time, "sleep", lambda s: (setattr(registry, "fault", None), registry.add(6, CLICK)))
    values.prepare([frame(6, b"")], lambda: None)
    assert values.decode(avro(6, CLICK, VALUE))[0]["user_id"] == 8
    registry.add(5, CLICK)
    monkeypatch.setattr(framed, "UNKNOWN_SECONDS", 0)
    assert values.decode(avro(5, CLICK, VALUE))[0]["user_id"] == 8


def test_a_flood_of_unknown_ids_is_asked_once_each(registry, monkeypatch):
    monkeypatch.setattr(framed, "MAX_ASKED_AGAIN", 5)
    values, turns = values_of(registry), []
    values.prepare([frame(n, b"") for n in range(200)], lambda: turns.append(1))
    assert len(registry.asked) == len(turns) == 200 + 5 + 5
    with pytest.raises(BadEvent, match="does not know schema 150"):
        values.decode(frame(150, b""))
    assert len(registry.asked) == 210


def test_an_id_that_no_registry_gives_is_not_asked_since_the_answer_would_be_no_answer(registry, tmp_path):
    registry.add(1, CLICK)
    clicks = topic(registry, tmp_path, "avro")
    records = [record(frame(2**31, b""), 0), record(avro(1, CLICK, VALUE), 1), record(frame(2**32 - 1, b""), 2)]
    clicks.decoder.mapped["clicks"].prepare(records, lambda: None)
    events, rejected = clicks.of(records)
    assert [e.offset for e in events] == [1] and [(r.offset, r.reason) for r in rejected] == [(0, "bad_frame"), (2, "bad_frame")]


def test_a_schema_of_another_format_and_one_in_text_are_told_apart(registry):
    registry.add(1, "{}", "JSON")
    with pytest.raises(BadEvent, match="of type JSON, not AVRO"):
        values_of(registry).decode(frame(1, b""))
    registry.fault = (200, "application/json", json.dumps({"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"}).encode())
    with pytest.raises(SchemaRegistryError, match="format=serialized"):
        values_of(registry, "protobuf").decode(frame(1, b"\0"))


def test_a_source_needs_the_registrys_address(tmp_path):
    (tmp_path / "s.yaml").write_text("sources: [{topic: clicks, format: avro, time: ms, fields: {src: a, dst: b, time: c}}]")
    with pytest.raises(SettingsError, match="clicks is avro, but schema_registry.url is not set"):
        load_settings(tmp_path / "s.yaml", environ={})


def rec(*types, name="R"):
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


def long_of(number):
    number, out = number << 1, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def doubling(depth):
    schema = rec("null", "int", name="R0")
    for i in range(1, depth):
        schema = rec(schema, f"R{i - 1}", name=f"R{i}")
    return schema


def deep(depth):
    schema = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


BAD_AVRO = [rec({"type": "array", "items": "null"}), rec({"type": "array", "items": rec(name="E")}), rec({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
            rec({"type": "array", "items": rec("int", *["null"] * 50, name="E")}), rec({"type": "map", "values": rec("boolean", *["null"] * 50, name="E")}), rec(["null", "R"]),
            rec({"type": "array", "items": "R"}), deep(40), deep(5000), rec(*["null"] * 5000), doubling(28), rec(*["int"] * 30_000), {"__fastavro_parsed": True, "type": "record"},
            {"type": "fixed", "name": "x", "size": -1}, {"type": "fixed", "name": "x", "size": 2**40}, {"type": "enum", "name": "x", "symbols": 5}, {"type": "record", "name": 5, "fields": []},
            5, None, {"type": {}}, {"type": "array"}, "nope", rec("Q"), {"type": "record", "name": "x", "fields": [5]}, rec({"type": "bytes", "logicalType": "decimal", "scale": "x"})]


@pytest.mark.parametrize("number", range(len(BAD_AVRO)))
def test_an_avro_schema_that_could_ask_for_any_memory_is_refused(number):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadEvent) as error:
        compile_avro(dumped(BAD_AVRO[number]), [])
    assert error.value.reason == "bad_schema" and len(str(error.value)) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def dumped(schema):
    try:
        return json.dumps(schema)
    except RecursionError:
        return '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000


def test_declared_sizes_in_avro_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, body in (("bytes", b""), ("string", b""), ({"type": "array", "items": "int"}, b"\x02"), ({"type": "map", "values": "long"}, b"\x02a"), ({"type": "fixed", "name": "F", "size": 2**30}, b"")):
        for size in (2**20, 2**31, 2**40, 2**62):
            with pytest.raises(BadEvent) as error:
                compile_avro(json.dumps(rec(kind)), [])(long_of(size) + body, 0)
            assert error.value.reason == "bad_avro"
    with pytest.raises(BadEvent, match="4 bytes are left"):
        compile_avro(json.dumps(rec("int")), [])(b"\x02\x02\x02\x02\x02", 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("item", [rec("boolean", name="E"), rec(*["long"] * 30, name="E"), "string", "long", {"type": "map", "values": "boolean"}, [rec("double", "string", name="E"), "null"]])
def test_the_worst_value_of_an_avro_schema_takes_no_more_than_was_counted(item):
    import tracemalloc

    read = compile_avro(json.dumps(rec({"type": "array", "items": item})), [])
    body = {"map": b"\0", "list": b"\0" * 10}.get(item["type"] if isinstance(item, dict) else type(item).__name__, b"\0" * (30 if "long" in str(item) and isinstance(item, dict) else 1))
    count = 60_000 // len(body)
    value = long_of(count) + body * count + b"\0"
    tracemalloc.start()
    out = read(value, 0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(out["f0"]) == count and taken < 200 * len(value)


def test_a_protobuf_value_may_not_take_any_memory():
    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    wide = file.message_type.add(name="Wide")
    for number in range(1, 2001):
        wide.field.add(name=f"f{number}", number=number, type=F.TYPE_INT64, label=1)
    wide.field.add(name="again", number=3000, type=F.TYPE_MESSAGE, label=3, type_name=".Wide")
    read = compile_protobuf(file_text(file), {})
    empty = proto_tag(3000, 2) + b"\0"
    with pytest.raises(BadEvent, match="bytes; of this schema at most"):
        read(b"\0" + empty * 10_000, 0)
    with pytest.raises(BadEvent, match="more than 1000000 values"):
        read(b"\0" + empty * 3_000, 0)
    value = b""
    for _ in range(200):
        value = proto_tag(3000, 2) + proto_length(len(value)) + value
    with pytest.raises(BadEvent, match="not a message of its schema"):
        read(b"\0" + value, 0)


def test_extensions_groups_and_older_syntax_are_read():
    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto2")
    kind = file.message_type.add(name="M")
    kind.extension_range.add(start=100, end=200)
    kind.field.add(name="x", number=1, type=F.TYPE_INT32, label=1, default_value="5")
    kind.field.add(name="must", number=2, type=F.TYPE_STRING, label=2)
    file.extension.add(name="more", number=100, type=F.TYPE_INT32, label=1, extendee=".M")
    read = compile_protobuf(file_text(file), {})
    assert read(b"\0" + proto_tag(100, 0) + b"\x07" + proto_tag(2, 2) + b"\x01a", 0) == {"must": "a"}
    for bad in (b"", proto_tag(2, 2) + b"\x01\xff", proto_tag(7, 3), proto_tag(2, 2) + b"\x05a"):
        try:
            # Text of older syntax may be any bytes, and then is no text.
            assert read(b"\0" + bad, 0) in ({}, {"must": b"\xff"})
        except BadEvent as error:
            assert error.reason == "bad_protobuf"


def proto_length(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def proto_tag(number, kind):
    return proto_length(number << 3 | kind)


def test_protobuf_schemas_that_cannot_be_used_are_refused():
    twice = proto_file()
    twice.message_type.add(name="Click")
    many = descriptor_pb2.FileDescriptorProto(name="x")
    for i in range(30_000):
        many.message_type.add(name=f"M{i}")
    loop = descriptor_pb2.FileDescriptorProto(name="x", dependency=["streamd/root.proto"])
    for bad, imports in ((twice, {}), (many, {}), (loop, {}), (loop, {"a": file_text(loop)}), (descriptor_pb2.FileDescriptorProto(syntax="proto9"), {})):
        with pytest.raises(BadEvent) as error:
            compile_protobuf(file_text(bad), imports)(b"\0", 0)
        assert error.value.reason in ("bad_schema", "bad_protobuf")
    with pytest.raises(BadEvent):
        compile_protobuf("/////w==", {})


ANY = ["null", "boolean", "long", "double", "string", "bytes", {"type": "array", "items": "bytes"}, {"type": "map", "values": "double"}, {"type": "fixed", "name": "Four", "size": 4},
       {"type": "enum", "name": "View", "symbols": ["view", "buy"]}, {"type": "bytes", "logicalType": "decimal", "precision": 90, "scale": 2}]
ODD = {"type": "record", "name": "Odd", "fields": [{"name": n, "type": ANY if n == "user_id" else [*ANY[:8], "Four", "View"]} for n in ("user_id", "ts", "seconds", "price", "kind", "vector", "word", "sort")]}
BODIES = [b"\x00", b"\x02\x01", b"\x02\x00", b"\x04\x02", b"\x04" + b"\xff" * 9 + b"\x01", b"\x06" + b"\xff" * 6 + b"\xf0\x7f", b"\x06" + b"\xff" * 8, b"\x06" + b"\0" * 8, b"\x08\x00", b"\x08\x08view", b"\x0a\x04\xff\xff",
          b"\x0c\x02\x02x\x00", b"\x0c\x00", b"\x0e\x00", b"\x10view", b"\x12\x00", b"\x12\x02"]


def test_values_of_any_type_in_any_place_refuse_no_neighbor(registry, tmp_path):
    registry.add(7, ODD)
    sets = {"edge_sets": {"default": {"features": {"seconds": {"type": "number", "missing": 0}, "price": {"type": "bool", "missing": False}, "vector": {"vector": 2, "missing": [0, 0]},
                                                   "word": {"hash": 3, "missing": ""}, "sort": {"categories": ["view", 1], "missing": "view"}}}}}
    body = "format: avro\ntime: ms\nfields: {src: user_id, dst: {path: user_id, prefix: x}, time: ts, features: {seconds: seconds, price: price, vector: vector, word: word, sort: sort}}"
    one = Topic(source(body, graph=sets, schema_registry={"url": registry.url}), tmp_path)
    draw = random.Random(5)
    good = b"\x08\x02a" + b"\x04" + long_of(SECONDS * 1000) + b"\x00" * 6
    sent = [frame(7, good if i % 3 == 0 else b"".join(draw.choice(BODIES) if draw.random() < 0.4 else default for default in (b"\x08\x02a", b"\x04" + long_of(SECONDS * 1000), *[b"\x00"] * 6)))
            for i in range(6_000)]
    for first in range(0, len(sent), 60):
        events, rejected = one.decode(*sent[first:first + 60])
        assert {e.offset for e in events} >= set(range(0, 60, 3)) and len(events) + len(rejected) == 60
        assert all(r.reason in REASONS for r in rejected)


@pytest.mark.parametrize("format", ["avro", "protobuf", "json-schema"])
def test_random_and_bitten_values_raise_only_what_is_promised(registry, format):
    draw = random.Random(3)
    registry.add(7, CLICK)
    add_proto(registry, 9)
    click = proto_class()(user_id=8, item={"id": "b41"}, tags=["a", "b"], more={"x": 1}, parts=[{"id": "p"}], price={"amount": 2.5})
    click.ts.FromSeconds(SECONDS)
    whole = {"avro": avro(7, CLICK, VALUE), "protobuf": proto(9, click), "json-schema": frame(1, json.dumps({"a": [1, "x"]}).encode())}[format]
    values = JSONValues() if format == "json-schema" else values_of(registry, format)
    values.prepare([whole], lambda: None)
    good = bad = 0
    for _ in range(20_000):
        value = bytearray(whole)
        kind = draw.random()
        if kind < 0.6:
            for _ in range(draw.choice([1, 1, 2, 5])):
                value[draw.randrange(5, len(value))] ^= 1 << draw.randrange(8)
        elif kind < 0.8:
            value = value[:5] + draw.randbytes(draw.randrange(60))
        else:
            at = draw.randrange(len(value))
            value = value[:at] + value[draw.randrange(at, len(value)):]
            if value[:5] != whole[:5]:
                value[:1] = b"\2"
        try:
            assert isinstance(values.decode(bytes(value)), list)
            good += 1
        except BadEvent as error:
            assert error.reason in ("bad_avro", "bad_protobuf", "bad_json", "bad_frame", "too_deep"), error
            bad += 1
    assert good > 500 and bad > 500, (good, bad)


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_random_and_bitten_schemas_raise_only_what_is_promised(format):
    draw = random.Random(4)
    for _ in range(1_500):
        if format == "avro":
            text = bytearray(json.dumps(CLICK).encode())
        else:
            text = bytearray(proto_file().SerializeToString())
        for _ in range(draw.choice([1, 1, 2, 4])):
            at = draw.randrange(len(text))
            text[at:at + draw.randrange(3)] = draw.choice([bytes([draw.randrange(256)]), b"", b"0", b"null", b"[]", b'"record"', text[at:at + 20]])
        try:
            if format == "avro":
                read, body = compile_avro(text.decode(errors="replace"), []), avro(1, CLICK, VALUE)
            else:
                import base64

                common = file_text(written.common_file())
                read, body = compile_protobuf(base64.b64encode(text).decode(), {"common.proto": common}), proto(1, proto_class()(user_id=8, tags=["a"]))
            read(body, 5)
        except BadEvent as error:
            assert error.reason in ("bad_schema", "bad_avro", "bad_protobuf")


AVRO_WORLD = {"graph__edge_sets": {"default": {"features": {"seconds": {"type": "number", "missing": 0}}}}, "sources": [
    {"topic": "events", "format": "avro", "time": "ms", "envelope": "debezium", "fields": {"src": "user_id", "dst": "item.id", "time": "ts", "features": {"seconds": "seconds"}},
     "deletes": {"where": {"kind": "buy"}, "fields": {"node": "user_id"}}}]}
CHANGE = rec(name="Change") | {"fields": [{"name": "op", "type": "string"}, {"name": "before", "type": ["null", CLICK]}, {"name": "after", "type": ["null", "shop.Click"]}]}


def change(world, number, user, op="c"):
    row = VALUE | {"user_id": user, "ts": datetime.datetime.fromtimestamp(world.clock.now_us() / 1e6, datetime.UTC)}
    return avro(number, CHANGE, {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row})


def test_ingest_waits_for_the_registry_loses_nothing_and_writes_each_letter_once(tmp_path, registry):
    world = World(tmp_path, num_partitions=2, schema_registry__url=registry.url, schema_registry__timeout_seconds=0.2, **AVRO_WORLD)
    registry.add(7, CHANGE)
    registry.add(8, CHANGE)
    for i in range(5):
        world.send(0, value=change(world, 7, i))
    world.run(2)
    # While it is away, records of known schemas wait behind those of an unknown one.
    registry.fault = (503, "text/html", b"down")
    world.send(0, value=b"nonsense")
    for i in range(5, 10):
        world.send(0, value=change(world, 7, i))
    world.send(1, value=change(world, 8, 10))
    polls = world.source.turn
    for _ in range(20):
        world.step()
        if reading(metrics.schema_registry_away):
            break
    for _ in range(5):
        world.step()
    assert read_beat(tmp_path, "ingest").state == "schema registry away" and reading(metrics.schema_registry_away) == 1
    assert len(world.events()) == 5 and not world.dead_letters() and polls is not None
    registry.fault = None
    import time

    until = time.monotonic() + 10
    with capture_logs() as said:
        while reading(metrics.schema_registry_away) and time.monotonic() < until:
            world.step()
            time.sleep(0.02)
    assert [line["event"] for line in said if "registry" in line["event"]] == ["schema_registry_answers_again"]
    world.run(2).stop()
    assert sorted(int(src) for src, _, _ in world.events()) == list(range(11)) and reading(metrics.schema_registry_away) == 0
    assert [(x["offset"], x["reason"]) for x in world.dead_letters()] == [(5, "bad_frame")]


def test_ingest_that_is_killed_while_it_waits_reads_on_where_it_was(tmp_path, registry):
    world = World(tmp_path, schema_registry__url=registry.url, **AVRO_WORLD)
    registry.fault = (401, "application/json", b"{}")
    registry.add(7, CHANGE)
    for i in range(5):
        world.send(0, value=change(world, 7, i))
    world.step(3)
    world.stop()
    registry.fault = None
    world.start().run(2).stop()
    assert len(world.events()) == 5


def test_letters_and_records_from_other_times_go_with_those_in_avro(tmp_path, registry):
    one = topic(registry, tmp_path, "avro")
    registry.add(7, CLICK)
    row = {"user_id": 9, "item": {"id": "b"}, "ts": SECONDS * 1000, "kind": "view"}
    from streamd.decode.wire import OWN_ROW

    records = [record(avro(7, CLICK, VALUE), 0), record(row, 1, headers=(("content-type", OWN_ROW.encode()),)), record(frame(99, b"x"), 2), record(avro(7, CLICK, VALUE), 3)]
    one.decoder.mapped["clicks"].prepare(records, lambda: None)
    events, rejected = one.of(records)
    assert [e.a for e in events] == ["user:8", "user:9", "user:8"] and [(r.offset, r.reason) for r in rejected] == [(2, "unknown_schema")]
