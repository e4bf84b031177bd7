"""What a dead letter says: what was found, what was expected, and never a value of the sender's."""

import json
import re

import pytest

from streamd.decode.error_texts import MAX_TEXT
from streamd.decode.wire import NDJSON
from streamd.events import Schema
from streamd.ingest.dead_letters.search import SoughtKeys
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from tests.decode.attacks import ARROW_HEADER, stream
from tests.decode.mapped import Topic, record, source
from tests.decode.test_decode import NOW, decode, edge

FOREIGN = {"user_id": "secret-1", "item_id": "secret-2", "ts": 999_999_999}


def said(value, headers=(), **rules):
    """The text of the only dead letter."""
    good, (bad,) = decode(value, headers, **rules)
    assert not good and len(bad.error) <= MAX_TEXT
    return bad.error


@pytest.mark.parametrize(("value", "words"), [
    (FOREIGN, "; has user_id, item_id, ts: map them to src, dst, time."),
    ({"price": 3, **FOREIGN}, "; has price, user_id, item_id, ts: map user_id, item_id, ts to src, dst, time."),
    ({"src": "a", "Item-ID": 5, "time": 5, "features": [1, 2]}, "dst is missing; has src, Item-ID, time, features: map Item-ID to dst."),
    ({"foo": 1}, "; has foo. As an edge should be: "),
    ({"src": "a", "dst": None, "time": 5, "features": [1, 2]}, "dst is missing; has src, time, features. As"),
    ({"src": "a", "dst": [1], "time": 5, "features": [1, 2]}, "dst: expected int or str, got array; has src, dst"),
    ({"src": "a", "dst": "b", "time": "5", "features": [1, 2]}, "time: expected int or float, got str"),
    ({"src": "a", "dst": "b", "time": 5, "features": ["x", 2]}, "features[0]: expected float, got str"),
    ({"type": "secret-1"}, "type is none of edge, node, label, delete"),
    (b"17", "an event: expected object, got int"),
    (b"", "the value is empty. As an edge should be: "),
    ({"type": "node", "features": [1]}, 'id is missing; has type, features. As a node should be: {"type": "node", "id"'),
    ({"before": None, "after": FOREIGN, "op": "c"}, "looks like Debezium"),
    ({"schema": {}, "payload": {"before": None, "after": FOREIGN, "op": "c"}}, "looks like Debezium"),
    (b"\0\0\0\0\x07" + b"\x08secret-1", "schema registry header, id 7: Avro or Protobuf follows"),
    (b'\0\0\0\0\x07{"src": "secret-1"}', "schema registry header, id 7: JSON follows"),
    (b"\x1f\x8b\x08" + bytes(30), "looks compressed"),
    (stream({"src": ["secret-1"]}), "looks like Arrow: set the header content-type"),
])
def test_a_refused_event_is_explained_in_its_senders_words(value, words):
    text = said(value)
    assert words in text and "secret" not in text


def example_in(text):
    return json.loads(re.search(r"should be: (.*)", text)[1])


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("dim", [0, 1, 4])
@pytest.mark.parametrize("sent", [{}, {"type": "node", "features": None}, {"type": "label"}, {"type": "delete"}])
def test_the_example_of_a_right_event_is_one(unit, dim, sent):
    rules = {"schema": Schema(dim, dim, max(dim, 1)), "time_unit": unit}
    good, bad = decode(example_in(said(sent, **rules)), **rules)
    assert len(good) == 1 and not bad


def test_an_example_of_many_features_says_how_many():
    assert '"features": [0.5, 0.5, 0.5, 0.5, ... 172 numbers]' in said({}, schema=Schema(172))


