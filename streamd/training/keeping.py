"""What of the log a restart of the trainer needs: facts stored now and then, and the hold that says
from where on."""

import time

from streamd.graph.live import LiveGraph, save_facts
from streamd.registry import Registry
from streamd.segments.holds import Hold, asked_to_compact, begin_hold, write_hold
from streamd.settings import Settings

ROLE, FACTS = "train", "train/facts"


class Keeping:
    """Owner: the trainer."""

    def __init__(self, settings: Settings, versions: Registry, live: LiveGraph) -> None:
        self._data_dir, self._versions, self._live = settings.data_dir, versions, live
        self._facts_edge = live.edge
        self._hold = Hold(-1, -1)
        self.done = 0.0
        """When `keep` was last called, by the monotonic clock."""

    def resume(self, edge: int) -> None:
        """Take over the facts last stored before `edge`, where there are any."""
        begin_hold(self._data_dir, ROLE, self._live.log.first_edge)
        self._facts_edge = self._live.restore_facts(self._data_dir / FACTS, edge)

    def wish(self) -> int | None:
        """The edge before which compaction was asked for."""
        return asked_to_compact(self._data_dir)

    def keep(self, edge: int, window_edge: int) -> None:
        """Say what of the log a restart needs; once a segment is behind, or compaction asks, the
        facts are stored first."""
        self.done = time.monotonic()
        wish = self.wish()
        if (self._facts_edge < self._live.log.sealed_until(edge)
                or (wish is not None and self._facts_edge < min(wish, edge))):
            save_facts(self._live.facts, self._data_dir / FACTS)
            self._facts_edge = edge
        if wish is not None:
            self._versions.drop_before(wish)
        named = self._versions.named_windows()
        hold = Hold(min([self._facts_edge, edge, *(end for _, end in named)]),
                    min([window_edge, *(first for first, _ in named)]))
        if hold.edge != self._hold.edge or (wish is not None and hold != self._hold):
            write_hold(self._data_dir, ROLE, hold)
            self._hold = hold
