"""The interface of a changelog: records at offsets, with many readers and one producer. `kafka.py`
implements it for Kafka, the tests in memory."""

from typing import Protocol

from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.replica.changelog.records import Entry, Read


class OutOfRange(Exception):  # noqa: N818 - handled at once: a newer manifest is needed
    """The changelog no longer has the record to read next, or does not have it yet."""


class ChangelogReader(Protocol):
    """Reads the changelog from any offset. Owner: one thread. Raises KafkaError if the broker does
    not answer, ChangelogError for a record that this release cannot read. changelog: its
    identity."""

    changelog: ChangelogId

    def bounds(self) -> tuple[int, int]:
        """Offset of the first record, and one past the newest."""
        ...

    def seek(self, offset: int) -> None:
        """Continue to read at an offset."""
        ...

    def read(self, seconds: float) -> list[Read]:
        """The next records, as far as they arrive within some seconds. Raises: OutOfRange."""
        ...

    @property
    def position(self) -> int:
        """Offset of the next record to read."""
        ...

    def close(self) -> None: ...


class Receipt(Protocol):
    """The acknowledgement of a record that was sent."""

    def offset(self) -> int | None:
        """Offset of the record, -1 if the broker does not report it; None before the
        acknowledgement. Raises: KafkaError if the record was not stored."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait at most some seconds for the acknowledgement."""
        ...


class ChangelogProducer(Protocol):
    """Appends records in order, each once. Owner: the leader's publisher."""

    part_bytes: int
    """Maximum size of a record's value."""

    def send(self, record: Entry) -> Receipt:
        """Send a record. Raises: KafkaError."""
        ...

    def close(self) -> None: ...
