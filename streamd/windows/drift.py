"""Drift: a window that is ranked far worse than the windows before it, as when a stream changes."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from streamd.windows.history import WindowRecord

WINDOWS = 100
"""Newest windows that a window is compared with."""
FEWEST = 10
"""Windows before which there is nothing to compare with."""
RANK_VARIANCE = 0.2
"""Variance of one event's reciprocal rank, about the most that is seen: what chance alone does to
the MRR of a window of n events is this divided by n."""


class Drift:
    """Compares each window's MRR, of the version that served, with those of the windows before it.
    Owner: the trainer."""

    def __init__(self, records: Iterable[WindowRecord] = ()) -> None:
        """records: windows before, oldest first."""
        self._before: deque[tuple[float, int]] = deque(maxlen=WINDOWS)
        for record in records:
            self.surprise(record)

    def surprise(self, record: WindowRecord) -> float | None:
        """Standard deviations that a window's MRR lies below the mean of those before, weighted by
        their events; the next window is compared with this one as well.

        Returns: None where nothing of the window was scored, 0 where too few came before it.
        """
        live = record.scores.get("live")
        if live is None or not record.num_scored:
            return None
        mrr, before = live["mrr"], np.array(self._before)
        self._before.append((mrr, record.num_scored))
        if len(before) < FEWEST:
            return 0.0
        mean = np.average(before[:, 0], weights=before[:, 1])
        variance = np.average((before[:, 0] - mean) ** 2, weights=before[:, 1])
        return float((mean - mrr) / np.sqrt(variance + RANK_VARIANCE / record.num_scored))
