"""The trend of learning and of refused records over the last minutes."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.telemetry.heartbeat import Beat
from streamd.windows import next_window

KEPT_SECONDS = 600.0
"""Time over which refused records are counted."""
MAX_WAITING = 100
"""Most windows that are counted as waiting: each costs a search of the log."""
APART_SECONDS = 5.0
"""Least time between two samples that are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentRefusals:
    """Records that ingest read in the last ten minutes. letters: dead letters made of them. error:
    the newest of the reason that is most frequent since ingest began."""

    records: int
    letters: int
    error: str


class Trend:
    """Follows heartbeats of trainer and ingest over time. Owner: the event loop's thread."""

    def __init__(
        self,
        log: Callable[[], LogReader | None],
        width_us: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """log: the log's reader. width_us: of windows, microseconds."""
        self._log = log
        self._width_us = width_us
        self._monotonic = monotonic
        self._at: tuple[Any, ...] = ()
        self._waiting_since: float | None = None
        self._samples: deque[tuple[float, int, int]] = deque()
        """Time, records and letters since ingest began, oldest first."""
        self.refusals: RecentRefusals | None = None

    @property
    def unlearned_seconds(self) -> float | None:
        """For how long a window has waited while the trainer got no further; None if none
        waits."""
        since = self._waiting_since
        return None if since is None else self._monotonic() - since

    def num_waiting(self, train: Beat | None) -> int:
        """Number of windows that are over and not learned, at most MAX_WAITING. train: None before
        the trainer's first heartbeat; its detail has the edge that it learned up to."""
        log = self._log()
        if log is None:
            return 0
        count = 0
        try:
            edge = max(int(train.detail.get("edge", 0)) if train else 0, log.first_edge)
            while count < MAX_WAITING and (window := next_window(log, edge, self._width_us)):
                edge, count = window.end_edge, count + 1
        except StreamdError:
            # A damaged log is reported by the roles that read it.
            return count
        return count

    def look(self, ingest: Beat | None, train: Beat | None) -> None:
        """Take in the newest heartbeats."""
        now = self._monotonic()
        self._look_at_learning(train, now)
        if ingest is not None and "records" in ingest.detail:
            self._count(ingest.detail, now)

    def _look_at_learning(self, train: Beat | None, now: float) -> None:
        """Note since when a window waits. Each part of the trainer's work is progress too."""
        if train is None or "edge" not in train.detail:
            return
        at = (train.detail["edge"], train.state, train.detail.get("share"))
        if not self._is_due(int(train.detail["edge"])):
            self._waiting_since = None
        elif self._waiting_since is None or at != self._at:
            self._waiting_since = now
        self._at = at

    def _is_due(self, edge: int) -> bool:
        """Whether the window that begins at an event id is over."""
        log = self._log()
        try:
            return (
                log is not None
                and next_window(log, max(edge, log.first_edge), self._width_us) is not None
            )
        except StreamdError:
            # A damaged log is reported by the roles that read it.
            return False

    def _count(self, detail: dict[str, Any], now: float) -> None:
        """Count the records and letters of the last ten minutes."""
        records, letters = int(detail["records"]), int(detail["dead_letters"])
        samples = self._samples
        if samples and records < samples[-1][1]:
            # Ingest was started again.
            samples.clear()
        while samples and samples[0][0] < now - KEPT_SECONDS:
            samples.popleft()

        # Nothing was read before ingest began.
        young = float(detail["reading_seconds"]) < KEPT_SECONDS
        first = samples[0][1:] if samples else (records, letters)
        before = (0, 0) if young else first
        if not samples or now - samples[-1][0] >= APART_SECONDS:
            samples.append((now, records, letters))
        self.refusals = None
        if letters > before[1]:
            error = str(detail["refused_mostly"])
            self.refusals = RecentRefusals(
                records=records - before[0], letters=letters - before[1], error=error
            )
