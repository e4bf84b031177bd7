"""Counts of the infer requests that a version answered, for Triton's statistics extension."""

import time
from dataclasses import dataclass


@dataclass
class Counts:
    """Counts of a version's infer requests on `/v2`.

    Durations are in nanoseconds, from the parsed request to its answer.
    """

    version: str
    last_ms: int = 0
    """Time of the last answer, milliseconds since 1970."""
    rows: int = 0
    """Rows of `src` that were answered."""
    answered: int = 0
    answered_ns: int = 0
    failed: int = 0
    failed_ns: int = 0

    def add_answer(self, rows: int, ns: int) -> None:
        """Count an answered request. rows: of `src`. ns: its duration."""
        self.last_ms = time.time_ns() // 1_000_000
        self.rows += rows
        self.answered += 1
        self.answered_ns += ns

    def add_failure(self, ns: int) -> None:
        """Count a request that was refused, or not answered in time. ns: its duration."""
        self.failed += 1
        self.failed_ns += ns


class InferenceStatistics:
    """The counts of the version that serves. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._counts = Counts("")

    def of(self, version: str) -> Counts:
        """The counts of the version that serves now. They start at 0 with each version."""
        if version != self._counts.version:
            self._counts = Counts(version)
        return self._counts
