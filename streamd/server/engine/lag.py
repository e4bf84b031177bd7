"""Measures the time up to which answers include all records of Kafka, from ingest's report and the
view's position."""

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from streamd.eventlog.journal.journal import LogState
from streamd.roles import ENDS, FOLLOW, folder_of
from streamd.telemetry.heartbeat import leads_here, read_beat

LOOK_SECONDS = 0.2
"""Interval at which the report of ingest is read, which is written as often. Each read opens a
file."""
MAX_PENDING = 256
"""Maximum number of reports that are kept until the view has the records that ingest reported."""
ANSWERS_SECONDS = 10.0
"""Ingest asks the broker every five seconds. A broker that has not answered for twice as long is
unreachable, and the end offsets that ingest knows are as old as its last answer."""


Ends = dict[str, dict[str, int]]
"""Topic -> partition -> end offset, of the partitions with more to read."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A report of ingest. at: monotonic time at which it was read. known_at: wall time up to which
    ingest knew the contents of Kafka. ends: the end offsets of partitions with more to read."""

    at: float
    known_at: float
    ends: Ends

    def is_in(self, state: LogState) -> bool:
        """Whether a state of the log has all partitions up to the end offsets."""
        positions = state.progress.positions
        return all(
            int(number) in (parts := positions.get(topic, {})) and parts[int(number)].offset >= end
            for topic, ends in self.ends.items()
            for number, end in ends.items()
        )


class Completeness:
    """Finds the newest time up to which the view has all records of Kafka. Owner: the engine.

    A report of ingest has a time, and the end offsets of the partitions that had more records than
    were committed by then. All other records were committed before, so a view that read the log
    after the report has them. The reported ones are in the view once the log's positions reach the
    end offsets. until: that time as wall time in seconds; None while unknown, for example before
    the server has caught up once.
    """

    def __init__(self, data_dir: Path, follows: bool = False) -> None:
        """follows: whether this machine may follow another one's log; unless it leads, the report
        of the follower replaces that of ingest."""
        self._data_dir = data_dir
        self._follows = follows
        self._looked_at = -LOOK_SECONDS
        self._pending: deque[_Look] = deque()
        """Reports whose end offsets the view has not reached, oldest first."""
        self.until: float | None = None

    def look(self, now: float) -> None:
        """Read the report of ingest, at most every LOOK_SECONDS. now: monotonic seconds."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        if self._follows and not leads_here(self._data_dir):
            known_at, ends = self._of_follower()
        else:
            known_at, ends = self._of_ingest()
        if ends is None:
            # Without a report, for example while no broker answers, nothing new is known.
            return
        self._pending.append(_Look(now, known_at, ends))

        # Half of them is enough.
        if len(self._pending) > MAX_PENDING:
            self._pending = deque(list(self._pending)[::2])

    def _of_follower(self) -> tuple[float, Ends | None]:
        """Wall time at which the follower last asked Kafka, and the end offsets that the log had
        not reached then."""
        try:
            said = json.loads((folder_of(self._data_dir, FOLLOW) / ENDS).read_bytes())
        except (OSError, ValueError):
            return 0.0, None
        return float(said["time"]), said["behind"]

    def _of_ingest(self) -> tuple[float, Ends | None]:
        """Wall time up to which ingest knew the contents of Kafka, and the end offsets that the log
        had not reached then."""
        beat = read_beat(self._data_dir, "ingest")
        if beat is None or "behind" not in beat.detail:
            return 0.0, None
        away = float(beat.detail["broker_age_seconds"])
        # A broker that answers keeps the report current; otherwise the report is as old as the last
        # answer.
        age = beat.age_seconds + (away if away > ANSWERS_SECONDS else 0.0)
        return time.time() - age, beat.detail["behind"]

    def advance(self, state: LogState, looked_at: float) -> None:
        """Advance `until` by a state of the log that the view has completely.

        looked_at: monotonic time at which the log had no newer commit than that state.
        """
        while self._pending and self._pending[0].at <= looked_at and self._pending[0].is_in(state):
            known_at = self._pending.popleft().known_at
            self.until = known_at if self.until is None else max(self.until, known_at)
