"""What of the log a restart of the trainer needs, beside its own place: the windows that versions
with a name were learned from."""

import time

from streamd.graph.live import LiveGraph
from streamd.graph.restart import RestartPoint
from streamd.registry import Registry
from streamd.settings import Settings

NAME = "train"


class RetentionHold:
    """Owner: the trainer."""

    def __init__(self, settings: Settings, versions: Registry, live: LiveGraph) -> None:
        self._versions = versions
        self._live = live
        self._restart = RestartPoint(settings.data_dir, NAME, live)
        self.done = 0.0
        """When `keep` was last called, by the monotonic clock."""

    def resume(self, edge: int) -> None:
        """Take over the facts last stored before `edge`, where there are any."""
        self._restart.resume(edge)

    def compaction_request(self) -> int | None:
        """The edge before which compaction was asked for."""
        return self._restart.compaction_request()

    def keep(self, edge: int, window_edge: int) -> None:
        """Store facts where it is time to, and say what of the log a restart needs. Facts are at
        `edge`."""
        self.done = time.monotonic()
        if self._restart.is_due(edge):
            self._restart.store(self._live.facts)
        if (compaction_request := self.compaction_request()) is not None:
            self._versions.drop_before(compaction_request)
        named = self._versions.named_windows()
        self._restart.hold(
            min([edge, *(end for _, end in named)]),
            min([window_edge, *(first for first, _ in named)]),
        )
