import numpy as np
import pytest

from streamd.graph import NUM_FACTS, PairFacts
from streamd.graph.reference import ReferenceFacts

HALF_LIVES = (1, 5, 20, 60, 200)


def tied_stream(seed, n=250, nodes=12):
    rng = np.random.default_rng(seed)
    return (rng.integers(0, nodes, n), rng.integers(0, nodes, n), np.sort(rng.integers(0, n // 2, n)) * 1_000_000,
            rng.integers(-1, nodes + 2, (n, 5)))


def by_reference(src, dst, time, candidates, max_pairs):
    """Rows of every event from strictly before it, plainly."""
    facts = ReferenceFacts(HALF_LIVES, max_pairs)
    out = np.zeros((*candidates.shape, NUM_FACTS))
    for t in np.unique(time):
        now = np.flatnonzero(time == t)
        for i in now:
            out[i] = [facts.row(int(src[i]), int(c), int(t)) for c in candidates[i]]
        for i in now:
            facts.update(int(src[i]), int(dst[i]), int(t))
    return out, facts


@pytest.mark.parametrize("max_pairs", [1000, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_facts_equal_the_reference_with_ties_self_loops_and_forgotten_pairs(seed, max_pairs):
    src, dst, time, candidates = tied_stream(seed)
    want, reference = by_reference(src, dst, time, candidates, max_pairs)
    facts = PairFacts(HALF_LIVES, max_pairs)
    got = facts.advance_scoring(src, dst, time, np.arange(len(src)), candidates)
    np.testing.assert_allclose(got, want, atol=2e-4)
    assert facts.num_pairs == len(reference.meetings) <= max_pairs
    later = int(time[-1]) + 7_000_000
    asked = np.array([[0, 5, 11, -1, 400]])
    np.testing.assert_allclose(facts.rows(np.array([3]), np.array([later]), asked)[0],
                               [reference.row(3, int(c), later) for c in asked[0]], atol=2e-4)


def test_the_state_does_not_depend_on_how_the_log_is_cut():
    src, dst, time, _ = tied_stream(2, 600, 40)
    whole, cut = PairFacts(HALF_LIVES, 100), PairFacts(HALF_LIVES, 100)
    whole.advance(src, dst, time)
    at = 0
    for step in [1, 7, 200, 600]:
        cut.advance(src[at:at + step], dst[at:at + step], time[at:at + step])
        at += step
    sources, when = np.arange(40), np.full(40, time[-1] + 1)
    everyone = np.tile(np.arange(40), (40, 1))
    np.testing.assert_array_equal(whole.rows(sources, when, everyone), cut.rows(sources, when, everyone))


def test_asking_changes_nothing_and_a_copy_stands_still():
    src, dst, time, candidates = tied_stream(3)
    facts = PairFacts(HALF_LIVES, 1000)
    facts.advance(src[:100], dst[:100], time[:100])
    twin = facts.copy()
    before = twin.rows(src, time, candidates)
    facts.advance(src[100:], dst[100:], time[100:])
    np.testing.assert_array_equal(before, twin.rows(src, time, candidates))
    assert not np.array_equal(before, facts.rows(src, time, candidates))


def test_what_is_known_of_nodes():
    facts = PairFacts(HALF_LIVES, 10)
    facts.advance(np.array([0, 0, 2]), np.array([1, 4, 4]), np.array([1, 2, 3]))
    assert facts.destinations().tolist() == [1, 4]
    assert facts.partners(0).tolist() == [1, 4] and facts.partners(99).tolist() == []
    assert facts.is_known(np.array([-1, 0, 3, 4, 10**6])).tolist() == [False, True, False, True, False]
