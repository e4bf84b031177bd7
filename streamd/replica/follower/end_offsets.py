"""Compares the end offsets of the events' topics with a replica's log. The follower asks Kafka
itself.

The servers of this machine read the result, as servers of the leader's machine read ingest's
heartbeat. So an answer's lag covers the whole path, through the leader and the changelog.
"""

import json
import time
from pathlib import Path
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError
from streamd.eventlog.journal.tail import JournalTail
from streamd.events import Position
from streamd.ingest.kafka.client import make_consumer
from streamd.roles import ENDS, FOLLOW, make_folder
from streamd.settings.loading import KafkaSettings

PEEK_SECONDS = 0.5
"""Longest wait for a record between a position and the end offset."""


class SourceEnds:
    """Writes which partitions of the log's topics have records that the log lacks. Owner: one
    thread."""

    def __init__(self, data_dir: Path, kafka: KafkaSettings) -> None:
        self._data_dir = data_dir
        self._kafka = kafka
        self._path = make_folder(data_dir, FOLLOW) / ENDS
        self._tail: JournalTail | None = None
        self._inode = 0
        self._consumer: Any = None
        self._empty: set[tuple[TopicPartition, int, int]] = set()
        """(partition, position, end offset) without a record between them: there are only markers
        of transactions."""

    def step(self, wait_seconds: float = 0.0) -> None:
        """Compare once, after a pause of `wait_seconds`. Raises: KafkaError, JournalError."""
        time.sleep(wait_seconds)
        positions = self._positions()
        if not positions:
            return
        asked_at = time.time()
        try:
            if self._consumer is None:
                self._consumer = make_consumer(self._kafka)
            ends = self._consumer.end_offsets(list(positions))
            behind: dict[str, dict[str, int]] = {}
            for partition, position in positions.items():
                end = ends[partition]
                if end > position.offset and self._has_record(partition, position.offset, end):
                    behind.setdefault(partition.topic, {})[str(partition.partition)] = end
        except (ClientError, AssertionError) as error:
            raise KafkaError(
                f"The ends of the log's topics cannot be read: {error}.", "check the broker."
            ) from None
        _replace(self._path, {"time": asked_at, "behind": behind})

    def _positions(self) -> dict[TopicPartition, Position]:
        """The log's position in each partition that it reads."""
        try:
            inode = (self._data_dir / "published").stat().st_ino
        except FileNotFoundError:
            return {}
        # A bootstrap may have replaced the log that was read.
        if self._tail is None or self._tail.superseded or inode != self._inode:
            self._tail = JournalTail.open(self._data_dir)
            self._inode = inode
        assert self._tail is not None
        self._tail.refresh()
        return {
            TopicPartition(topic, partition): position
            for topic, parts in self._tail.state.progress.positions.items()
            for partition, position in parts.items()
        }

    def _has_record(self, partition: TopicPartition, position: int, end: int) -> bool:
        """Whether there is a record from a position on; else the end is that of a transaction. True
        if none arrives within PEEK_SECONDS."""
        if (partition, position, end) in self._empty:
            return False
        self._consumer.assign([partition])
        self._consumer.seek(partition, position)
        deadline = time.monotonic() + PEEK_SECONDS
        while time.monotonic() < deadline:
            if self._consumer.poll(timeout_ms=100, max_records=1):
                return True
            if self._consumer.position(partition) >= end:
                self._empty = {seen for seen in self._empty if seen[0] != partition}
                self._empty.add((partition, position, end))
                return False
        return True

    def close(self) -> None:
        """Close the connection to Kafka."""
        if self._consumer is not None:
            self._consumer.close()


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Replace a file in one step for readers; it need not survive a crash."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(content))
    scratch.replace(path)
