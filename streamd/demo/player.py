"""The demo's producer: an event-time hour at a time, each acknowledged and in the log before the
next is sent."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from streamd.demo.streams import DemoStream
from streamd.errors import DemoError
from streamd.exchange.produce import Outgoing
from streamd.ingest.client import make_producer
from streamd.segments.reader import LogReader
from streamd.settings import Settings

MAX_WINDOWS_BEHIND = 24
PATIENCE_SECONDS = 120.0
T = TypeVar("T")


@dataclass
class PlayerStatus:
    """Written by the player's thread, read by the display."""

    sent: int = 0
    hours: int = 0
    total: int = 0
    finished: float = 0.0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Player:
    """Owner of one producer and one reader, both used on its thread only."""

    def __init__(
        self,
        stream: DemoStream,
        settings: Settings,
        hours_per_second: float,
        days: int | None,
        windows_done: Callable[[], int],
    ) -> None:
        """hours_per_second: 0 for as fast as the log takes it. windows_done: how many windows are
        learned by now."""
        self._stream = stream
        self._settings = settings
        self._rate = hours_per_second
        self._days = days
        self._windows_done = windows_done
        self._stop = threading.Event()
        self.status = PlayerStatus()
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001 - told to the main thread, which ends the demo
            self.status.error = error
        finally:
            self.status.finished = time.monotonic()
            self.status.done.set()

    def _play(self) -> None:
        hours = list(self._stream.hours(self._days))
        self.status.total = sum(map(len, hours))
        producer = make_producer(
            self._settings.kafka, linger_ms=1000, batch_size=1_000_000, compression_type="lz4"
        )
        try:
            nodes = self._stream.nodes()
            self._send(producer, nodes)
            log = self._wait(
                "ingest has made the log", lambda: LogReader.open(self._settings.data_dir)
            )
            if log is None:
                return
            self._wait_for(
                log, "the node features are in the log", lambda: len(log.feature_node) >= len(nodes)
            )
            begun = time.monotonic()
            for number, batch in enumerate(hours):
                if self._rate:
                    self._stop.wait(max(0.0, begun + number / self._rate - time.monotonic()))
                while (
                    not self._stop.is_set() and number - self._windows_done() > MAX_WINDOWS_BEHIND
                ):
                    self._stop.wait(0.02)
                if self._stop.is_set():
                    return
                self._send(producer, batch)
                self.status.sent += len(batch)
                self._wait_for(
                    log,
                    f"{self.status.sent} events are in the log",
                    lambda: log.num_edges >= self.status.sent,
                )
                self.status.hours = number + 1
        finally:
            producer.close()

    def _send(self, producer: Any, batch: list[Outgoing]) -> None:
        topic = self._settings.kafka.topics[0]
        sent = [producer.send(topic, key=e.key, value=e.value) for e in batch]
        producer.flush()
        for future in sent:
            future.get(timeout=60)

    def _wait_for(self, log: LogReader, what: str, reached: Callable[[], bool]) -> None:
        def found() -> bool | None:
            log.refresh()
            return reached() or None

        self._wait(what, found)

    def _wait(self, what: str, found: Callable[[], T | None]) -> T | None:
        """What `found` returns once that is not None; None where told to stop before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._stop.is_set():
            if (value := found()) is not None:
                return value
            if time.monotonic() > deadline:
                raise DemoError(
                    f"After {PATIENCE_SECONDS:.0f} s it is still not so that {what}.",
                    "read daemon.log.",
                )
            time.sleep(0.002)
        return None
