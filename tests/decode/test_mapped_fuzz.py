"""Arbitrary records of mapped topics end nothing and cost no neighbor; a fault that is put in is found by the same records."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode import encoding
from streamd.decode.block import Taken, empty_block
from streamd.decode.sources import paths as shapes
from streamd.decode.sources import rules as mapping
from streamd.decode.sources import topic as mapped
from tests.decode.fuzz import Fuzz
from tests.decode.mapped import CLICKS, Topic, click

RECORDS = 6_000


def test_hostile_records_of_every_shape(tmp_path):
    Fuzz(tmp_path, 1).run(RECORDS)


@pytest.mark.slow
def test_many_hostile_records(tmp_path):
    Fuzz(tmp_path, 2).run(1_000_000)


def crash_on_empty_lists(monkeypatch):
    follow = shapes.follow

    def broken(steps):
        walk = follow(steps)
        return lambda value: value[0] if value == [] else walk(value)

    monkeypatch.setattr(shapes, "follow", broken)


def crash_on_fractions_as_keys(monkeypatch):
    key = mapping.Source.key
    monkeypatch.setattr(mapping.Source, "key", lambda self, row: 1 // 0 if self.of(row) == 1.5 else key(self, row))


def lose_a_neighbor(monkeypatch):
    block = mapped.MappedTopic._block
    monkeypatch.setattr(mapped.MappedTopic, "_block", lambda self, form, records, columns, origin: Taken(empty_block(self._rules.schema.edge_feature_dim))
                        if len(records) == 3 else block(self, form, records, columns, origin))


def read_a_missing_value_otherwise(monkeypatch):
    one = encoding.Feature.one
    monkeypatch.setattr(encoding.Feature, "one", lambda self, value, path: [0.0] * self.width if value is None else one(self, value, path))


@pytest.mark.parametrize("plant", [crash_on_empty_lists, crash_on_fractions_as_keys, lose_a_neighbor, read_a_missing_value_otherwise])
def test_a_fault_is_found(tmp_path, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises((IndexError, ZeroDivisionError, AssertionError, TypeError)):
        Fuzz(tmp_path, 1).run(RECORDS)


ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), lambda inner: st.lists(inner, max_size=4)
                   | st.dictionaries(st.sampled_from(["user_id", "item", "id", "ts", "kind", "dwell", "s", "pay"]) | st.text(max_size=3), inner, max_size=6), max_leaves=12)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(ANY | st.binary(max_size=60), max_size=12))
def test_any_json_and_any_bytes_leave_their_neighbors(tmp_path_factory, values):
    topic = Topic(CLICKS, tmp_path_factory.mktemp("any"))
    records = [click(user_id=-1 - i) for i in range(len(values) + 1)]
    mixed = [v for pair in zip(records, [*values, click()], strict=True) for v in pair]
    events, _ = topic.decode(*mixed)
    assert [e.offset for e in events if str(e.a).startswith("user:-")] >= list(range(0, 2 * len(records), 2))
    assert {e.offset for e in events} >= set(range(0, 2 * len(records), 2))
