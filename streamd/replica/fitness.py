"""Whether a standby could lead: whatever may refuse after a claim is asked before it, so that who
cannot lead goes on following, and another one leads."""

from collections.abc import Callable

import structlog

from streamd.errors import (
    DataLossError,
    DiskError,
    KafkaError,
    SchemaError,
    SettingsError,
    StoreError,
    StreamdError,
)
from streamd.telemetry import metrics
from streamd.telemetry.lasting import LastingFailures

logger = structlog.get_logger()
LOOK_SECONDS = 600.0
"""Time between two checks of a standby that could lead: each reads all keys, and reserves a segment
for a moment."""
RETRY_SECONDS = 10.0
"""Time between two checks of one that could not, or that is to lead."""
REASONS = ("schema", "settings", "data", "disk", "topics")
"""Why a standby cannot lead, as the metric's label says."""


class Fitness:
    """Owner: a standby's succession. why: the reason in words why it cannot lead, "" where it could
    when it was checked last."""

    def __init__(self, check: Callable[[], None], monotonic: Callable[[], float]) -> None:
        """check: raises a StreamdError where this machine could not lead. monotonic: seconds."""
        self._check = check
        self._failures = LastingFailures(monotonic)
        self._checked_at = float("-inf")
        self.why = ""
        _show("")

    def could_lead(self, now: float, is_due: bool) -> bool:
        """Whether this machine could lead. now: monotonic seconds. is_due: whether it is to claim
        at once; then a result of before does not count, unless it has just failed."""
        if self.why:
            pause = RETRY_SECONDS
        else:
            pause = 0.0 if is_due else LOOK_SECONDS
        if now - self._checked_at >= pause:
            self._checked_at = now
            self._look()
        return not self.why

    def _look(self) -> None:
        try:
            self._check()
        except (KafkaError, StoreError) as error:
            # What is away is waited for by a leader as well; what Kafka lost is not.
            if isinstance(error, DataLossError):
                self._refuse(error)
        except StreamdError as error:
            self._refuse(error)
        else:
            if self.why:
                logger.info("can_lead_again")
            self.why = ""
            self._failures.over()
            _show("")

    def _refuse(self, error: StreamdError) -> None:
        self.why = str(error)
        reason = _reason(error)
        if self._failures.is_due(reason):
            logger.error("cannot_lead", reason=reason, error=self.why)
        _show(reason)


def _reason(error: StreamdError) -> str:
    """One of REASONS."""
    if isinstance(error, DataLossError):
        return "topics"
    if isinstance(error, DiskError):
        return "disk"
    if isinstance(error, SchemaError):
        return "schema"
    return "settings" if isinstance(error, SettingsError) else "data"


def _show(reason: str) -> None:
    for one in REASONS:
        metrics.cannot_lead.labels(one).set(one == reason)
