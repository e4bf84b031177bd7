"""Retries of work with failures that must not end the process: they are logged and counted, and
pauses grow."""

import time
from collections.abc import Callable, Sequence

import structlog

from streamd.telemetry import metrics
from streamd.telemetry.failure_log import LastingFailures, NoteFailure, ignore

logger = structlog.get_logger()
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""Pauses after failures grow to the longest, because each attempt may read a segment again."""


class Retries:
    """Runs the parts of housekeeping. Owner: the housekeeper."""

    def __init__(
        self,
        works: Sequence[str],
        must_end: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
        note_failure: NoteFailure = ignore,
    ) -> None:
        """Args: works: all names for `run`; must_end: whether the error just raised must end the
        process; monotonic: seconds of a clock that never goes backwards; note_failure: called with
        the name of a part and its error, "" once it succeeds."""
        self._note_failure = note_failure
        self._must_end = must_end
        self._monotonic = monotonic
        self._failures = dict.fromkeys(works, 0)
        self._due_at = dict.fromkeys(works, monotonic())
        self._lasting = LastingFailures(monotonic)
        metrics.begin_at_zero(metrics.housekeeping_errors, works)
        for name in works:
            metrics.housekeeping_failing.labels(name).set(0)

    def run(self, name: str, work: Callable[[], bool]) -> bool:
        """Run a part, unless it failed and its pause is not over.

        work: returns whether all of it is done; after a failure, the part counts as failing until
        then. Returns: whether it ran without an error.
        """
        if self._monotonic() < self._due_at[name]:
            return False
        try:
            is_done = work()
        except Exception as error:  # noqa: BLE001 - no error here may stop ingest
            if self._must_end():
                raise
            self._note(name, error)
            return False
        if is_done and self._failures[name]:
            logger.info("housekeeping_recovered", work=name, failures=self._failures[name])
            self._failures[name] = 0
            self._lasting.over()
            metrics.housekeeping_failing.labels(name).set(0)
            self._note_failure(name, "")
        return True

    def _note(self, name: str, error: Exception) -> None:
        failures = self._failures[name]
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 10))
        self._failures[name] = failures + 1
        self._due_at[name] = self._monotonic() + pause
        metrics.housekeeping_errors.labels(name).inc()
        metrics.housekeeping_failing.labels(name).set(1)
        self._note_failure(name, str(error))
        kind = type(error).__name__
        if self._lasting.is_due(f"{name} {kind}"):
            logger.error(
                "housekeeping_failed",
                work=name,
                kind=kind,
                error=str(error),
                meaning="ingest continues; it is retried at least once a minute",
            )
