"""A thread that does one thing step by step, and waits out what is away."""

import threading
from collections.abc import Callable
from typing import Protocol

import structlog

from streamd.errors import FencedError, KafkaError
from streamd.telemetry.failure_log import LastingFailures

logger = structlog.get_logger()
WAIT_SECONDS = 0.5
"""Longest time that a step waits for something to do."""
RETRY_SECONDS = 2.0
"""Pause before another try."""
CLOSE_SECONDS = 5.0


class Stepped(Protocol):
    """What the thread does."""

    def step(self, wait_seconds: float = 0.0) -> None:
        """Do what there is to do, waiting for it for at most some time."""

    def close(self) -> None:
        """End it."""


class StepThread:
    """Makes something in a thread of its own and lets it step until `close`, so that nobody else
    waits for Kafka or the store. Owner: who made it.

    fenced: why it ended by itself: somebody else does what it did. None while nobody does.
    """

    def __init__(self, name: str, make: Callable[[], Stepped]) -> None:
        """make: called again after an error of Kafka. name: of the thread, and in logs."""
        self._name = name
        self._make = make
        self._stop = threading.Event()
        self._failures = LastingFailures()
        self.fenced: FencedError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        made: Stepped | None = None
        while not self._stop.is_set():
            try:
                made = made or self._make()
                made.step(WAIT_SECONDS)
                self._failures.over()
            except FencedError as error:
                self.fenced = error
                break
            except Exception as error:  # noqa: BLE001 - the thread must go on: its process does other things
                self._log(error)
                if isinstance(error, KafkaError) and made is not None:
                    self._closed(made)
                    made = None
                self._stop.wait(RETRY_SECONDS)
        if made is not None:
            self._closed(made)

    def _closed(self, made: Stepped) -> None:
        try:
            made.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._log(error)

    def _log(self, error: Exception) -> None:
        kind = type(error).__name__
        if self._failures.is_due(kind):
            logger.error("step_failed", thread=self._name, kind=kind, error=str(error))

    def step(self) -> None:
        """Nothing: it steps by itself. So the loop that follows the log takes it as a part."""

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._stop.set()

    def close(self) -> None:
        """Stop the thread and wait for it, not for long: it may be in the midst of a file."""
        self.stop()
        self._thread.join(CLOSE_SECONDS)
