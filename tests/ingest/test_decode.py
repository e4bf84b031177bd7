import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.events import EDGE, LABEL, NODE, Schema
from streamd.ingest.deadletter import REASONS
from streamd.ingest.decode import Decoder, Origin, Rules

NOW = 1_700_000_000_000_000
ORIGIN = Origin(3, 42, 1_600_000_000_000_000)


def decoder(**rules):
    return Decoder(Rules(**{"schema": Schema(2, 1, 1), **rules}))


def decode(value, headers=(), origin=ORIGIN, **rules):
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return decoder(**rules).decode(raw, headers, origin, 77, NOW)


def edge(**fields):
    return {"src": "u:1", "dst": "i:2", "time": 1_672_531_200_123, "features": [1.5, 2], **fields}


def test_an_edge_is_decoded_in_microseconds():
    (event,), bad = decode(edge())
    assert bad == [] and event == (1_672_531_200_123_000, 3, 42, 0, EDGE, "u:1", "i:2", [1.5, 2.0])


def test_a_string_key_is_not_the_integer_that_looks_like_it():
    (event,), _ = decode(edge(src="1", dst=1))
    assert (event.a, event.b) == ("1", 1)


def test_an_event_without_time_takes_the_kafka_timestamp():
    plain = edge()
    del plain["time"]
    assert decode(plain)[0][0].time == ORIGIN.timestamp_us
    assert decode(plain, origin=Origin(0, 0, -1))[1][0].reason == "bad_time"


def test_nodes_and_labels_are_decoded():
    events, bad = decode([{"type": "node", "id": "u:1", "features": [3]},
                          {"type": "label", "node": "u:1", "time": 5, "target": [1]}])
    assert not bad and [(e.kind, e.a, e.time, e.values) for e in events] == [(NODE, "u:1", 77, [3.0]), (LABEL, "u:1", 5000, [1.0])]


BAD = {
    "broken JSON": (b'{"src": "a", ', "bad_json"), "not UTF-8": (b'{"src": "\xff\xfe"}', "bad_json"),
    "a number": (b"17", "wrong_type"), "empty value": (b"", "bad_json"), "no value": (None, "tombstone"),
    "src a list": (edge(src=[1]), "wrong_type"), "src a float": (edge(src=1.5), "wrong_type"),
    "src true": (edge(src=True), "wrong_type"), "float time": (edge(time=5.0), "bad_time"),
    "fractional time": (edge(time=5.5), "bad_time"), "string time": (edge(time="5"), "wrong_type"),
    "negative time": (edge(time=-1), "bad_time"), "a century ahead": (edge(time=NOW // 1000 + 3_155_760_000_000), "time_ahead"),
    "time beyond int64": (edge(time=2**62), "bad_time"), "huge time": (edge(time=10**30), "wrong_type|bad_time|bad_json"),
    "NaN feature": (b'{"src":1,"dst":2,"time":5,"features":[NaN,1]}', "bad_json"),
    "infinite feature": (b'{"src":1,"dst":2,"time":5,"features":[1e39,1]}', "bad_features"),
    "feature beyond float64": (b'{"src":1,"dst":2,"time":5,"features":[1e999,1]}', "bad_json|wrong_type|bad_features"),
    "wrong width": (edge(features=[1]), "feature_width"), "no features": ({"src": 1, "dst": 2, "time": 5}, "feature_width"),
    "text feature": (edge(features=["a", 1]), "wrong_type"), "unknown type": (edge(type="edgy"), "unknown_type"),
    "missing dst": ({"src": 1, "time": 5, "features": [1, 2]}, "missing_field"),
    "key with newline": (edge(src="a\nb"), "bad_key"), "empty key": (edge(src=""), "bad_key"),
    "long key": (edge(src="x" * 257), "bad_key"), "lone surrogate": (b'{"src":"\\ud800","dst":2,"time":5,"features":[1,2]}', "bad_key|bad_json"),
    "key beyond int64": (edge(src=2**63), "bad_key|wrong_type"), "10 MB record": (b'{"src": "' + b"x" * 10_000_000 + b'"}', "record_too_large"),
    "empty array": (b"[]", "empty"), "deep nesting": (b'{"src":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep|wrong_type"),
    "deep array": (b"[" * 100_000 + b"]" * 100_000, "too_deep|wrong_type|bad_json"),
    "delete": ({"type": "delete", "node": "u:1"}, "unsupported"), "edge with a target": (edge(target=[1]), "wrong_type"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_rejected_with_its_reason_and_bytes(name):
    value, reason = BAD[name]
    good, bad = decode(value)
    assert good == [] and len(bad) == 1
    assert bad[0].reason in reason.split("|") and bad[0].reason in REASONS
    assert bad[0].raw == (value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode())
    assert bad[0].error


def test_an_unknown_content_type_is_rejected():
    assert decode(edge(), [("content-type", b"text/csv")])[1][0].reason == "unknown_content_type"
    assert len(decode(edge(), [("Content-Type", b"application/json; charset=utf-8")])[0]) == 1


@pytest.mark.parametrize("name", [n for n, (v, _) in BAD.items() if isinstance(v, dict)])
def test_neighbours_of_a_bad_event_in_an_array_are_kept(name):
    good, bad = decode([edge(src="first"), BAD[name][0], edge(src="last")])
    assert [(e.a, e.item) for e in good] == [("first", 0), ("last", 2)]
    assert [b.index for b in bad] == [1]


def test_too_many_events_in_one_record_are_rejected_whole():
    good, bad = decode([edge()] * 11, max_record_events=10)
    assert not good and bad[0].reason == "too_many_events" and bad[0].index == -1


def test_an_event_beyond_the_brokers_own_time_is_ahead_even_if_our_clock_is_wrong():
    origin = Origin(0, 0, 1_000_000_000, log_append_time=True)
    assert decode(edge(time=1_000_000 + 601_000), origin=origin)[1][0].reason == "time_ahead"
    assert decode(edge(time=1_000_000 + 599_000), origin=origin)[0]


JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(
                        ["src", "dst", "time", "type", "features", "id", "node", "target", "x"]), x, max_size=5), max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=60), JUNK.map(lambda x: json.dumps(x).encode())))
def test_no_input_crashes_the_decoder_or_goes_unaccounted(value):
    good, bad = decode(value)
    assert good or bad
    assert all(b.reason in REASONS for b in bad)
