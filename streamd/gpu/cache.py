"""A cache of feature rows on the GPU, by id (GNNFlow, section 4.3): a row that is asked for again
is not sent again.

All of it is vectorised over the ids of a fetch, and runs on tensors of any device.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from streamd.telemetry import metrics

Policy = Literal["lru", "lfu", "fifo"]
SHARE = 0.2
"""Most of the capacity that one update replaces (the paper's lambda): a batch of rows that nobody
asks for again does not empty the cache."""

Source = Callable[[Tensor], Tensor]
"""Places int64[n] among the ids of a fetch, one for each id missed, on the device -> rows
float32[n, dim], on the device."""


class FeatureCache:
    """A cache of `capacity` rows of `dim` float32 on a device. The row of an id never changes.

    policy: which rows make room: lru, those not asked for the longest; lfu, those asked for least
    often; fifo, those held the longest. Contents are kept from window to window and from epoch to
    epoch. The paper brings an epoch's first contents back for the next one; here that lowers the
    share of hits (docs/benchmarks.md), so it is not done. Owner: one thread.
    """

    def __init__(self, capacity: int, dim: int, policy: Policy, device: str | torch.device) -> None:
        if capacity < 1:
            raise ValueError(f"a cache of {capacity} rows holds nothing")
        self.capacity = capacity
        self.policy = policy
        self._rows = torch.zeros(capacity, dim, device=device)
        self._held = torch.full((capacity,), -1, dtype=torch.int64, device=device)
        self._rank = torch.zeros(capacity, dtype=torch.int64, device=device)
        """By slot: when it was last asked for, how often, or when it was filled; the lowest make
        room first."""
        # The ids held, ascending, and the slots they are in: memory does not grow with the ids.
        self._sorted, self._slot = self._held.sort()
        self._clock = 0

    @property
    def ids(self) -> Tensor:
        """Ids held, int64, ascending."""
        return self._held[self._held >= 0].sort().values

    def fetch(self, ids: Tensor, source: Source) -> Tensor:
        """Return the rows of ids int64[n] >= 0 as float32[n, dim]. Rows that are not held are asked
        of `source`, each once, and some of them stay."""
        if not len(ids):
            return self._rows[:0]
        self._clock += 1

        # Each id once, how often and where it is asked for. Nothing is written at places in all
        # this: where torch must be deterministic, it would sort the places first.
        ascending, order = ids.sort()
        wanted, count = torch.unique_consecutive(ascending, return_counts=True)
        asked_at = order[count.cumsum(0) - count]

        # Those that are held come first, then those that are not.
        near = torch.searchsorted(self._sorted, wanted).clamp_max(self.capacity - 1)
        hit = self._sorted[near] == wanted
        by_hit = torch.sort((~hit).byte(), stable=True).indices
        num_hits = int(hit.sum())
        held, missed = by_hit[:num_hits], by_hit[num_hits:]
        used = self._slot[near[held]]
        metrics.gpu_cache_rows.labels("hit").inc(len(held))
        metrics.gpu_cache_rows.labels("miss").inc(len(missed))

        # What rows make room by: when they were last asked for, or how often.
        if self.policy == "lru":
            self._rank.index_fill_(0, used, self._clock)
        elif self.policy == "lfu":
            self._rank.index_add_(0, used, count[held])

        # Fetch what was missed, each id once, and keep some of it.
        rows = self._rows[used]
        if len(missed):
            fetched = source(asked_at[missed])
            rows = torch.cat([rows, fetched])
            self._keep(wanted[missed], fetched, count[missed], used)
        return rows[by_hit.argsort()[torch.searchsorted(wanted, ids)]]

    def _keep(self, ids: Tensor, rows: Tensor, count: Tensor, used: Tensor) -> None:
        """Keep some of the missed rows: at most SHARE of the capacity, those asked for most often
        first, never in the place of a row that was just used."""
        limit = min(len(ids), max(1, int(SHARE * self.capacity)), self.capacity - len(used))
        if limit < 1:
            return

        # Which of the missed rows stay.
        chosen = torch.sort(count, descending=True, stable=True).indices[:limit]

        # Which slots they take: free ones first, then those of the lowest rank.
        rank = torch.where(self._held < 0, -1, self._rank)
        rank.index_fill_(0, used, torch.iinfo(torch.int64).max)
        slots = torch.sort(rank, stable=True).indices[:limit]

        # The ids that lose their slots are forgotten.
        self._rows.index_copy_(0, slots, rows[chosen])
        self._held.index_copy_(0, slots, ids[chosen])
        if self.policy == "lfu":
            self._rank.index_copy_(0, slots, count[chosen])
        else:
            self._rank.index_fill_(0, slots, self._clock)
        self._sorted, self._slot = self._held.sort()
