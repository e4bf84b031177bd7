"""A cache of feature rows on the GPU, by id (GNNFlow, section 4.3), so that a cached row is not
sent again. All operations are vectorised over the ids of a fetch, on tensors of any device."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from streamd.telemetry import metrics

Policy = Literal["lru", "lfu", "fifo"]
SHARE = 0.2
"""Maximum share of the capacity that one update replaces (lambda in the paper), so that a batch of
rows that are never fetched again does not empty the cache."""

Source = Callable[[Tensor], Tensor]
"""Reads missed rows: int64[n], index of each missed id among the ids of a fetch -> float32[n, dim];
both on the device."""


class FeatureCache:
    """A cache of feature rows on a device; the row of an id never changes. Owner: one thread.

    The contents persist over windows and epochs. The paper restores the first contents of an epoch
    for the next one; here that would lower the hit rate (docs/benchmarks.md).

    Args:
        capacity: int, number of rows, at least 1.
        dim: int, width of a row, float32.
        policy: str, of eviction: "lru", the least recently fetched row; "lfu", the least often
            fetched row; "fifo", the oldest row.
        device: str or torch.device.

    Raises:
        ValueError: the capacity is below 1.
    """

    def __init__(self, capacity: int, dim: int, policy: Policy, device: str | torch.device) -> None:
        if capacity < 1:
            raise ValueError(f"a cache needs a capacity of at least 1 row, not {capacity}")
        self.capacity = capacity
        self.policy = policy
        self._rows = torch.zeros(capacity, dim, device=device)
        self._held = torch.full((capacity,), -1, dtype=torch.int64, device=device)
        self._rank = torch.zeros(capacity, dtype=torch.int64, device=device)
        """Rank of each slot: time of the last fetch, number of fetches, or time of insertion. The
        lowest is evicted first."""
        # The cached ids, ascending, and their slots. A table by id would grow with the range of
        # ids.
        self._sorted, self._slot = self._held.sort()
        self._clock = 0

    @property
    def ids(self) -> Tensor:
        """Cached ids, int64, ascending."""
        return self._held[self._held >= 0].sort().values

    def fetch(self, ids: Tensor, source: Source) -> Tensor:
        """Return the rows of ids int64[n] >= 0 as float32[n, dim]. Missed rows are read from
        `source`, each once, and some of them are cached."""
        if not len(ids):
            return self._rows[:0]
        self._clock += 1

        # Unique ids, with their count and one index each. This avoids index writes, for which torch
        # would sort the indices with deterministic algorithms.
        ascending, order = ids.sort()
        wanted, count = torch.unique_consecutive(ascending, return_counts=True)
        asked_at = order[count.cumsum(0) - count]

        # Hits first, then misses.
        near = torch.searchsorted(self._sorted, wanted).clamp_max(self.capacity - 1)
        hit = self._sorted[near] == wanted
        by_hit = torch.sort((~hit).byte(), stable=True).indices
        num_hits = int(hit.sum())
        held, missed = by_hit[:num_hits], by_hit[num_hits:]
        used = self._slot[near[held]]
        metrics.gpu_cache_rows.labels("hit").inc(len(held))
        metrics.gpu_cache_rows.labels("miss").inc(len(missed))

        # Update the eviction ranks: time or number of fetches.
        if self.policy == "lru":
            self._rank.index_fill_(0, used, self._clock)
        elif self.policy == "lfu":
            self._rank.index_add_(0, used, count[held])

        # Fetch each missed id once, and cache some.
        rows = self._rows[used]
        if len(missed):
            fetched = source(asked_at[missed])
            rows = torch.cat([rows, fetched])
            self._keep(wanted[missed], fetched, count[missed], used)
        return rows[by_hit.argsort()[torch.searchsorted(wanted, ids)]]

    def _keep(self, ids: Tensor, rows: Tensor, count: Tensor, used: Tensor) -> None:
        """Cache some of the missed rows: at most SHARE of the capacity, the most often requested
        first. A row that this fetch used is not replaced."""
        limit = min(len(ids), max(1, int(SHARE * self.capacity)), self.capacity - len(used))
        if limit < 1:
            return

        # The missed rows to cache.
        chosen = torch.sort(count, descending=True, stable=True).indices[:limit]

        # Their slots: free ones first, then those of the lowest rank.
        rank = torch.where(self._held < 0, -1, self._rank)
        rank.index_fill_(0, used, torch.iinfo(torch.int64).max)
        slots = torch.sort(rank, stable=True).indices[:limit]

        # Replace the rows and ids of these slots.
        self._rows.index_copy_(0, slots, rows[chosen])
        self._held.index_copy_(0, slots, ids[chosen])
        if self.policy == "lfu":
            self._rank.index_copy_(0, slots, count[chosen])
        else:
            self._rank.index_fill_(0, slots, self._clock)
        self._sorted, self._slot = self._held.sort()
