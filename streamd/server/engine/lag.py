"""Until when answers know all that was in Kafka, by what ingest says and what the view has."""

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from streamd.eventlog.journal.journal import LogState
from streamd.roles import ENDS, FOLLOW, folder_of
from streamd.telemetry.heartbeat import leads_here, read_beat

LOOK_SECONDS = 0.2
"""Time between two looks at ingest's heartbeat, which is written as often. Each reads a file."""
MAX_PENDING = 256
"""Most looks that are kept while the view does not have what ingest knew of then."""
ANSWERS_SECONDS = 10.0
"""Ingest asks the broker every five seconds: a broker that has not answered for longer than twice
that is away, and what ingest takes for a partition's end is as old as its last answer."""


Ends = dict[str, dict[str, int]]
"""Topic -> partition -> the end, of partitions with more to read."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What ingest said. at: monotonic time of the look. known_at: wall time up to which it knew
    what there is in Kafka. ends: topic -> partition -> the end, of partitions with more to read."""

    at: float
    known_at: float
    ends: Ends

    def is_in(self, state: LogState) -> bool:
        """Whether a state of the log has the partitions up to the ends."""
        positions = state.progress.positions
        return all(
            int(number) in (parts := positions.get(topic, {})) and parts[int(number)].offset >= end
            for topic, ends in self.ends.items()
            for number, end in ends.items()
        )


class Completeness:
    """Finds the newest moment of which the view has all that was in Kafka then. Owner: the engine.

    Ingest's heartbeat says at what time which partitions had more to read than was committed. The
    rest was committed before, so a view that looked at the log later has it; what was to be read is
    in once the log's positions have passed the ends. until: that moment as wall time, seconds; None
    until one is known, as before the server has caught up once.
    """

    def __init__(self, data_dir: Path, follows: bool = False) -> None:
        """follows: where no ingest reads Kafka here, or not now, the follower says what is in
        it."""
        self._data_dir = data_dir
        self._follows = follows
        self._looked_at = -LOOK_SECONDS
        self._pending: deque[_Look] = deque()
        """Looks whose ends the view has not passed, oldest first."""
        self.until: float | None = None

    def look(self, now: float) -> None:
        """Look at ingest's heartbeat, LOOK_SECONDS after the last look. now: monotonic seconds."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        if self._follows and not leads_here(self._data_dir):
            known_at, ends = self._of_follower()
        else:
            known_at, ends = self._of_ingest()
        if ends is None:
            # Nothing is read now, as while no broker answers: nothing new is known.
            return
        self._pending.append(_Look(now, known_at, ends))

        # Of many, every second one is enough.
        if len(self._pending) > MAX_PENDING:
            self._pending = deque(list(self._pending)[::2])

    def _of_follower(self) -> tuple[float, Ends | None]:
        """When the follower last asked Kafka, and what the log lacked then."""
        try:
            said = json.loads((folder_of(self._data_dir, FOLLOW) / ENDS).read_bytes())
        except (OSError, ValueError):
            return 0.0, None
        return float(said["time"]), said["behind"]

    def _of_ingest(self) -> tuple[float, Ends | None]:
        """Until when ingest knows what is in Kafka, and what the log lacked then."""
        beat = read_beat(self._data_dir, "ingest")
        if beat is None or "behind" not in beat.detail:
            return 0.0, None
        away = float(beat.detail["broker_age_seconds"])
        age = beat.age_seconds + (away if away > ANSWERS_SECONDS else 0.0)
        return time.time() - age, beat.detail["behind"]

    def advance(self, state: LogState, looked_at: float) -> None:
        """Take a state of the log that the view has whole.

        looked_at: monotonic time at which nothing newer than the state was committed.
        """
        while self._pending and self._pending[0].at <= looked_at and self._pending[0].is_in(state):
            known_at = self._pending.popleft().known_at
            self.until = known_at if self.until is None else max(self.until, known_at)
