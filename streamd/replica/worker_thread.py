"""A thread that does one task step by step, and retries after failures."""

import threading
from collections.abc import Callable
from typing import Protocol

import structlog

from streamd.errors import FencedError, KafkaError
from streamd.telemetry.failure_log import LastingFailures, NoteFailure, ignore

logger = structlog.get_logger()
WAIT_SECONDS = 0.5
"""Longest wait of a step for work."""
RETRY_SECONDS = 2.0
"""Pause before another try."""
CLOSE_SECONDS = 5.0


class Stepped(Protocol):
    """The task of the thread."""

    def step(self, wait_seconds: float = 0.0) -> None:
        """Do the due work; if there is none, wait at most some time for it."""

    def close(self) -> None:
        """End the task."""


class StepThread:
    """Makes a task in a thread of its own and steps it until `close`, so that no other thread waits
    for Kafka or the store. Owner: its creator.

    fenced: the error of a thread that ended by itself, because another process has taken over its
    task; None otherwise.
    """

    def __init__(
        self, name: str, make: Callable[[], Stepped], note_failure: NoteFailure = ignore
    ) -> None:
        """make: makes the task, again after an error of Kafka. name: of the thread, and in logs.
        note_failure: called with the name and the error, "" after a success."""
        self._name = name
        self._make = make
        self._stop = threading.Event()
        self._failures = LastingFailures()
        self._note_failure = note_failure
        self._is_failing = False
        self.fenced: FencedError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        made: Stepped | None = None
        while not self._stop.is_set():
            try:
                made = made or self._make()
                made.step(WAIT_SECONDS)
                self._failures.end("step_succeeds_again", thread=self._name)
                if self._is_failing:
                    self._is_failing = False
                    self._note_failure(self._name, "")
            except FencedError as error:
                self.fenced = error
                break
            except Exception as error:  # noqa: BLE001 - the thread must continue: its process does other things
                self._log(error)
                if isinstance(error, KafkaError) and made is not None:
                    self._close_task(made)
                    made = None
                self._stop.wait(RETRY_SECONDS)
        if made is not None:
            self._close_task(made)
        # A task that is over fails no more; the process may continue as a leader.
        self._note_failure(self._name, "")

    def _close_task(self, made: Stepped) -> None:
        try:
            made.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._log(error)

    def _log(self, error: Exception) -> None:
        self._is_failing = True
        self._note_failure(self._name, str(error))
        kind = type(error).__name__
        if self._failures.is_due(kind):
            logger.error("step_failed", thread=self._name, kind=kind, error=str(error))

    def step(self) -> None:
        """Does nothing: the thread steps by itself. With this method the follow loop accepts it as
        a part."""

    def stop(self) -> None:
        """Make the thread end, without waiting for it."""
        self._stop.set()

    def close(self) -> None:
        """Stop the thread and wait at most CLOSE_SECONDS for it: it may be writing a file."""
        self.stop()
        self._thread.join(CLOSE_SECONDS)
