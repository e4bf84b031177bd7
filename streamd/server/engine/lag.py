"""Measures the time up to which answers include all records of Kafka, from the reports of ingest
and the position of the server's graph in the log."""

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from streamd.eventlog.journal.journal import LogState
from streamd.roles import ENDS, FOLLOW, folder_of
from streamd.telemetry.heartbeat import leads_here, read_beat

REPORT_SECONDS = 0.2
"""Interval at which the server reads the report of ingest; ingest writes it as often. Each read
opens a file."""
MAX_PENDING = 256
"""Maximum number of reports in memory."""
BROKER_SECONDS = 10.0
"""Twice the interval at which ingest asks the broker for end offsets. A broker that has not
answered for longer is unreachable, and the known end offsets are as old as its last answer."""


EndOffsets = dict[str, dict[str, int]]
"""Topic -> partition -> end offset, of the partitions with more to read."""


@dataclass(frozen=True, slots=True)
class _Report:
    """A report of ingest.

    read_at: monotonic seconds at which it was read. known_at: wall time up to which ingest knew the
    end offsets of Kafka. end_offsets: of the partitions with records that were not committed.
    """

    read_at: float
    known_at: float
    end_offsets: EndOffsets

    def is_in(self, state: LogState) -> bool:
        """Whether a state of the log has all partitions up to the end offsets."""
        positions = state.progress.positions
        return all(
            int(number) in (parts := positions.get(topic, {})) and parts[int(number)].offset >= end
            for topic, end_offsets in self.end_offsets.items()
            for number, end in end_offsets.items()
        )


class Completeness:
    """Finds the newest time up to which the graph has all records of Kafka. Owner: the engine.

    A report of ingest has a time, and the end offsets of the partitions with records that were not
    committed then. A graph that read the log after the report has all other records. It has these
    too once the log's positions reach the end offsets.

    until: that time, wall seconds; None while unknown, such as before the server has caught up.
    """

    def __init__(self, data_dir: Path, follows: bool = False) -> None:
        """follows: whether this machine may be a follower: while it does not lead, the follower
        writes the report instead of ingest."""
        self._data_dir = data_dir
        self._follows = follows
        self._read_at = -REPORT_SECONDS
        self._pending: deque[_Report] = deque()
        """Reports with end offsets that the graph has not reached, oldest first."""
        self.until: float | None = None

    def read_report(self, now: float) -> None:
        """Read the report of ingest, at most every REPORT_SECONDS. now: monotonic seconds."""
        if now - self._read_at < REPORT_SECONDS:
            return
        self._read_at = now
        if self._follows and not leads_here(self._data_dir):
            known_at, end_offsets = self._of_follower()
        else:
            known_at, end_offsets = self._of_ingest()
        if end_offsets is None:
            # There is no report yet, or no broker answers.
            return
        self._pending.append(_Report(now, known_at, end_offsets))

        # With too many reports, every other one gives a coarser time.
        if len(self._pending) > MAX_PENDING:
            self._pending = deque(list(self._pending)[::2])

    def _of_follower(self) -> tuple[float, EndOffsets | None]:
        """Wall time at which the follower last asked Kafka, and the end offsets that the log had
        not reached then; None without a report."""
        try:
            report = json.loads((folder_of(self._data_dir, FOLLOW) / ENDS).read_bytes())
        except (OSError, ValueError):
            return 0.0, None
        return float(report["time"]), report["behind"]

    def _of_ingest(self) -> tuple[float, EndOffsets | None]:
        """Wall time up to which ingest knew the end offsets of Kafka, and those that the log had
        not reached then; None without a report."""
        beat = read_beat(self._data_dir, "ingest")
        if beat is None or "behind" not in beat.detail:
            return 0.0, None
        away = float(beat.detail["broker_age_seconds"])
        # While the broker answers, the report is as new as the heartbeat; otherwise it is as old as
        # the broker's last answer.
        age = beat.age_seconds + (away if away > BROKER_SECONDS else 0.0)
        return time.time() - age, beat.detail["behind"]

    def advance(self, state: LogState, looked_at: float) -> None:
        """Advance `until` to the newest report with end offsets that the log has reached.

        state: of the log; the graph has all of it. looked_at: monotonic seconds at which the log
        had no newer commit.
        """
        while (
            self._pending
            and self._pending[0].read_at <= looked_at
            and self._pending[0].is_in(state)
        ):
            known_at = self._pending.popleft().known_at
            self.until = known_at if self.until is None else max(self.until, known_at)
