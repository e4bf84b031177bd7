"""The trainer's hold says what of the log its restart needs.

That is the log from its own event on, and the windows that champion and shadow were learned from.
"""

import time

from streamd.eventlog.upkeep.holds import Hold
from streamd.graph.live import LiveGraph
from streamd.graph.restart_point import RestartPoint
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.training.checkpoint import TrainerPosition

NAME = "train"
"""The role's name, and that of its folder in `roles/`."""


class RetentionHold:
    """Stores facts and writes the hold for the trainer. Owner: the trainer's thread."""

    def __init__(self, paths: Paths, versions: Registry, live: LiveGraph) -> None:
        self._versions = versions
        self._live = live
        self._restart = RestartPoint(paths.learned, paths.role, live)
        self.kept_at = 0.0
        """When `keep` was last called, by the monotonic clock."""

    @property
    def written(self) -> Hold:
        """The hold as it was written last."""
        return self._restart.written

    def resume(self, edge: int) -> None:
        """Load the facts last stored before event `edge`, where there are any."""
        self._restart.resume(edge)

    def compaction_request(self) -> int | None:
        """Id of the event before which compaction was asked for, None where it was not."""
        return self._restart.compaction_request()

    def keep(self, position: TrainerPosition) -> None:
        """Store facts if due, drop the versions that a compaction request makes stale, and write
        the events of the log that a restart needs. position: also of the facts."""
        self.kept_at = time.monotonic()
        if self._restart.is_due(position.event):
            self._restart.store(self._live.facts)
        if (compaction_request := self.compaction_request()) is not None:
            self._versions.drop_before(compaction_request)

        # The newest facts and the oldest events that a restart or a rollback reads.
        named = self._versions.named_windows()
        self._restart.hold(
            min([position.event, *(end for _, end in named)]),
            min([position.window_event, *(first for first, _ in named)]),
        )
