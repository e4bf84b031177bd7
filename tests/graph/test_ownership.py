"""The graphs of several ranks, each of its own nodes, answer together as one graph of all nodes does."""

import numpy as np
import pytest

from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import Draw
from streamd.graph.ownership import OwnedNodes, owner_of

NODES, EVENTS = 60, 3000
SETS = [(0, "both"), (1, "out")]


@pytest.fixture(scope="module")
def events():
    """Sources, destinations and edge sets; some are self loops, and some nodes come late."""
    rng = np.random.default_rng(5)
    src = (rng.zipf(1.3, EVENTS) - 1) % NODES
    dst = rng.integers(0, NODES, EVENTS)
    dst[::50] = src[::50]
    src[-1] = 10 * NODES
    return src.astype(np.int64), dst.astype(np.int64), rng.integers(0, 2, EVENTS)


def graph(events, owned=None, directions=("both", "out", "in"), parts=7):
    src, dst, sets = events

    def read_back(first, end):
        return src[first:end], dst[first:end], np.isin(np.arange(first, end), list(hidden))

    hidden = set()
    made = BlockGraph(0, 8, directions, read_back, SETS, lambda a, b: sets[a:b], owned=owned)
    for part in np.array_split(np.arange(EVENTS), parts):
        made.insert(src[part], dst[part], sets[part])
    made.hidden_events = hidden
    return made


def draws():
    for direction in ("both", "out", "in"):
        for strategy in ("recent", "uniform"):
            yield Draw(direction=direction, fanout=4, strategy=strategy, seed=3)
    yield Draw(edge_set=0, fanout=4, strategy="uniform")
    yield Draw(edge_set=1, direction="out", fanout=4)


def check_equal(whole, parts, num_ranks):
    roots = np.concatenate([np.arange(NODES + 3), [10 * NODES, -1]])
    owner = owner_of(roots, num_ranks)
    for before in (EVENTS, EVENTS // 2, 0):
        for draw in draws():
            expected = whole.sample(roots, 0, before, draw)
            for rank, part in enumerate(parts):
                mine = owner == rank
                got = part.sample(roots[mine], 0, before, draw)
                for name in ("neighbor", "event", "mask"):
                    np.testing.assert_array_equal(getattr(got, name), getattr(expected, name)[mine])


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_owner_of_a_root_answers_as_one_graph_of_all_nodes(events, num_ranks):
    whole = graph(events)
    parts = [graph(events, OwnedNodes(rank, num_ranks)) for rank in range(num_ranks)]
    check_equal(whole, parts, num_ranks)
    assert sum(part.num_entries for part in parts) == whole.num_entries


def test_deleted_events_and_nodes_are_hidden_in_every_part(events):
    src, dst, _ = events
    parts = [graph(events, OwnedNodes(rank, 3)) for rank in range(3)]
    whole = graph(events)
    gone = np.arange(0, EVENTS, 3)
    for one in (whole, *parts):
        one.hide(src[gone], dst[gone], gone)
        one.hide_nodes(np.array([0, 7, 10 * NODES]))
    check_equal(whole, parts, 3)


def test_offloaded_entries_are_read_back_for_the_own_nodes(events):
    src, dst, _ = events
    parts = [graph(events, OwnedNodes(rank, 2)) for rank in range(2)]
    whole = graph(events)
    gone = np.array([5, 6, 700])
    for one in (whole, *parts):
        one.hide(src[gone], dst[gone], gone)
        one.hidden_events.update(gone.tolist())
        one.offload(2000)
    check_equal(whole, parts, 2)


def test_many_events_at_once_are_filed_as_few_at_a_time(events, monkeypatch):
    monkeypatch.setattr("streamd.graph.blocks.block_store.MANY_EVENTS", 10)
    parts = [graph(events, OwnedNodes(rank, 2)) for rank in range(2)]
    check_equal(graph(events), parts, 2)


def test_slots_are_dense_and_do_not_depend_on_who_is_asked_first():
    one, other = OwnedNodes(1, 3), OwnedNodes(1, 3)
    one.slots(np.array([1000]))
    for node in range(1001):
        other.slots(np.array([node]))
    nodes = np.arange(1001)
    np.testing.assert_array_equal(one.slots(nodes), other.slots(nodes))
    own = nodes[one.is_own(nodes)]
    np.testing.assert_array_equal(one.slots(own), np.arange(len(own)))
    np.testing.assert_array_equal(one.nodes(np.arange(len(own))), own)
    assert (one.slots(np.array([-1, -5])) == -1).all()


def test_nodes_are_spread_evenly_over_ranks():
    counts = np.bincount(owner_of(np.arange(100_000), 8), minlength=8)
    assert counts.min() > 12_000


def test_a_ranks_graph_takes_its_share_of_memory():
    rng = np.random.default_rng(1)
    num_nodes, count = 200_000, 1_000_000
    src, dst = rng.integers(0, num_nodes, (2, count))
    sizes = []
    for owned in (None, OwnedNodes(2, 4)):
        made = BlockGraph(owned=owned)
        made.insert(src, dst)
        sizes.append(made.num_bytes)
    assert sizes[1] < 0.27 * sizes[0]
