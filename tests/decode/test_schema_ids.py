"""Ids of schemas in headers, and GUIDs: `__value_schema_id` as Confluent's HeaderSchemaIdSerializer writes it."""

import json
import uuid

import pytest

from streamd.decode.sources import registry_framing as framing
from streamd.decode.sources.registry_framing import ID_HEADER, RegistryValues
from streamd.errors import BadEvent, SchemaRegistryError
from streamd.settings.loading import SchemaRegistrySettings
from tests.decode.mapped import Topic, record, source
from tests.decode.registry import CLICK, Registry, add_proto, avro, proto, proto_class
from tests.decode.registry import framed as frame
from tests.decode.test_framed import VALUE

GUID = uuid.UUID("89791762-2336-4186-9674-299b90a802e2")
HEAD = b"\1" + GUID.bytes
AVRO = "{format: avro, time: ms, fields: {src: user_id, dst: item.id, time: ts}}"
BARE = avro(7, CLICK, VALUE)[5:]
"""A value of Avro with no id before it."""


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(framing, "TRY_SECONDS", 0.01)
    server = Registry()
    server.add(7, CLICK)
    server.add(GUID, CLICK)
    yield server
    server.stop()


def topic(registry, tmp_path, body=AVRO):
    return Topic(source(body, schema_registry={"url": registry.url}), tmp_path)


def with_id(value, head, offset=0, name=ID_HEADER, **more):
    return record(value, offset, headers=(("traceparent", b"x"), (name, head)), **more)


@pytest.mark.parametrize("head", [HEAD, b"\0\0\0\0\7"])
@pytest.mark.parametrize("in_header", [True, False])
def test_an_id_or_a_guid_is_read_from_the_header_or_the_value(registry, tmp_path, head, in_header):
    used = topic(registry, tmp_path)
    records = [with_id(BARE, head, i) if in_header else record(head + BARE, i) for i in range(20)]
    events, rejected = used.of(records)
    assert not rejected and [(e.offset, e.a, e.b) for e in events] == [(i, 8, "b41") for i in range(20)]
    # A schema is asked for once.
    assert registry.asked == ["/schemas/ids/7" if head[0] == 0 else f"/schemas/guids/{GUID}"]


def test_the_last_header_counts_and_one_of_the_key_or_without_a_value_does_not(registry, tmp_path):
    used = topic(registry, tmp_path)
    other = (ID_HEADER, b"\0\0\0\0\x09")
    assert used.one(BARE, headers=(other, (ID_HEADER, HEAD))).a == 8
    assert used.one(frame(7, BARE), headers=(("__key_schema_id", HEAD), (ID_HEADER, None), (ID_HEADER, b""))).a == 8


def test_schemas_are_prepared_from_headers_and_values(registry, tmp_path):
    mapped = topic(registry, tmp_path).decoder.mapped["clicks"]
    mapped.prepare([with_id(BARE, HEAD), record(frame(7, BARE)), record(b""), record(b"\1short"), record(b"\2" + bytes(20)), record(None)], lambda: None)
    assert sorted(registry.asked) == [f"/schemas/guids/{GUID}", "/schemas/ids/7"]


def test_the_header_of_protobuf_has_the_message_indexes_too(registry, tmp_path):
    add_proto(registry, 9)
    registry.schemas[GUID] = registry.schemas[9]
    item = proto_class("shop.Click.Item")(id="x")
    used = topic(registry, tmp_path, "{format: protobuf, time: record, fields: {src: {constant: a}, dst: id}}")
    assert used.one(item.SerializeToString(), headers=((ID_HEADER, HEAD + b"\4\2\2"),)).b == "x"
    assert used.one(proto(9, item, b"\4\2\2")).b == "x"


@pytest.mark.parametrize("format", ["json", "json-schema"])
def test_json_with_its_id_in_a_header_is_json(tmp_path, format):
    used = Topic(source(f"{{format: {format}, time: record, fields: {{src: u, dst: v}}}}"), tmp_path)
    assert used.one({"u": 1, "v": 2}, headers=((ID_HEADER, HEAD),)).a == 1


def test_the_letter_of_a_refused_record_has_the_id_before_its_value(registry, tmp_path):
    used = topic(registry, tmp_path)
    lacking = uuid.UUID(int=5)
    events, rejected = used.of([with_id(BARE[:-9], HEAD, 0), with_id(BARE, b"\1" + lacking.bytes, 1), with_id(BARE, b"\5", 2), with_id(b"[", HEAD, 3)])
    assert not events and [(r.offset, r.reason) for r in rejected] == [(0, "bad_avro"), (1, "unknown_schema"), (2, "bad_frame"), (3, "bad_avro")]
    assert rejected[0].raw == HEAD + BARE[:-9] and rejected[1].raw == b"\1" + lacking.bytes + BARE
    assert str(lacking) in rejected[1].error and "__value_schema_id" in rejected[2].error
    # Sent again without headers it is refused for the same reason, and read once the schema is there.
    registry.add(lacking, CLICK)
    assert [e.a for e in topic(registry, tmp_path).of([record(rejected[1].raw)])[0]] == [8]


def test_a_registry_without_guids_is_named_and_nothing_is_lost(registry, tmp_path):
    registry.has_guids = False
    used = topic(registry, tmp_path)
    with pytest.raises(SchemaRegistryError, match=f"/schemas/guids/{GUID}.*know no GUIDs need producers that write ids"):
        used.of([with_id(BARE, HEAD)])


def test_values_that_are_no_frame():
    values = RegistryValues("avro", SchemaRegistrySettings(url="http://127.0.0.1:1"))
    for bad in (b"", b"\0\0\0\0", b"\1" + bytes(15), b"\2" + bytes(30), json.dumps({"u": 1}).encode()):
        with pytest.raises(BadEvent) as error:
            values.decode(bad)
        assert error.value.reason == "bad_frame"
