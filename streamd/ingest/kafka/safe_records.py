"""Safe reading of record batches by kafka-python: what cannot be read becomes a refused record.

kafka-python decodes records inside a generator. An error in there, such as a header name that is
not UTF-8, ends the generator for good, and the next poll never returns. It also expands a
compressed batch without a limit. `SafeBatch` takes the place of its batch class. A refused record
carries the reason as its value and REFUSED_HEADER, so that it passes through the decoder like any
other value that does not fit.
"""

import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint
from kafka.structs import OffsetAndMetadata

from streamd.decode.wire import REFUSED_HEADER
from streamd.ingest.kafka.decompression import expand

CHECKSUM_TRIES = 3
"""Times that a batch with a wrong checksum is fetched before it is refused: the network may have
damaged it."""
MAX_HEADERS = 1_000
"""Most headers of a record: each takes two bytes in a batch and a hundred in memory."""
PORTION_BYTES = 262_144
"""Most bytes of records that are decoded between two heartbeats, unless one record is larger: two
bytes may make a dead letter, so this many can take seconds."""
UNREADABLE = (ValueError, IndexError, OverflowError, struct.error, CorruptRecordError)
"""What reading a malformed record raises."""


class SafeBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A record batch whose iteration never raises.

    Only a wrong checksum is reported, the first times that the batch is fetched.
    """

    max_batch_bytes: ClassVar[int] = 2**26
    _buffer: bytes
    _pos: int
    _num_records: int
    _next_record_index: int
    _decompressed: bool
    _bad_checksums: ClassVar[Counter[tuple[int, int]]] = Counter()

    def __init__(self, buffer: Any) -> None:
        super().__init__(buffer)
        self._refused = ""

    def validate_crc(self) -> bool:
        """Whether the batch may be read; one damaged too often is read as a refused record."""
        if super().validate_crc():
            return True
        name = (self.base_offset, self.crc)
        self._bad_checksums[name] += 1
        if self._bad_checksums[name] < CHECKSUM_TRIES:
            return False
        self._refuse("its checksum is wrong")
        return True

    def _maybe_uncompress(self) -> None:
        """Expand the records within `max_batch_bytes`, or refuse the batch."""
        if self._decompressed:
            return
        if self.compression_type == self.CODEC_NONE:
            # Slices of bytes are what records are made of.
            self._buffer = bytes(self._buffer)
            self._decompressed = True
            return
        data = bytes(memoryview(self._buffer)[self._pos :])
        try:
            self._buffer = expand(self.compression_type, data, self.max_batch_bytes)
            self._pos = 0
            self._decompressed = True
        except ValueError as error:
            self._refuse(str(error))

    def __next__(self) -> DefaultRecord:
        if self._next_record_index >= self._num_records:
            raise StopIteration
        self._next_record_index += 1
        if self._refused:
            return self._refused_record(self.base_offset, self._refused)
        if self.is_control_batch:
            return self._control_record()
        start = self._pos
        try:
            return self._read_record()
        except UNREADABLE as error:
            return self._pass_over(start, error)

    next = __next__

    def _read_record(self) -> DefaultRecord:
        """Read the record at `_pos`, which moves behind it (Kafka's message format 2).

        Raises: UNREADABLE.

        Header names that are not UTF-8 are read with replacements, as Kafka's own client does.
        """
        # The fields in order; the attributes between length and timestamp are unused.
        buffer = self._buffer
        end = len(self._buffer)
        length, pos = decode_varint(buffer, self._pos)
        start = pos
        _, pos = decode_varint(buffer, pos)
        timestamp_delta, pos = decode_varint(buffer, pos)
        offset_delta, pos = decode_varint(buffer, pos)
        key, pos = _nullable_bytes(buffer, pos)
        value, pos = _nullable_bytes(buffer, pos)
        num_headers, pos = decode_varint(buffer, pos)
        if num_headers > MAX_HEADERS:
            raise ValueError(f"a record has {num_headers} headers, at most {MAX_HEADERS} are read")

        # The headers end the record, which tells whether its length was right.
        headers: list[tuple[str, bytes | None]] = []
        if num_headers > 0:
            pos = _read_headers(buffer, pos, num_headers, headers)
        if num_headers < 0 or pos - start != length or pos > end:
            raise ValueError(f"a record of {length} bytes does not end where it says")

        # Offsets and timestamps are relative to the batch's.
        offset = self.base_offset + offset_delta
        if not self.base_offset <= offset <= self.last_offset:
            raise ValueError(f"a record has offset {offset}")
        self._pos = pos
        append_time = self.timestamp_type == self.LOG_APPEND_TIME
        timestamp = self.max_timestamp if append_time else self.first_timestamp + timestamp_delta
        return DefaultRecord(length, offset, timestamp, self.timestamp_type, key, value, headers)

    def _pass_over(self, start: int, error: Exception) -> DefaultRecord:
        """A refused record for the one at `start`, or for all the rest where its end is unknown."""
        # Its own length and offset may be wrong: they count only where both lie in the batch.
        try:
            length, body = decode_varint(self._buffer, start)
            _, pos = decode_varint(self._buffer, body)
            _, pos = decode_varint(self._buffer, pos)
            offset_delta, pos = decode_varint(self._buffer, pos)
            has_end = 0 <= offset_delta <= self.last_offset_delta and pos <= body + length <= len(
                self._buffer
            )
        except UNREADABLE:
            has_end = False

        # Only this record is lost where its end is known, else all that follow it in the batch.
        if has_end:
            self._pos = body + length
            return self._refused_record(self.base_offset + offset_delta, f"a record: {error}")
        self._next_record_index = self._num_records
        return self._refused_record(
            self.last_offset, f"all up to offset {self.last_offset} of a batch: {error}"
        )

    def _control_record(self) -> Any:
        """Read the record that ends a transaction; None, which means no abort, where malformed."""
        try:
            return self._read_msg()
        except UNREADABLE:
            return None

    def _refuse(self, why: str) -> None:
        """Make this a batch of one refused record."""
        self._refused = f"offsets {self.base_offset} to {self.last_offset}: {why}"
        self._num_records = 1
        self._next_record_index = 0
        self._decompressed = True

    def _refused_record(self, offset: int, why: str) -> DefaultRecord:
        """A record that says why what was at `offset` was refused."""
        value = f"cannot be read: {why}".encode()[:1000]
        return DefaultRecord(
            len(value),
            offset,
            self.max_timestamp,
            self.timestamp_type,
            None,
            value,
            [(REFUSED_HEADER, b"")],
        )


def _nullable_bytes(buffer: bytes, pos: int) -> tuple[bytes | None, int]:
    """Read a length and that many bytes; None where the length is negative. Raises: ValueError."""
    length, pos = decode_varint(buffer, pos)
    if length < 0:
        return None, pos
    # A slice would silently be shorter.
    if pos + length > len(buffer):
        raise ValueError(f"{length} bytes are announced, {len(buffer) - pos} are left")
    return buffer[pos : pos + length], pos + length


_names: dict[bytes, str] = {}
"""Names of headers that were read before, at most MAX_NAMES of at most SHORT bytes."""
MAX_NAMES = 1_024
SHORT = 64
"""Lengths below it are one byte, which is even."""


def _read_headers(
    buffer: bytes, pos: int, count: int, headers: list[tuple[str, bytes | None]]
) -> int:
    """Read so many headers and append them. Returns: the position behind. Raises: UNREADABLE.

    What is short and known is read without a call, as headers take most of the time otherwise.
    """
    end = len(buffer)
    for _ in range(count):
        # The name.
        start = pos + 1
        double = buffer[pos]
        pos = start + (double >> 1)
        if double & 0x81 or pos > end or (text := _names.get(buffer[start:pos])) is None:
            name, pos = _nullable_bytes(buffer, start - 1)
            text = (name or b"").decode(errors="replace")
            if name is not None and len(name) < SHORT and len(_names) < MAX_NAMES:
                _names[name] = text

        # The content.
        start = pos + 1
        double = buffer[pos]
        pos = start + (double >> 1)
        if double & 0x81 or pos > end:
            content, pos = _nullable_bytes(buffer, start - 1)
            headers.append((text, content))
        else:
            headers.append((text, buffer[start:pos]))
    return pos


class SafeRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The fetched records of a partition, given out up to a number of bytes.

    A compressed megabyte may hold gigabytes.
    """

    bytes_left = 2**63
    """Bytes that the current poll may still take; no limit until `bound_polls` sets one."""

    def take(self, n: int | None = None) -> list[Any]:
        """At most `n` records; the one that uses up `bytes_left` is the last."""
        # An error that the last call kept back comes first.
        self._maybe_raise_next_inline_exception()
        records: list[Any] = []
        try:
            for record in itertools.islice(self.record_iterator, 0, n):
                # A record counts as kafka-python holds it, expanded; absent parts have size -1.
                records.append(record)
                self.bytes_left -= (
                    max(0, record.serialized_key_size)
                    + max(0, record.serialized_value_size)
                    + max(0, record.serialized_header_size)
                )
                if self.bytes_left <= 0:
                    break
        except Exception as error:  # noqa: BLE001 - as kafka-python: deliver what was read first
            if not records:
                raise
            self._next_inline_exception = error
        return records


def make_reading_safe(max_batch_bytes: int | None = None) -> None:
    """Make kafka-python read every batch by `SafeBatch`, expanded to at most `max_batch_bytes`,
    None to keep the last limit."""
    if max_batch_bytes is not None:
        SafeBatch.max_batch_bytes = max_batch_bytes
    memory_records.DefaultRecordBatch = SafeBatch
    Fetcher.PartitionRecords = SafeRecords


def bound_polls(consumer: KafkaConsumer, max_bytes: int) -> None:
    """End each poll at the record that brings its keys, values and headers to `max_bytes`."""
    # kafka-python has no such limit, so its two steps of a poll are wrapped.
    fetcher = consumer._fetcher
    fetch = fetcher.fetched_records
    append = fetcher._append
    bytes_left = max_bytes

    def fetch_bounded(*args: Any, **kwargs: Any) -> Any:
        nonlocal bytes_left
        bytes_left = max_bytes
        return fetch(*args, **kwargs)

    def append_bounded(drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        nonlocal bytes_left
        if part:
            part.bytes_left = bytes_left
        taken: int = append(drained, part, max_records, update_offsets)
        if part is not None:
            bytes_left = min(bytes_left, part.bytes_left)
        # Report as many as were asked for: then the poll ends.
        return taken if bytes_left > 0 else max_records

    fetcher.fetched_records = fetch_bounded
    fetcher._append = append_bounded


def seek(consumer: KafkaConsumer, partition: TopicPartition, offset: int, epoch: int) -> None:
    """Continue at an offset that was reached under a leader epoch (KIP-320).

    The next poll first asks the broker whether its log still agrees up to there, and raises
    LogTruncationError where it does not.

    kafka-python's own `seek` takes no epoch.
    """
    consumer.seek(partition, offset)
    consumer._subscription.seek(partition, OffsetAndMetadata(offset, "", epoch))


def stable_offsets(consumer: KafkaConsumer) -> dict[TopicPartition, int]:
    """A table of the end up to which each partition can be read; the consumer keeps it current.

    That end is the last stable offset, where an open transaction begins, if there is one.
    kafka-python itself keeps only the high water mark, which a reader of committed records may
    never reach.
    """
    stable: dict[TopicPartition, int] = {}
    parse = consumer._fetcher._parse_fetched_data

    def parse_and_remember(fetched: Any) -> Any:
        data = fetched.partition_data
        if not data.error_code:
            # An answer may lack it; then all up to the high water mark can be read.
            end = data.last_stable_offset
            stable[fetched.topic_partition] = (
                end if end is not None and end >= 0 else data.high_watermark
            )
        return parse(fetched)

    consumer._fetcher._parse_fetched_data = parse_and_remember
    return stable


def portions(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split records into runs of at most `PORTION_BYTES`; a larger record is a run of its own."""
    first = 0
    size = 0
    for i, record in enumerate(records):
        size += max(0, record.serialized_value_size)
        if size > PORTION_BYTES and i > first:
            yield records[first:i]
            first = i
            size = max(0, record.serialized_value_size)
    yield records[first:]
