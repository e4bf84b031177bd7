"""Checks whether a standby could lead. Each condition that could fail after a claim is checked
before it, so that a standby that cannot lead continues to follow, and another one leads."""

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
from streamd.telemetry import replica_metrics
from streamd.telemetry.failure_log import LastingFailures

logger = structlog.get_logger()
LOOK_SECONDS = 600.0
"""Time between two checks while the standby could lead: each reads all keys, and briefly reserves a
segment."""
RETRY_SECONDS = 10.0
"""Time between two checks while it cannot lead."""
REASONS = ("schema", "settings", "data", "disk", "topics")
"""Reasons why a standby cannot lead: the metric's label."""


class Fitness:
    """The last check of whether a standby could lead. Owner: its succession.

    why: the reason why it could not, as text; "" if it could.
    """

    def __init__(self, check: Callable[[], None], monotonic: Callable[[], float]) -> None:
        """check: raises a StreamdError if this machine could not lead. monotonic: seconds."""
        self._check = check
        self._failures = LastingFailures(monotonic)
        self._checked_at = float("-inf")
        self.why = ""
        _set_metric("")

    def could_lead(self, now: float, is_due: bool) -> bool:
        """Whether this machine could lead. now: monotonic seconds. is_due: whether it is about
        to claim; then it checks again, unless the last check failed within RETRY_SECONDS."""
        if self.why:
            pause = RETRY_SECONDS
        else:
            pause = 0.0 if is_due else LOOK_SECONDS
        if now - self._checked_at >= pause:
            self._checked_at = now
            self._run_check()
        return not self.why

    def _run_check(self) -> None:
        try:
            self._check()
        except (KafkaError, StoreError) as error:
            # A leader would wait too for a broker or store that is away, but not for lost records.
            if isinstance(error, DataLossError):
                self._refuse(error)
        except StreamdError as error:
            self._refuse(error)
        else:
            if self.why:
                logger.info("can_lead_again")
            self.why = ""
            self._failures.over()
            _set_metric("")

    def _refuse(self, error: StreamdError) -> None:
        self.why = str(error)
        reason = _reason(error)
        if self._failures.is_due(reason):
            logger.error(
                "cannot_lead",
                reason=reason,
                error=self.why,
                meaning="this standby keeps following the leader, and checks again",
            )
        _set_metric(reason)


def _reason(error: StreamdError) -> str:
    """One of REASONS."""
    if isinstance(error, DataLossError):
        return "topics"
    if isinstance(error, DiskError):
        return "disk"
    if isinstance(error, SchemaError):
        return "schema"
    return "settings" if isinstance(error, SettingsError) else "data"


def _set_metric(reason: str) -> None:
    for one in REASONS:
        replica_metrics.cannot_lead.labels(one).set(one == reason)