@pytest.mark.parametrize("value", [
    edge(time="secret-1"), edge(time=1.25), edge(time=-424_242), edge(time=2**61 + 424_242), edge(time=424_242 * 10**9),
    edge(src=424_242 * 10**14), edge(src="secret-1\n"), edge(src="secret-1" * 99), edge(features=[424_242e20, 1]),
    edge(features=["secret-1", 1]), edge(type="secret-1"), edge(id="secret-1"), edge(features=[424_242]),
    {"type": "label", "node": "secret-1", "target": []}, b'{"src": "secret-1"', b'{"src": secret-1}', b"secret-1"])
def test_no_value_of_a_field_is_in_the_text(value):
    text = said(value, max_feature=1e9)
    assert "secret" not in text and "424242" not in text.replace(",", "") and "1.25" not in text


def test_names_of_fields_are_bounded_and_escaped():
    text = said({f"\x1b[2J{i}\n" + "y" * 100: 1 for i in range(100)})
    assert text.isprintable() and len(text) <= MAX_TEXT and r"\x1b[2J0\n" in text and "y" * 41 not in text
    assert "and 92 more" in said({f"f{i}": 1 for i in range(100)})
    wide = said({"\u202e\x00" * 99: 1})
    assert wide.isprintable()
    assert "; has" not in said({"x" * 70_000: 1, "y": 1}), "an event so large is not read once more"


@pytest.mark.parametrize(("unit", "factor", "looks"), [
    ("ms", 1_000, "us"), ("ms", 1_000_000, "ns"), ("s", 1_000, "ms"), ("s", 1_000_000, "us"), ("us", 1_000, "ns")])
def test_a_time_far_ahead_says_which_unit_it_looks_like(unit, factor, looks):
    now = NOW // {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    good, (bad,) = decode(edge(time=now * factor), time_unit=unit, stamp=NOW // 1000)
    assert not good and f"it looks like {looks}, stream.time_unit is {unit}" in bad.error
    assert "looks like" not in decode(edge(time=now * 5), time_unit=unit, stamp=NOW // 1000)[1][0].error


def test_lines_and_array_elements_are_each_explained():
    for value, headers in ((b"[" + json.dumps(FOREIGN).encode() + b",{}]", ()),
                           (json.dumps(FOREIGN).encode() + b"\n{}", [("content-type", NDJSON.encode())])):
        good, (first, second) = decode(value, headers)
        assert "has user_id, item_id, ts: map them" in first.error and "; has" not in second.error


def test_an_arrow_row_is_explained_as_its_json_is():
    good, (bad,) = decode(stream({"src": ["secret-1"], "dst": [None], "time": [5]}), ARROW_HEADER, schema=Schema())
    assert not good and "dst is missing; has src, time. As an edge should be" in bad.error


def test_a_letter_is_not_said_to_speak_of_a_key_that_only_its_text_has(tmp_path):
    (bad,) = decode({"src": "someone"})[1]
    letters = LocalDeadLetters(tmp_path, 10**6)
    letters.add(DeadLetter("t", 0, 1, -1, bad.reason, bad.error, 5, bad.raw))
    (line,) = (tmp_path / "current.jsonl").read_bytes().splitlines()
    assert "user:8" in bad.error and not SoughtKeys(keys={"user:8", 3, "e"}).are_in(line)
    assert SoughtKeys(keys={"someone"}).are_in(line) and SoughtKeys(keys={"src"}).are_in(line)


@pytest.mark.parametrize("value", [b"", b" \n"])
def test_an_empty_value_is_named_so_in_every_form(tmp_path, value):
    (tmp_path / "0").mkdir()
    for n, text in enumerate(["", "envelope: debezium, ", "envelope: connect, ", "envelope: cloudevents, ", "format: arrow, "]):
        topic = Topic(source(f"{{{text}fields: {{src: u, dst: v, time: t}}}}"), tmp_path / f"{n}")
        _, (bad,) = topic.of([record(value, 0)])
        assert bad.error == "the value is empty" or "arrow" in text and value and bad.reason == "bad_arrow", text
        (tmp_path / f"{n + 1}").mkdir()
    assert said(value).startswith("the value is empty. ")
