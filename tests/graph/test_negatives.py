import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.graph import PairFacts
from streamd.graph.negatives import Pool
from streamd.graph.ranking import is_candidate


def hash_of(event, j, seed):
    """The protocol's hash of an event's j-th negative, in Python integers."""
    two, g = 2**64, 0x9E3779B97F4A7C15

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % two
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % two
        return x ^ (x >> 31)

    return mix((mix((seed + g) % two) + (100 * event + j + 1) * g) % two)


def plain_negatives(pool, event, dst, seed, count):
    """The protocol's words."""
    others = [node for node in pool if node != dst]
    if len(others) <= count:
        order = sorted(range(len(others)), key=lambda j: hash_of(event, j, seed))
        return [others[i] for i in order] + [dst] * (count - len(others))
    return [others[hash_of(event, j, seed) % len(others)] for j in range(count)]


def random_window(rng):
    """Facts after some events, and the events of a window behind them, with ties and destinations that it brings."""
    facts, nodes = PairFacts((1, 2, 3, 4, 5), 1000), 30
    before, window = int(rng.integers(0, 25)), int(rng.integers(1, 40))
    dst = rng.permutation(np.concatenate([np.arange(nodes), rng.integers(0, nodes, before + window)]))[: before + window]
    time = np.sort(rng.integers(0, before + window, before + window)) * 10
    if before and before < len(time):
        time[before:] += 1  # a window begins behind the events before it
    src = rng.integers(0, nodes, before + window)
    facts.advance(src[:before], dst[:before], time[:before])
    return facts, src, dst, time, before


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_negatives_are_the_protocols_over_the_destinations_known_before_each_event(seed):
    rng = np.random.default_rng(seed)
    facts, src, dst, time, before = random_window(rng)
    deleted = rng.choice(30, int(rng.integers(0, 4)), replace=False)
    pool = Pool.of(facts, dst[before:], time[before:], deleted)
    destination_order = [d for d in dict.fromkeys(dst.tolist()) if d not in deleted]
    first = {d: int(time[np.flatnonzero(dst == d)[0]]) for d in destination_order}
    known_E = pool.known_before(time[before:])
    facts.advance(src[before:], dst[before:], time[before:])  # the facts move on while a window is recorded
    asked = np.flatnonzero((pool.num_others(dst[before:], known_E) > 0) & ~np.isin(dst[before:], deleted))
    event, true = 10**9 + before + asked, dst[before:][asked]
    got = pool.draw(event, true, known_E[asked], 100, 3)
    learned = pool.draw(event, true, np.full(len(asked), pool.size), 10, 1)
    candidates = np.concatenate([true[:, None], got], 1)
    for i, at in enumerate(asked.tolist()):
        now = int(time[before + at])
        allowed = [d for d in destination_order if first[d] < now]
        others = set(allowed) - {int(true[i])}
        assert got[i].tolist() == plain_negatives(allowed, int(event[i]), int(true[i]), 3, 100)
        assert sorted(got[i, is_candidate(candidates[i: i + 1])[0, 1:]].tolist()) == sorted(others), "each once"
        assert learned[i].tolist() == plain_negatives(destination_order, int(event[i]), int(true[i]), 1, 10)
        assert bool(pool.holds(true[i: i + 1], known_E[asked][i: i + 1])[0]) == (true[i] in allowed)
    for at in set(range(len(time) - before)) - set(asked.tolist()):
        d, now = int(dst[before + at]), int(time[before + at])
        assert d in deleted or not [x for x in destination_order if first[x] < now and x != d], "all that can be asked is asked"


def test_the_first_negative_is_any_of_few_others_equally_often():
    # AP and AUC compare the true destination with the first negative alone.
    facts = PairFacts((1, 2, 3, 4, 5), 1000)
    nodes = np.arange(5)
    facts.advance(nodes + 10, nodes, nodes)
    pool = Pool.of(facts, nodes[:0], nodes[:0], nodes[:0])
    event = np.arange(4000)
    drawn = pool.draw(event, np.full(4000, 2), np.full(4000, 5), 100, 0)
    times = np.bincount(drawn[:, 0], minlength=5)
    assert times[2] == 0 and (abs(times[[0, 1, 3, 4]] - 1000) < 150).all(), times
    assert (np.sort(drawn[:, :4], 1) == [0, 1, 3, 4]).all() and (drawn[:, 4:] == 2).all()
