"""Content types are compared as media types: without quotes, parameters and case, and `+json` is JSON."""

import json

import pytest

from streamd.decode.checks import Rules
from streamd.decode.decoder import Decoder
from streamd.decode.headers import media_type, own_content_type
from streamd.decode.wire import ARROW, JSON, NDJSON, OWN_EVENT, OWN_EVENT_US
from streamd.errors import BadEvent
from streamd.events import EDGE, Schema
from tests.builders import Record, spell
from tests.decode.mapped import Topic, record, source
from tests.decode.test_envelopes import CLOUD, cloud

NOW = 1_700_000_000_000_000
EDGES = [{"src": "a", "dst": "b", "time": 5}, {"src": "c", "dst": "d", "time": 5}]


@pytest.mark.parametrize(("sent", "meant"), [
    (b'"application/json"', JSON), (b"'application/json'", JSON), (b'"\\"application/json\\""', JSON), (b"Application/JSON", JSON), (b" application/json ", JSON),
    (b"application/json; charset=utf-8", JSON), (b'"application/json;charset=UTF-8"', JSON), (b"application/json ; charset=utf-8", JSON), (b"text/json", JSON),
    (b"application/x+json", JSON), (b"application/vnd.shop.order.v2+json;charset=utf-8", JSON), (b'"application/vnd.kafka.json.v2+json"', JSON), (b"application/problem+JSON", JSON),
    (b'"application/x-ndjson"', NDJSON), (b"application/ndjson", NDJSON), (b"application/jsonl; charset=utf-8", NDJSON), (b"Application/X-JSONLines", NDJSON),
    (f'"{ARROW}"'.encode(), ARROW), (f"{OWN_EVENT}; charset=utf-8".encode(), OWN_EVENT)])
def test_the_same_type_written_in_other_ways(sent, meant):
    assert own_content_type([("Content-Type", sent)]) == meant


@pytest.mark.parametrize("sent", [b"text/plain", b"", None, b"application/avro", b"json", b"application/json+zip", b"\xff\xfe", b"application/vnd.streamd.row+json"])
def test_another_type_is_refused(sent):
    with pytest.raises(BadEvent) as error:
        own_content_type([("content-type", sent)])
    assert error.value.reason == "unknown_content_type"


@pytest.mark.parametrize("sent", [b"application/cloudevents+json", b'"application/cloudevents-batch+json; charset=utf-8"'])
def test_a_structured_cloudevent_is_no_event_of_ours(sent):
    with pytest.raises(BadEvent, match="envelope: cloudevents"):
        own_content_type([("content-type", sent)])


def test_parameters_are_read_with_and_without_quotes():
    for text in (OWN_EVENT_US, f"{OWN_EVENT} ; time_unit=us", f'{OWN_EVENT};charset=utf-8; Time_Unit="us"', f'"{OWN_EVENT_US}"'):
        kind = media_type(text.encode())
        assert kind.essence == OWN_EVENT and ("time_unit", "us") in kind.parameters


@pytest.mark.parametrize(("kind", "value"), [
    (b'"application/json"', json.dumps(EDGES)), (b"application/vnd.x+json", json.dumps(EDGES)), (b'"application/x-ndjson"', "\n".join(map(json.dumps, EDGES)))])
def test_events_under_such_types_are_taken_alone_and_together(kind, value):
    decoder = Decoder(Rules(Schema(0, 0, 0)))
    one = [Record(json.dumps(EDGES[0]).encode(), i, headers=(("content-type", kind),)) for i in range(20)]
    block, rejected = decoder.decode([*one, Record(value.encode(), 20, headers=(("content-type", kind),))], 0, NOW)
    assert not rejected and len(block) == 22


@pytest.mark.parametrize("unit", ["us", "ms"])
@pytest.mark.parametrize("quoted", [True, False])
def test_our_own_event_in_a_mapped_topic_has_the_unit_that_its_type_says(tmp_path, unit, quoted):
    topic = Topic(source("{time: s, fields: {src: u, dst: v, time: t}}"), tmp_path)
    kind = OWN_EVENT_US if unit == "us" else OWN_EVENT
    kind = f'"{kind.replace(";", "; ")}"' if quoted else kind
    event = topic.one({"src": "a", "dst": "b", "time": 5000}, headers=(("content-type", kind.encode()),))
    assert (event.kind, event.time) == (EDGE, 5000 if unit == "us" else 5_000_000)


@pytest.mark.parametrize("kind", [b'"application/cloudevents+json"', b"Application/CloudEvents+JSON;charset=UTF-8", b'"application/cloudevents+json; charset=utf-8"'])
def test_a_structured_cloudevent_is_known_by_its_media_type(tmp_path, kind):
    """Headers `ce_*` beside it do not make it a binary one."""
    topic = Topic(CLOUD, tmp_path)
    headers = (("ce_type", b"other"), ("content-type", kind))
    events, rejected = topic.of([record(cloud(), i, headers=headers) for i in range(12)])
    assert len(events) == 12 and not rejected


def test_a_binary_cloudevent_may_have_any_type_of_json(tmp_path):
    topic = Topic(CLOUD, tmp_path)
    for kind in (b'"application/json"', b"application/vnd.shop+json", b"text/json; charset=utf-8"):
        headers = (("content-type", kind), ("ce_specversion", b"1.0"), ("ce_type", b"view"), ("ce_time", b"1970-01-01T00:00:05Z"))
        assert topic.one({"u": "a", "v": 5}, headers=headers).time == 5_000_000


def test_the_types_that_are_remembered_are_bounded():
    for number in range(5000):
        media_type(f"application/x{number}".encode())
    assert media_type.cache_info().currsize <= 1024


def test_records_together_and_one_by_one_agree():
    kinds = [b'"application/json"', b"application/x+json", b"application/x-ndjson", b"text/plain", None]
    some = [Record(json.dumps(EDGES[0]).encode(), i, headers=(("content-type", kinds[i % 5]),)) for i in range(40)]
    both = []
    for one_by_one in (False, True):
        decoder = Decoder(Rules(Schema(0, 0, 0)))
        if one_by_one:
            decoder.own.form_of = lambda record: None
        block, rejected = decoder.decode(some, 0, NOW)
        both.append((spell(block, decoder.keys.keys), rejected))
    assert both[0] == both[1] and len(both[0][0]) == 24
