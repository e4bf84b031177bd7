"""The hold for the newest checkpoint in the store: this machine retains the events that a trainer
needs to resume from it."""

import time
from pathlib import Path

from streamd.eventlog.upkeep.holds import RENEW_SECONDS, Hold, write_hold
from streamd.replica.models.state import ModelsState
from streamd.roles import HANDOVER


class HandoverHold:
    """Writes and renews `roles/handover/hold`, a lease: the leader retains the events that it
    names, and so does the next leader. Owner: one thread of the train process."""

    def __init__(self, log_dir: Path) -> None:
        """log_dir: data directory of the log."""
        self._log_dir = log_dir
        self._written: Hold | None = None
        self._written_at = 0.0

    def keep(self, state: ModelsState) -> None:
        """Hold the events that the topic's newest checkpoint needs, if there is one. Raises:
        OSError."""
        if not state.checkpoints:
            return
        newest = state.checkpoints[-1]
        hold = Hold(newest.held, newest.purged)
        now = time.monotonic()
        if hold != self._written or now - self._written_at >= RENEW_SECONDS:
            write_hold(self._log_dir, HANDOVER, hold)
            self._written, self._written_at = hold, now
