"""Facts with supposed events are those with the events, and afterwards every array is as before."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.graph.facts.pair_facts import PairFacts
from streamd.graph.facts.set_facts import SetFacts
from tests.builders import HOUR, SETS, sets_stream, stream

HALF_LIVES = (90, 1800, 8640, 43200, 691200)


def facts_of(max_pairs, num_events=400):
    facts = PairFacts(HALF_LIVES, max_pairs)
    facts.advance(*(column[:num_events] for column in stream(400)))
    return facts


def arrays(facts):
    """All arrays, and the rest of the state; the rows of nodes that fit both."""
    return {name: array.copy() for name, array in facts._f._asdict().items()} | {"edge": facts.edge, "forgotten": facts.num_forgotten}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 400), st.sampled_from([150, 5000]), st.lists(st.integers(20, 45), min_size=1, max_size=64), st.integers(0, 30), st.integers(0, 3))
def test_facts_are_those_of_the_events_and_all_is_undone(num_events, max_pairs, dst, gap_hours, step_hours):
    facts, other = facts_of(max_pairs, num_events), facts_of(max_pairs, num_events)
    # Its own id is among the destinations now and then.
    source, dst_E = 40, np.array(dst)
    time_E = 7 * HOUR + gap_hours * HOUR + step_hours * HOUR * np.arange(len(dst))
    events = np.full(len(dst), source), dst_E, time_E
    asked = np.array([source]), time_E[-1:] + 1, np.arange(60)[None]
    kept = arrays(facts)
    with facts.supposing(*events):
        found = facts.compute(*asked)
        assert facts.edge == num_events + len(dst)
    other.advance(*events)
    np.testing.assert_array_equal(found, other.compute(*asked))

    for name, array in arrays(facts).items():
        before = kept[name]
        if name == "slots" and len(array) != len(before):
            continue
        if isinstance(array, np.ndarray):
            rows = len(before) if name not in ("key", "weight", "met_at", "sent", "num_met", "before", "after") else facts.num_pairs
            np.testing.assert_array_equal(array[:rows], before[:rows], name)
        else:
            assert array == before
    # And it goes on as any other.
    more = stream(50, seed=3)
    facts.advance(*more)
    other = facts_of(max_pairs, num_events)
    other.advance(*more)
    assert all(np.array_equal(a, b) for a, b in zip(facts.tensors().values(), other.tensors().values(), strict=True))


def test_facts_of_several_sets_are_undone_too():
    def made():
        facts = SetFacts(SETS, HALF_LIVES, 5000, 0, lambda nodes: np.where(nodes >= 20, 1, 0))
        facts.advance(*sets_stream())
        return facts

    facts, other = made(), made()
    facts.destinations_in(0)
    counts = [len(one.destination_order) for one in facts._by_node_set]
    dst, sets = np.array([22, 25, 3, 22, 70]), np.array([0, 1, 2, 0, 1])
    events = np.full(5, 60), dst, np.full(5, 9 * HOUR), sets
    asked = np.array([60]), np.array([9 * HOUR + 1]), np.arange(20, 80)[None], np.array([1])
    with facts.supposing(*events):
        found, ranks = facts.compute(*asked), facts.destinations_in(1).ranks_of(np.array([70]))
    other.advance(*events)
    np.testing.assert_array_equal(found, other.compute(*asked))
    assert ranks[0] >= 0 > facts.destinations_in(1).ranks_of(np.array([70]))[0]
    assert [len(one.destination_order) for one in facts._by_node_set] == counts
    for one, want in zip((facts.all, *facts.per_set), (made().all, *made().per_set), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one.tensors().values(), want.tensors().values(), strict=True))


def test_a_source_with_events_is_no_new_one():
    with pytest.raises(AssertionError), copy.copy(facts_of(5000)).supposing(np.array([3]), np.array([21]), np.array([9 * HOUR])):
        pass
