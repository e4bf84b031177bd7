"""The feature cache's logic, on CPU tensors, against a dictionary; on a GPU the same."""

import collections

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.gpu.cache import SHARE, FeatureCache
from streamd.telemetry import metrics
from tests.readings import reading


class Log:
    """Where rows come from: row of id i is [i, 2 i]; every id asked for is noted."""

    def __init__(self):
        self.asked = []

    def fetch(self, cache, ids):
        def source(at):
            missed = ids[at]
            self.asked += missed.tolist()
            assert len(set(missed.tolist())) == len(missed)
            return torch.stack([missed, 2 * missed], 1).float()

        return cache.fetch(ids, source)


class PlainCache:
    """The policies with a dictionary: id -> rank."""

    def __init__(self, capacity, policy):
        self.capacity, self.policy, self.slots, self.clock = capacity, policy, [None] * capacity, 0

    def fetch(self, ids):
        self.clock += 1
        counts = collections.Counter(sorted(ids))
        held = {slot[0]: slot for slot in self.slots if slot}
        for i, n in counts.items():
            if i in held and self.policy != "fifo":
                held[i][1] = self.clock if self.policy == "lru" else held[i][1] + n
        missed = [i for i, _ in counts.most_common() if i not in held]
        missed.sort(key=lambda i: -counts[i])
        order = sorted((s for s in range(self.capacity) if not (self.slots[s] and self.slots[s][0] in counts)),
                       key=lambda s: self.slots[s][1] if self.slots[s] else -1)
        for i, slot in zip(missed[: max(1, int(SHARE * self.capacity))], order, strict=False):
            self.slots[slot] = [i, counts[i] if self.policy == "lfu" else self.clock]
        return missed


@settings(max_examples=80, deadline=None)
@given(policy=st.sampled_from(["lru", "lfu", "fifo"]), capacity=st.integers(1, 30),
       batches=st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=12))
def test_what_is_held_and_asked_of_the_log_is_what_the_policy_says(policy, capacity, batches):
    cache, plain, log = FeatureCache(capacity, 2, policy, "cpu"), PlainCache(capacity, policy), Log()
    for batch in batches:
        log.asked.clear()
        rows = log.fetch(cache, torch.tensor(batch, dtype=torch.int64))
        assert rows.tolist() == [[i, 2 * i] for i in batch]
        assert sorted(log.asked) == sorted(plain.fetch(batch))
        assert cache.ids.tolist() == sorted(s[0] for s in plain.slots if s)


def test_an_update_replaces_at_most_a_share_of_the_cache(on):
    cache, log = FeatureCache(100, 2, "lru", on), Log()
    for start in range(0, 100, 20):
        log.fetch(cache, torch.arange(start, start + 20, device=on))
    assert cache.ids.tolist() == list(range(100))
    log.fetch(cache, torch.arange(1000, 1090, device=on))
    left = set(cache.ids.tolist())
    assert len(left & set(range(100))) == 80 and left & set(range(20)) == set()


def test_memory_does_not_grow_with_the_ids(on):
    cache, log = FeatureCache(50, 2, "lru", on), Log()

    def taken():
        return sum(t.untyped_storage().nbytes() for t in vars(cache).values() if isinstance(t, torch.Tensor))

    before = taken()
    for first in (0, 10**9, 2**62):
        ids = torch.arange(first, first + 60, device=on)
        assert log.fetch(cache, ids.flip(0))[:, 0].tolist() == ids.flip(0).float().tolist()
    assert taken() == before < 10_000
    log.asked.clear()
    log.fetch(cache, cache.ids)
    assert not log.asked, "ids of all sizes are found again"


def test_hits_and_misses_are_counted_and_nothing_asked_is_nothing_answered(on):
    cache, log = FeatureCache(10, 2, "lfu", on), Log()
    counts = [reading(metrics.gpu_cache_rows.labels(r)) for r in ("hit", "miss")]
    log.fetch(cache, torch.tensor([7, 7, 8], device=on))
    log.fetch(cache, torch.tensor([7, 9], device=on))
    hits, misses = (reading(metrics.gpu_cache_rows.labels(r)) - n for r, n in zip(("hit", "miss"), counts, strict=True))
    assert (hits, misses) == (1, 3)
    assert log.fetch(cache, torch.zeros(0, dtype=torch.int64, device=on)).shape == (0, 2)


def test_a_cache_without_room_is_refused():
    with pytest.raises(ValueError, match="at least 1 row"):
        FeatureCache(0, 2, "lru", "cpu")
