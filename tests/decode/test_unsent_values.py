"""Debezium's stand-in for a value that the database did not send counts as an absent field."""

import base64
import hashlib
import uuid

import pytest

from streamd.errors import SettingsError
from streamd.settings.sources import UNAVAILABLE
from tests.decode.mapped import Topic, source

SETS = {"edge_sets": {"default": {"features": {"kind": {"hash": 4, "missing": "none"}, "sizes": {"vector": 2, "missing": [0, 0]}}}}}
FIELDS = "time: ms, fields: {src: u, dst: {path: v, default: unknown}, time: t, features: {kind: k, sizes: s}}"
CHANGES = source(f"{{envelope: debezium, {FIELDS}}}", graph=SETS)
ROW = {"u": 1, "v": 2, "t": 5000, "k": "gift", "s": [1, 2]}
DATA = UNAVAILABLE.encode()
TEXTS = [UNAVAILABLE, DATA.hex(), base64.b64encode(DATA).decode(), base64.urlsafe_b64encode(DATA).decode(),
         str(uuid.UUID(bytes=hashlib.md5(DATA, usedforsecurity=False).digest(), version=3)), f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}']


def change(op="u", **row):
    return {"op": op, "before": None, "after": ROW | row}


def told(event):
    return event.a, event.b, list(event.values)


@pytest.mark.parametrize("stand_in", TEXTS)
@pytest.mark.parametrize("together", [1, 20])
def test_a_stand_in_is_as_if_the_field_were_absent(tmp_path, stand_in, together):
    topic = Topic(CHANGES, tmp_path)
    absent = change(v=None, k=None, s=None)
    events, rejected = topic.decode(*[absent, change(v=stand_in, k=stand_in, s=stand_in)] * together)
    assert not rejected and {str(told(event)) for event in events} == {str(told(topic.one(absent)))}
    assert topic.refused(change(u=stand_in)) == topic.refused(change(u=None)) == ("missing_field", "src (u) is missing")


@pytest.mark.parametrize("stand_in", [[text] for text in TEXTS[:5]] + [list(DATA)])
def test_a_list_of_a_stand_in_is_one(tmp_path, stand_in):
    topic = Topic(CHANGES, tmp_path)
    events, rejected = topic.decode(*[change(s=stand_in), change()] * 10)
    assert not rejected and [list(event.values)[-2:] for event in events] == [[0, 0], [1, 2]] * 10


@pytest.mark.parametrize("envelope", ["", "envelope: connect, "])
def test_flattened_changes_have_it_too(tmp_path, envelope):
    topic = Topic(source(f"{{{envelope}{FIELDS}}}", graph=SETS), tmp_path)
    value = ROW | {"v": UNAVAILABLE}
    assert topic.one({"schema": {}, "payload": value} if envelope else value).b == "unknown"


def test_a_condition_is_met_by_null_then(tmp_path):
    topic = Topic(source("{envelope: debezium, time: ms, fields: {src: u, dst: v, time: t}, where: {k: [null]}}"), tmp_path)
    assert [e.offset for e in topic.decode(change(), change(k=UNAVAILABLE), change(k=None))[0]] == [1, 2]


def test_the_word_is_a_setting_as_it_is_one_of_the_connector(tmp_path):
    for word, text in (("n/a", "n/a"), ("hex:6e2f61", "n/a"), ("hex:6e2f61", "bi9h")):
        topic = Topic(source(f"{{envelope: debezium, unavailable_value: '{word}', {FIELDS}}}", graph=SETS), tmp_path)
        assert topic.one(change(v=text)).b == "unknown" and topic.one(change(v=UNAVAILABLE)).b == UNAVAILABLE
    for word in ("", "hex:6z"):
        with pytest.raises(SettingsError, match="unavailable_value"):
            Topic(source(f"{{envelope: debezium, unavailable_value: '{word}', {FIELDS}}}", graph=SETS), tmp_path)


@pytest.mark.parametrize("value", ["__debezium", f"{UNAVAILABLE} ", UNAVAILABLE.upper()])
def test_other_text_is_a_value(tmp_path, value):
    assert Topic(CHANGES, tmp_path).one(change(v=value)).b == value


def test_the_number_one_is_no_stand_in_nor_is_a_longer_list(tmp_path):
    topic = Topic(CHANGES, tmp_path)
    assert topic.one(change(s=[1, 1])).b == 2 and topic.refused(change(s=[UNAVAILABLE] * 2))[0] == "bad_features"
