"""The demo's producer: sends window after window, at most a few ahead of the log."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from streamd.demo.streams import HOUR, DemoStream
from streamd.errors import DemoError
from streamd.eventlog.reader import LogReader
from streamd.exchange.produce import Outgoing
from streamd.ingest.kafka.client import make_producer
from streamd.number_texts import span
from streamd.settings.kafka_settings import KafkaSettings

MAX_WINDOWS_BEHIND = 24
"""Largest number of windows that are sent but not learned: few, so that the display shows a live
system."""
MAX_WINDOWS_IN_FLIGHT = 4
"""Largest number of windows that are sent but not in the log. A window's last events wait
`ingest.merge_wait_seconds` for the other partitions, unless events of the next window arrive: sent
one by one, each window would wait for that rather than for the trainer."""
PATIENCE_SECONDS = 120.0
"""Longest wait for ingest, which may start slowly on a busy machine."""
T = TypeVar("T")


@dataclass
class PlayerStatus:
    """The player's progress, written by its thread and read by others. sent, total: numbers of
    events. finished: monotonic seconds of the end. error: the exception that ended the thread."""

    sent: int = 0
    total: int = 0
    finished: float = 0.0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Player:
    """Plays a stream on its own thread, with its own producer and reader of the log. Owner: the
    demo."""

    def __init__(
        self,
        stream: DemoStream,
        log_folder: Path,
        kafka: KafkaSettings,
        hours_per_second: float,
        days: int | None,
        num_windows: Callable[[], int],
        ends_at: int | None = None,
        before_window: Callable[[list[Outgoing]], None] | None = None,
    ) -> None:
        """log_folder: of the event log, which may not exist yet. hours_per_second: event-time
        hours, 0 for no limit. days, ends_at: as in `DemoStream.windows`. num_windows: returns the
        number of learned windows. before_window: called before a window's events are sent, once
        the log has all earlier ones."""
        self._stream = stream
        self._log_folder = log_folder
        self._kafka = kafka
        self._rate = hours_per_second
        self._days = days
        self._num_windows = num_windows
        self._ends_at = ends_at
        self._before_window = before_window
        self._stop = threading.Event()
        self.status = PlayerStatus()
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the window that is being sent."""
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001 - passed to the main thread
            self.status.error = error
        finally:
            self.status.finished = time.monotonic()
            self.status.done.set()

    def _play(self) -> None:
        """Send node features, then window after window at the chosen speed. Raises: DemoError."""
        windows = list(self._stream.windows(self._days, self._ends_at))
        self.status.total = sum(map(len, windows))
        producer = make_producer(
            self._kafka, linger_ms=1000, batch_size=1_000_000, compression_type="lz4"
        )
        try:
            # Send node features first, so that they apply from the first event on.
            nodes = self._stream.nodes()
            self._send(producer, nodes)
            log = self._wait("ingest has made the log", lambda: LogReader.open(self._log_folder))
            if log is None:
                return
            self._wait_for(
                log,
                "the node features are in the log",
                lambda: log.num_feature_updates >= len(nodes),
            )

            # Send each window at its time, or later if the trainer or the log lags.
            begun = time.monotonic()
            hours = self._stream.window_seconds / HOUR
            ends = [0, *accumulate(map(len, windows))]
            for number, batch in enumerate(windows):
                if self._rate:
                    moment = begun + number * hours / self._rate
                    self._stop.wait(max(0.0, moment - time.monotonic()))
                while not self._stop.is_set() and number - self._num_windows() > MAX_WINDOWS_BEHIND:
                    self._stop.wait(0.02)
                if self._stop.is_set():
                    return
                if self._before_window is not None:
                    self._wait_for_edges(log, ends[number])
                    self._before_window(batch)
                self._wait_for_edges(log, ends[max(0, number - MAX_WINDOWS_IN_FLIGHT + 1)])
                self._send(producer, batch)
                self.status.sent += len(batch)
            self._wait_for_edges(log, self.status.sent)
        finally:
            producer.close()

    def _send(self, producer: Any, batch: list[Outgoing]) -> None:
        """Send events and wait for their acknowledgements."""
        topics = self._kafka.topics
        # Send all of them, then wait once.
        records = self._stream.records(batch)
        sent = [producer.send(topics[n], key=r.key, value=r.value) for n, r in records]
        producer.flush()
        for future in sent:
            future.get(timeout=60)

    def _wait_for_edges(self, log: LogReader, num_edges: int) -> None:
        """Wait until the log has `num_edges` events. Raises: DemoError."""
        self._wait_for(
            log, f"{num_edges} events are in the log", lambda: log.num_edges >= num_edges
        )

    def _wait_for(self, log: LogReader, what: str, reached: Callable[[], bool]) -> None:
        """Refresh the log until `reached()` is true. Raises: DemoError."""

        def reached_now() -> bool | None:
            log.refresh()
            return reached() or None

        self._wait(what, reached_now)

    def _wait(self, what: str, poll: Callable[[], T | None]) -> T | None:
        """Call `poll` until it returns a value. what: the awaited condition, for the error.
        Returns: the value, None if stopped before. Raises: DemoError after PATIENCE_SECONDS."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._stop.is_set():
            if (value := poll()) is not None:
                return value
            if time.monotonic() > deadline:
                raise DemoError(
                    f"Timed out after {span(PATIENCE_SECONDS)} of waiting until {what}.",
                    "read daemon.log.",
                )
            # Short, since the next window waits for this.
            time.sleep(0.01)
        return None
