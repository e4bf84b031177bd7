"""Placeholders, heavy keys, copies of edges and ids of two kinds that collide."""

import dataclasses

import numpy as np
import pytest

from streamd.eventlog.odd_keys import (
    MAX_BLANK_LOOKS,
    MIN_EDGES,
    PLACEHOLDERS,
    OddKeys,
    count_copies,
    odd_keys,
    odd_keys_in_log,
    placeholder_ids,
)
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, SetKey
from streamd.server.page.key_watch import EVERY_SECONDS, OddKeysOnPage
from tests.builders import batch, stream, write_log


def look(pairs, copies=0):
    """The oddities of edges between keys."""
    keys = list(dict.fromkeys(key for pair in pairs for key in pair))
    ids = {key: n for n, key in enumerate(keys)}
    src, dst = (np.array([ids[pair[end]] for pair in pairs]) for end in (0, 1))
    return odd_keys(src, dst, keys.__getitem__, placeholder_ids(ids, 1, ["user:"]), copies, np.ones(len(src), np.bool_))


@pytest.mark.parametrize("key", ["nan", "NaN", "NULL", "null", "None", "undefined", "[deleted]", "-", "N/A", "\\N", "(not set)", "<NA>", -1, "-1",
                                 "00000000-0000-0000-0000-000000000000", "user:nan"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_placeholder_is_named_with_its_share_and_the_way_out(key, side):
    pairs = [(f"u{i % 7}", f"i{i % 9}") for i in range(97)] + [((key, "i1"), ("u1", key))[side]] * 3
    found = look(pairs)
    assert [(o.key, o.role, o.num, o.is_placeholder) for o in found.keys] == [(key, ("source", "destination")[side], 3, True)]
    assert "3 of 100 edges (3 %)" in found.sentences[0] and "drop_keys: [" in found.sentences[0] and "popular" not in found.sentences[0]


@pytest.mark.parametrize("key", ["nancy", "Nona", "x-", "deleted", 0, 1, "u:-", "nullable", "unknown-7"])
def test_other_keys_are_no_placeholders(key):
    assert key not in PLACEHOLDERS and not look([(key, f"i{i}") for i in range(3)]).keys


@pytest.mark.parametrize("key", [" b", "b ", "\tb", "b\n"])
def test_a_key_with_blanks_around_it_is_named_with_the_way_out(key):
    (sentence,) = look([("a", "b"), ("a", key)]).sentences
    assert "has blanks around it, and is another node than \"b\"" in sentence and "--strip" in sentence


@pytest.mark.parametrize("key", ["b", "a b", 7, ""])
def test_blanks_within_a_key_are_no_oddity(key):
    assert look([("a", key)]).sentences == []


def test_very_many_keys_are_not_all_looked_at_for_blanks():
    asked = []
    nodes = np.arange(3 * MAX_BLANK_LOOKS)
    odd_keys(nodes, nodes, lambda node: asked.append(node) or f"u{node}", [], 0, np.zeros(len(nodes), np.bool_))
    assert len(asked) == MAX_BLANK_LOOKS


def test_a_key_in_more_than_a_tenth_of_the_edges_is_named():
    rows = [(f"u{i}", f"i{i % 50}") for i in range(300)] + [(f"u{i}", "front page") for i in range(50)]
    (odd,) = look(rows).keys
    assert (odd.key, odd.role, odd.num, odd.is_placeholder) == ("front page", "destination", 50, False)
    assert not look([(f"u{i}", f"c{i % 5}") for i in range(300)]).keys, "of five categories each has a fifth"
    assert not look([("u", f"i{i}") for i in range(MIN_EDGES - 1)]).keys, "too few edges"


def test_exact_copies_are_counted_by_features_too():
    src, dst, time = (np.array(column) for column in ([1, 2, 1, 1, 2, 1], [5, 5, 5, 5, 5, 6], [9, 9, 9, 9, 9, 9]))
    values = np.array([[0.5], [1], [0.5], [2], [1], [0.5]], np.float32)
    asked = []

    def features_of(at):
        asked.append(len(at))
        return values[at]

    assert count_copies(src, dst, time, features_of) == 2 and asked == [5], "only of edges that are equal otherwise"
    assert count_copies(src, dst, time, lambda at: np.zeros((len(at), 0), np.float32)) == 3
    assert count_copies(src, dst, time + np.arange(6), features_of) == 0


def two_sides(seed, num_edges=3000):
    rng = np.random.default_rng(seed)
    return list(zip(rng.integers(0, 200, num_edges).tolist(), rng.integers(0, 200, num_edges).tolist(), strict=True))


def test_ids_of_two_kinds_that_collide_are_hinted_at():
    pairs = two_sides(0)
    assert 0.9 < look(pairs).shared <= 1 and "user 7 and item 7" in look(pairs).sentences[-1]
    assert not look([(a, 1000 + b) for a, b in pairs]).shared, "ids of their own"
    assert not look([(f"n{a}", f"n{b}") for a, b in pairs]).shared, "text of two kinds does not collide by accident"
    assert look([(str(a), str(b)) for a, b in pairs]).shared, "integers as text do"
    assert not look([*pairs, *((b, a) for a, b in pairs[::3])]).shared, "people who write back"


def test_a_log_is_looked_at_from_its_end(tmp_path):
    src, dst, time = stream(600)
    write_log(tmp_path, src, dst, time, Schema())
    log = LogReader.open(tmp_path)
    found = odd_keys_in_log(log)
    assert found.num_edges == 600 and not [odd for odd in found.keys if odd.is_placeholder]
    assert odd_keys_in_log(log, most=100).num_edges == 100 and odd_keys_in_log(log, 590).num_edges == 10
    assert odd_keys_in_log(log, 600) == OddKeys(num_edges=0)
    whole = np.stack([src, dst, time], 1)
    assert found.copies == 600 - len(np.unique(whole, axis=0))


@pytest.mark.parametrize(("num_late", "are_named"), [(50, True), (5, False)])
def test_many_late_edges_are_named(tmp_path, num_late, are_named):
    writer = LogWriter(tmp_path, Schema(), 1000)
    writer.commit(batch(Schema(), np.arange(100) % 7, 7 + np.arange(100) % 9, np.arange(100), [f"n:{i}" for i in range(16)]), Progress(), 99)
    again = dataclasses.replace(batch(Schema(), np.arange(num_late) % 7, 7 + np.arange(num_late) % 5, np.full(num_late, 99)),
                                late_edge=tuple(range(num_late)), late_time=tuple(range(num_late)))
    writer.commit(again, Progress(), 99)
    writer.close()
    log = LogReader.open(tmp_path)
    found = odd_keys_in_log(log)
    assert found.late == num_late and odd_keys_in_log(log, 0, most=2).late == 2
    assert any(f"{num_late} of {100 + num_late} edges came late" in sentence for sentence in found.sentences) is are_named


def test_the_page_looks_at_most_once_a_minute(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("streamd.server.page.key_watch.time.monotonic", lambda: now[0])
    src, dst, time = stream(200)
    write_log(tmp_path, src, dst, time, Schema())
    logs = [None]
    page = OddKeysOnPage(lambda: logs[0], frozenset())
    assert page.content() == []
    logs[0] = LogReader.open(tmp_path)
    logs[0].ids["nan"] = int(src[-1])
    logs[0].keys[int(src[-1])] = "nan"
    shown = page.content()
    assert any('"nan" is the source of' in sentence for sentence in shown)
    logs[0].ids.clear()
    assert page.content() == shown
    now[0] += EVERY_SECONDS
    assert not any("nan" in sentence for sentence in page.content())


def test_placeholders_of_all_node_sets_are_found():
    assert sorted(placeholder_ids({"nan": 4, SetKey(1, "null"): 7, "x": 1}, 2)) == [4, 7]
