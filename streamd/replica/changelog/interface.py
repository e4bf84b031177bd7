"""What the parts of a replica know of the changelog: records at offsets, read by some and appended
by one. Kafka's are in `kafka_changelog.py`, a twin in memory in the tests."""

from typing import Protocol

from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.replica.changelog.records import Entry, Read


class OutOfRange(Exception):  # noqa: N818 - handled at once: a newer manifest is needed
    """The changelog no longer has, or does not have yet, the record that is to be read next."""


class ChangelogReader(Protocol):
    """Reads the changelog from any offset. Owner: one thread. Raises KafkaError where the broker
    does not answer, ChangelogError for a record that is none. changelog: which one it reads."""

    changelog: ChangelogId

    def bounds(self) -> tuple[int, int]:
        """Offsets of the first record there is, and one past the newest."""
        ...

    def seek(self, offset: int) -> None:
        """Read on from an offset."""
        ...

    def read(self, seconds: float) -> list[Read]:
        """The next records, those that come within some seconds. Raises: OutOfRange."""
        ...

    @property
    def position(self) -> int:
        """Offset of the next record to read."""
        ...

    def close(self) -> None: ...


class Receipt(Protocol):
    """The acknowledgement of a record that was sent."""

    def offset(self) -> int | None:
        """Where the record lies, -1 where that is not known; None before it is acknowledged.
        Raises: KafkaError where it was not stored."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait at most some seconds for it."""
        ...


class ChangelogProducer(Protocol):
    """Appends records, which stay in order, each once. Owner: the leader's publisher."""

    part_bytes: int
    """Most bytes of a record's value."""

    def send(self, record: Entry) -> Receipt:
        """Send a record. Raises: KafkaError."""
        ...

    def close(self) -> None: ...
