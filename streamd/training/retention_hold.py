"""The trainer's hold: it makes the log keep the events that a restart of the trainer reads.

These are the events from the trainer's position on, and the windows that produced the champion and
the shadow.
"""

import time

from streamd.eventlog.upkeep.holds import Hold
from streamd.graph.live import LiveGraph
from streamd.graph.restart_point import RestartPoint
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.training.checkpoint import TrainerPosition

NAME = "train"
"""The role's name, and the name of its folder in `roles/`."""


class RetentionHold:
    """Stores facts and writes the hold for the trainer. Owner: the trainer's thread."""

    def __init__(self, paths: Paths, versions: Registry, live: LiveGraph) -> None:
        self._versions = versions
        self._live = live
        self._restart = RestartPoint(paths.learned, paths.role, live)
        self.written_at = 0.0
        """Time of the last call of `write`, seconds of the monotonic clock."""

    @property
    def written(self) -> Hold:
        """The hold that was written last."""
        return self._restart.written

    def resume(self, edge: int) -> None:
        """Load the newest facts stored at or before event `edge`, if there are any."""
        self._restart.resume(edge)

    def compaction_request(self) -> int | None:
        """Id of the event before which compaction was requested; None without a request."""
        return self._restart.compaction_request()

    def write(self, position: TrainerPosition) -> None:
        """Write a hold for a position, which the facts have reached too.

        1. Store the facts if due: the hold advances no further than durable facts.
        2. Drop the versions that a compaction request makes stale.
        3. Write the hold. Before step 2, it could report data as purged that a stale version still
           has.
        """
        self.written_at = time.monotonic()
        # 1. Facts.
        if self._restart.is_due(position.event):
            self._restart.store(self._live.facts)
        # 2. Versions that may hold deleted data.
        if (compaction_request := self.compaction_request()) is not None:
            self._versions.drop_before(compaction_request)

        # 3. The oldest events that a restart or a rollback reads.
        named = self._versions.named_windows()
        self._restart.hold(
            min([position.event, *(end for _, end in named)]),
            min([position.window_event, *(first for first, _ in named)]),
        )
