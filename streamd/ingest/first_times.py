"""Holds the first commit of a log if all its times look as if they were in another unit.

A log only grows forward in time, so wrong first times cannot be corrected later: the log would have
to be built again.
"""

import structlog

from streamd.decode.decoder import Decoder
from streamd.ingest.event_log import Log
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
ACCEPT_SETTING = "ingest.accept_first_times"
"""The setting that accepts such times unchanged."""


def has_no_times(log: Log) -> bool:
    """Whether no event with a time is in the log yet."""
    return log.newest_us is None and not log.watermark


class FirstTimes:
    """Decides whether the log's first commit is held. Owner: the ingest loop.

    A held commit stays held until the role restarts.
    """

    def __init__(self, log: Log, decoder: Decoder, beat: Heartbeat, accept: bool) -> None:
        """accept: the setting `ingest.accept_first_times`: whether times in any unit are
        accepted."""
        self._log = log
        self._decoder = decoder
        self._beat = beat
        self._accept = accept
        self.is_held = False
        metrics.first_times_held.set(0)

    def hold(self) -> bool:
        """Whether to hold the next commit. Logs the reason once."""
        if self._accept or self.is_held:
            return self.is_held
        found = self._decoder.other_unit if has_no_times(self._log) else None
        if found is None:
            return False
        self.is_held = True
        metrics.first_times_held.set(1)
        action = (
            f"{found.action}, or set {ACCEPT_SETTING}: true, and start again. If these events were "
            "a mistake, send right ones and start again: ingest then accepts all of them"
        )
        logger.error("first_times_held", why=found.words, action=action)
        self._beat.note(held=f"{found.words}; {action}")
        return True
