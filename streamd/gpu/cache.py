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
        self._slot = torch.zeros(0, dtype=torch.int32, device=device)
        """By id: its slot + 1, 0 for none."""
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

        # Each id once, and where each id of the fetch finds its row.
        wanted, place, count = torch.unique(ids, return_inverse=True, return_counts=True)
        asked_at = torch.empty_like(wanted).scatter_(
            0, place, torch.arange(len(ids), device=ids.device)
        )
        self._grow(int(wanted[-1]) + 1)

        # Rows that are held.
        slot = self._slot[wanted].long() - 1
        hit = slot >= 0
        rows = torch.empty(len(wanted), self._rows.shape[1], device=self._rows.device)
        rows[hit] = self._rows[slot[hit]]

        # Rows that are not.
        missed = wanted[~hit]
        metrics.gpu_cache_rows.labels("hit").inc(len(wanted) - len(missed))
        metrics.gpu_cache_rows.labels("miss").inc(len(missed))

        # What rows make room by: when they were last asked for, or how often.
        if self.policy == "lru":
            self._rank[slot[hit]] = self._clock
        elif self.policy == "lfu":
            self._rank[slot[hit]] += count[hit]
        if len(missed):
            # Fetch what was missed, each id once, and keep some of it.
            rows[~hit] = source(asked_at[~hit])
            self._keep(missed, rows[~hit], count[~hit], slot[hit])
        return rows[place]

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
        rank[used] = torch.iinfo(torch.int64).max
        slots = torch.sort(rank, stable=True).indices[:limit]

        # The ids that lose their slots are forgotten.
        old = self._held[slots]
        self._slot[old[old >= 0]] = 0
        self._rows[slots], self._held[slots] = rows[chosen], ids[chosen]
        self._slot[ids[chosen]] = (slots + 1).int()
        self._rank[slots] = count[chosen] if self.policy == "lfu" else self._clock

    def _grow(self, size: int) -> None:
        if size > len(self._slot):
            grown = torch.zeros(
                max(size, 2 * len(self._slot), 1024), dtype=torch.int32, device=self._slot.device
            )
            grown[: len(self._slot)] = self._slot
            self._slot = grown
