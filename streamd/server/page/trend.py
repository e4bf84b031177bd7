"""Observes the heartbeats of trainer and ingest: the time without progress of training, and the
share of refused records over the last minutes."""

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
"""Period over which refused records are counted."""
MAX_WAITING = 100
"""Maximum number of waiting windows that are counted, since each needs a search in the log."""
APART_SECONDS = 5.0
"""Minimum interval between two samples that are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentRefusals:
    """The numbers of records that ingest read in the last ten minutes, and of their dead letters.
    error: the newest error of the reason that is most frequent since ingest started."""

    num_records: int
    num_dead: int
    error: str


class Trend:
    """Keeps samples of the heartbeats of trainer and ingest. Owner: the event loop's thread."""

    def __init__(
        self,
        log: Callable[[], LogReader | None],
        width_us: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """log: returns the log's reader, None before the log exists. width_us: width of a window in
        microseconds. monotonic: the clock, in seconds."""
        self._log = log
        self._width_us = width_us
        self._monotonic = monotonic
        self._at: tuple[Any, ...] = ()
        self._waiting_since: float | None = None
        self._samples: deque[tuple[float, int, int]] = deque()
        """Time, and the records and letters since ingest started, oldest first."""
        self.refusals: RecentRefusals | None = None

    @property
    def no_progress_seconds(self) -> float | None:
        """Seconds that a finished window has waited without any progress of the trainer; None if
        none waits."""
        since = self._waiting_since
        return None if since is None else self._monotonic() - since

    def num_waiting(self, train: Beat | None) -> int:
        """Number of finished windows that the trainer has not trained on, at most MAX_WAITING.
        train: the trainer's heartbeat, with the event id up to which it trained; None if it never
        ran."""
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

    def read_heartbeats(self, ingest: Beat | None, train: Beat | None) -> None:
        """Add the newest heartbeats."""
        now = self._monotonic()
        self._update_waiting(train, now)
        if ingest is not None and "records" in ingest.detail:
            self._count(ingest.detail, now)

    def _update_waiting(self, train: Beat | None, now: float) -> None:
        """Record the time since which a window waits without progress. Each change of the trainer's
        event id, state or share is progress."""
        if train is None or "edge" not in train.detail:
            return
        at = (train.detail["edge"], train.state, train.detail.get("share"))
        if not self._is_due(int(train.detail["edge"])):
            self._waiting_since = None
        elif self._waiting_since is None or at != self._at:
            self._waiting_since = now
        self._at = at

    def _is_due(self, edge: int) -> bool:
        """Whether the window that starts at an event id is over."""
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
        num_records, num_dead = int(detail["records"]), int(detail["dead_letters"])
        samples = self._samples
        if samples and num_records < samples[-1][1]:
            # Ingest restarted, and counts from 0 again.
            samples.clear()
        while samples and samples[0][0] < now - KEPT_SECONDS:
            samples.popleft()

        # If ingest started within the period, all that it counted is recent.
        young = float(detail["reading_seconds"]) < KEPT_SECONDS
        first = samples[0][1:] if samples else (num_records, num_dead)
        before = (0, 0) if young else first
        if not samples or now - samples[-1][0] >= APART_SECONDS:
            samples.append((now, num_records, num_dead))
        self.refusals = None
        if num_dead > before[1]:
            error = str(detail["refused_mostly"])
            self.refusals = RecentRefusals(
                num_records=num_records - before[0], num_dead=num_dead - before[1], error=error
            )
