"""The same events through one edge set and, split at random, through several: one order, one history, the same deletes."""

import dataclasses
import gc
import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import Draw
from streamd.graph.facts.columns import NUM_FACTS
from streamd.graph.live import LiveGraph, read_back
from streamd.schema import EdgeSet, NodeSet
from tests.builders import SECOND, compact
from tests.builders import settings as settings_of

NODES = 12
ONE = Schema(1, 0, 0)


def several(k):
    return Schema.declared([NodeSet("n")], [EdgeSet(f"s{i}", "n", "n", 1) for i in range(k)])


def write(path, schema, events, sets, deletes, cut):
    """events: (src, dst, value), a second apart. deletes: (before which event, node or -1, number of an event)."""
    log = LogWriter(path, schema, cut)
    src, dst, value = (np.array(column) for column in zip(*events, strict=True))
    time = np.arange(1, len(events) + 1) * SECOND
    msg = np.concatenate([schema.edge_rows(int(n), np.full((1, 1), v, np.float32)) for n, v in zip(sets, value, strict=True)])
    at = 0
    while at < len(events):
        end = min(at + min(5, log.remaining_rows()), len(events))
        due = [d for d in deletes if at < d[0] <= end and (d[1] >= 0 or d[2] < d[0])]
        rows = np.zeros(len(due), DELETION)
        for row, (place, node, event) in zip(rows, due, strict=True):
            row["edge"], row["row"] = place - at, place - at
            if node >= 0:
                row["src"], row["dst"] = node, -1
            else:
                row["src"], row["dst"], row["time"], row["edge_set"] = src[event], dst[event], time[event], sets[event]
        log.commit(dataclasses.replace(
            empty_batch(schema), src_E=src[at:end], dst_E=dst[at:end], time_E=time[at:end], msg_ED=msg[at:end], deletions_X=np.sort(rows, order="edge"),
            new_keys=tuple(range(NODES)) if at == 0 else ()), Progress(), int(time[end - 1]))
        at = end
    return log


def live_of(path):
    log = LogReader.open(path)
    live = LiveGraph(log, BlockGraph(log.first_edge, directions=("both", "in"), read_back=read_back(log)), settings_of(path).model)
    while live.step(log.num_edges, 10):
        pass
    return live


@settings(max_examples=40, deadline=None)
@given(data=st.data(), k=st.integers(2, 5), cut=st.integers(6, 30), again=st.booleans())
def test_events_split_among_sets_have_one_order_one_history_and_the_same_deletes(data, k, cut, again):
    node = st.integers(0, NODES - 1)
    events = data.draw(st.lists(st.tuples(node, node, st.integers(-9, 9)), min_size=1, max_size=60))
    n = len(events)
    sets = data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    deletes = data.draw(st.lists(st.tuples(st.integers(1, n), st.one_of(st.just(-1), node), st.integers(0, n - 1)), max_size=4))
    folder = Path(tempfile.mkdtemp(prefix="sets-apart-"))
    try:
        worlds = []
        for name, schema, own in (("one", ONE, [0] * n), ("several", several(k), sets)):
            log = write(folder / name, schema, events, own, deletes, cut)
            if again:
                compact(log, n)
            log.close()
            assert verify_log(folder / name)[1] == []
            worlds.append(live_of(folder / name))
        same(*worlds, sets)
    finally:
        # Graphs hold address space, of which many examples would take all.
        worlds = []
        gc.collect()
        shutil.rmtree(folder)


def same(one, other, sets):
    # One global order, the same rows hidden, and each row what it was.
    n = one.log.num_edges
    ids = np.arange(n)
    for a, b in zip(one.log.edges(0, n), other.log.edges(0, n), strict=True):
        np.testing.assert_array_equal(a, b)
    hidden = one.log.hidden(0, n)
    np.testing.assert_array_equal(hidden, other.log.hidden(0, n))
    assert other.log.edge_sets_of(ids).tolist() == sets and one.log.edge_sets(0, n).tolist() == [0] * n
    for first in range(n):
        # A range that begins within a segment, and ends within another.
        end = first + (n - first) // 2
        assert other.log.edge_sets(first, end).tolist() == sets[first:end]
        for a, b in zip(one.log.edges(first, end), other.log.edges(first, end), strict=True):
            assert a.tolist() == b.tolist()
    schema, rows = other.log.state.schema, other.log.features_of(ids)
    own = np.array([rows[i, schema.edge_columns(s).start] for i, s in enumerate(sets)])
    np.testing.assert_array_equal(own[~hidden], one.log.features_of(ids)[~hidden, 0])

    # "Recent over all sets", in every direction and as of any event.
    nodes = np.repeat(np.arange(NODES), 3)
    before = np.tile(np.array([n // 3, 2 * n // 3, n]), NODES)
    for direction in ("both", "in"):
        draw = Draw(direction=direction, fanout=4, strategy="recent")
        parts = [w.graph.sample(nodes, np.zeros_like(nodes), before, draw) for w in (one, other)]
        for field in ("event", "mask", "neighbor"):
            a, b = (np.where(p.mask, getattr(p, field), -1) for p in parts)
            np.testing.assert_array_equal(a, b, err_msg=f"{direction} {field}")

    # Facts of all sets together.
    time = np.full(NODES, (n + 5) * SECOND)
    asked = np.arange(NODES), time, np.tile(np.arange(NODES), (NODES, 1))
    want = one.facts.compute(*asked, np.zeros(NODES, np.int64))
    got = other.facts.compute(*asked, np.zeros(NODES, np.int64))
    np.testing.assert_array_equal(got[..., NUM_FACTS: 2 * NUM_FACTS], want)
