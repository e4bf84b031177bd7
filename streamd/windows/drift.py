"""Drift: a window ranks much worse than the windows before it, for example because the stream has
changed."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from streamd.windows.history import WindowRecord

WINDOWS = 100
"""Number of the newest windows with which a window is compared."""
FEWEST = 10
"""Fewest windows for a comparison."""
RANK_VARIANCE = 0.2
"""Variance of one event's reciprocal rank, about the largest observed one. Divided by the number of
a window's events, it is the variance of the window's MRR by chance."""


class Drift:
    """Compares each window's MRR, of the version that served, with those of the windows before it.

    Owner: the trainer.
    """

    def __init__(self, records: Iterable[WindowRecord] = ()) -> None:
        """records: earlier windows, oldest first."""
        self._before: deque[tuple[float, int]] = deque(maxlen=WINDOWS)
        for record in records:
            self.surprise(record)

    def surprise(self, record: WindowRecord) -> float | None:
        """By how many standard deviations a window's MRR is below the event-weighted mean of the
        windows before it. The window then counts as one of them for the next call.

        Returns: None if the window has no scored event, 0 if fewer than FEWEST windows came before
        it.
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
