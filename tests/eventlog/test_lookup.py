"""Edges found by name, and the structures by which they are found, beside the plain way of doing it."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.eventlog import lookup
from streamd.eventlog.deletions import Deletions
from streamd.eventlog.layout import LATE, LATE_ROW
from streamd.eventlog.lookup import LateEdges, find_edges
from streamd.eventlog.reader import LogReader
from streamd.eventlog.segments import MappedSegments
from streamd.eventlog.tguf.growing import GrowingArray, SortedRuns, spread
from streamd.events import DELETION, NO_DELETES, Schema
from tests.builders import write_log

NUM_EDGES = 400


@pytest.fixture(scope="module", params=[1, 8, 200], ids=lambda n: f"{n} times of each")
def log(request, tmp_path_factory):
    """A log of few nodes and many edges alike, in segments of 37 edges; its columns; and which of its edges are late."""
    rng = np.random.default_rng(request.param)
    src, dst = rng.integers(1, 5, (2, NUM_EDGES))
    stored = np.arange(NUM_EDGES) // request.param
    path = tmp_path_factory.mktemp("log")
    write_log(path, src, dst, stored, Schema(), segment_edges=37)
    late_edge = np.flatnonzero(rng.random(NUM_EDGES) < 0.2)
    own = stored.copy()
    own[late_edge] = np.maximum(own[late_edge] - rng.integers(0, 9, len(late_edge)), 0)
    late_rows = np.zeros(len(late_edge), LATE_ROW)
    late_rows["edge"], late_rows["time"] = late_edge, own[late_edge]
    (path / "edges/default/late.rows").write_bytes(late_rows.tobytes())
    reader = LogReader.open(path)
    segments, late = MappedSegments(path), LateEdges(path)
    segments.take(reader.state)
    late._edge.append(late_rows["edge"])
    for rows in np.array_split(late_rows, 7):
        late._by_time.add(rows["time"], rows["edge"])
    return segments, late, src, dst, own


def named(rng, src, dst, own, count):
    """Names of edges that are there and of some that are not, each below an event id."""
    some = rng.integers(0, NUM_EDGES, count)
    away = rng.integers(-1, 2, (3, count)) * (rng.random(count) < 0.2)
    return src[some] + away[0], dst[some] + away[1], own[some] + away[2], rng.integers(0, NUM_EDGES + 1, count)


@pytest.mark.parametrize("slice_rows", [1 << 20, 5])
def test_edges_are_found_that_came_with_the_ends_and_the_time_and_lie_before(log, monkeypatch, slice_rows):
    monkeypatch.setattr(lookup, "SLICE", slice_rows)
    segments, late, src, dst, own = log
    rng = np.random.default_rng(0)
    for count in (1, 2, 30, 300):
        names = named(rng, src, dst, own, count)
        ids = np.arange(NUM_EDGES)
        want = {int(i) for u, v, t, before in zip(*names, strict=True)
                for i in ids[(src == u) & (dst == v) & (own == t) & (ids < before)]}
        got = find_edges(segments, late, *names)
        assert got.tolist() == sorted(want)
    assert not len(find_edges(segments, late, *np.zeros((4, 0), np.int64)))


def test_bounds_and_ranges_are_those_of_one_array(log):
    segments, _, src, dst, own = log
    time = segments.edges(0, NUM_EDGES)[2]
    asked = np.arange(-2, NUM_EDGES + 3)
    for after in (False, True):
        want = np.searchsorted(time, asked, side="right" if after else "left")
        np.testing.assert_array_equal(segments.bounds(asked, after), want)
        assert [segments.lower_bound(int(t)) for t in asked] == segments.bounds(asked).tolist()
    for first, end in ((0, 0), (0, 37), (36, 38), (5, 399), (400, 400), (74, 111)):
        np.testing.assert_array_equal(segments.edges(first, end)[0], src[first:end])
        ids = np.arange(first, end)
        np.testing.assert_array_equal(segments.ends(ids), (src[ids], dst[ids]))
    with pytest.raises(IndexError):
        segments.edges(0, NUM_EDGES + 1)


@given(st.lists(st.lists(st.integers(-20, 20), max_size=6), max_size=30), st.lists(st.integers(-22, 22), unique=True))
@settings(deadline=None)
def test_runs_and_growing_arrays_hold_what_one_array_would(pieces, asked):
    runs, growing = SortedRuns(), GrowingArray(np.int64)
    for piece in pieces:
        keys = np.array(piece, np.int64)
        runs.add(keys, 100 * keys + 1)
        growing.append(keys)
    every, wanted = np.array(sum(pieces, []), np.int64), np.array(asked, np.int64)
    assert growing.values.tolist() == every.tolist()
    np.testing.assert_array_equal(runs.holds(wanted), np.isin(wanted, every))
    assert sorted(runs.between(-5, 6)) == sorted(100 * k + 1 for k in every if -5 <= k < 6)
    values, index = runs.under(wanted)
    assert sorted(values) == sorted(100 * k + 1 for k in every if k in asked) and (values == 100 * wanted[index] + 1).all()
    assert len(runs._runs) <= 1 + np.log2(max(len(every), 1))


def test_ranges_are_spread_out():
    numbers, of = spread(np.array([3, 7, 7, 1]), np.array([5, 7, 10, 2]))
    assert numbers.tolist() == [3, 4, 7, 8, 9, 1] and of.tolist() == [0, 0, 2, 2, 2, 3]


@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_deletes_however_they_come_hide_the_same(log, at_once):
    segments, late, src, dst, own = log
    rng = np.random.default_rng(1)
    rows = np.zeros(40, DELETION)
    rows["src"], rows["dst"], rows["time"], rows["edge"] = named(rng, src, dst, own, 40)
    rows["edge"].sort()
    rows["dst"][::9] = -1
    deletions, seen = Deletions(), []
    assert deletions.of_nodes.node.tolist() == NO_DELETES.node.tolist() and deletions.newest_place == -1
    for a in range(0, 40, at_once):
        deletions.take(rows[a:a + at_once], lambda *names: find_edges(segments, late, *names))
        seen.append(deletions.edges)
    assert all((deletions.edges[: len(s)] == s).all() for s in seen), "what was read out stays as it was"
    ids, gone = np.arange(NUM_EDGES), np.isin(np.arange(10), rows["src"][::9])
    single = np.zeros(NUM_EDGES, bool)
    for r in rows[rows["dst"] >= 0]:
        single |= (src == r["src"]) & (dst == r["dst"]) & (own == r["time"]) & (ids < r["edge"])
    assert sorted(deletions.edges) == np.flatnonzero(single).tolist()
    np.testing.assert_array_equal(deletions.hides_edges(ids), single)
    for first, end in ((0, NUM_EDGES), (100, 131)):
        part = slice(first, end)
        np.testing.assert_array_equal(deletions.hides(first, src[part], dst[part]), (single | gone[src] | gone[dst])[part])
    assert deletions.nodes.tolist() == rows["src"][::9].tolist() and deletions.of_nodes.edge.tolist() == rows["edge"][::9].tolist()
    assert deletions.count == 40 and deletions.newest_place == rows["edge"][-1]


def test_late_edges_that_retention_removed_are_dropped_and_the_others_are_found(tmp_path):
    rng = np.random.default_rng(3)
    rows = np.zeros(5000, LATE_ROW)
    rows["edge"], rows["time"] = np.sort(rng.choice(20_000, 5000, replace=False)), rng.integers(0, 300, 5000)
    (tmp_path / "edges/default").mkdir(parents=True)
    (tmp_path / LATE).write_bytes(rows.tobytes())
    late = LateEdges(tmp_path)
    for num in range(500, 5001, 500):
        # The log keeps the newest 2,000 event ids, more or less.
        first = max(0, int(rows["edge"][num - 1]) - 2000)
        late.take(SimpleNamespace(files={LATE: SimpleNamespace(num_bytes=num * rows.itemsize)}, first_edge=first))
        kept = rows[:num][rows["edge"][:num] >= first]
        edge, time = late.rows
        assert len(edge) <= 2 * len(kept) + 500
        np.testing.assert_array_equal(edge[edge >= first], kept["edge"])
        np.testing.assert_array_equal(time[edge >= first], kept["time"])
        ids, index = late.came_at(np.arange(300))
        is_kept = ids >= first
        np.testing.assert_array_equal(ids[is_kept], kept["edge"])
        np.testing.assert_array_equal(index[is_kept], kept["time"])
        assert late.count(first, 20_000, 150) == (kept["time"] < 150).sum()
