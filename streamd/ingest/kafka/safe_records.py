"""Makes kafka-python read record batches safely: unreadable bytes become a refused record.

kafka-python decodes records inside a generator. An error in there, such as a header name that is
not UTF-8, ends the generator for good, and the next poll never returns. It also expands a
compressed batch without a limit. `SafeBatch` replaces its batch class. A refused record has the
reason as its value and the header REFUSED_HEADER, so that the decoder handles it like any other
invalid value.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint
from kafka.structs import OffsetAndMetadata
from numpy.typing import NDArray

from streamd.decode.wire import REFUSED_HEADER
from streamd.ingest.kafka.decompression import expand
from streamd.ingest.kafka.record_columns import (
    MAX_BYTES,
    MAX_RECORDS,
    RecordRun,
    columns_of,
    read_columns,
)
from streamd.ingest.kafka.record_headers import (
    MAX_HEADERS,
    UNREADABLE,
    Headers,
    nullable_bytes,
    read_headers,
)

CHECKSUM_TRIES = 3
"""Number of fetches of a batch with a wrong checksum before it is refused: the network may have
damaged it."""
MAX_INT64 = 2**63 - 1
MIN_COLUMN = 32
"""Smallest number of records that are read by columns: one call takes as long as some 20 records
one by one."""
PORTION_BYTES = 262_144
"""Maximum bytes of records that are decoded between two heartbeats, unless one record is larger.
Two bytes can make a dead letter, so this many can take seconds."""


class SafeBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A record batch with an iteration that never raises.

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
        # The sum of a larger timestamp and a record's delta may not fit an int64.
        self._is_read_one_by_one = (
            self._num_records < MIN_COLUMN or abs(self.first_timestamp) >= 2**62
        )

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
            # Records are slices of bytes.
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

    def __next__(self) -> Any:
        """The next records, at least one; of a control batch its only record."""
        if self._next_record_index >= self._num_records:
            raise StopIteration
        if self.is_control_batch:
            self._next_record_index += 1
            return self._control_record()
        if not (self._refused or self._is_read_one_by_one):
            count = self._num_records - self._next_record_index
            columns, self._pos = read_columns(self, self._buffer, self._pos, count)
            if len(columns.keys):
                self._next_record_index += len(columns.keys)
                return RecordRun(columns, self.timestamp_type)
            # Else each malformed record would cost a pass over thousands.
            self._is_read_one_by_one = True
        return RecordRun(columns_of(self._read_one_by_one()), self.timestamp_type)

    next = __next__

    def _read_one_by_one(self) -> list[DefaultRecord]:
        """The next records; an unreadable one becomes a refused record."""
        if self._refused:
            self._next_record_index += 1
            return [self._refused_record(self.base_offset, self._refused)]
        records: list[DefaultRecord] = []
        stop = self._pos + MAX_BYTES
        while self._next_record_index < self._num_records and len(records) < MAX_RECORDS:
            self._next_record_index += 1
            start = self._pos
            try:
                records.append(self._read_record())
            except UNREADABLE as error:
                records.append(self._skip_record(start, error))
            if self._pos >= stop:
                break
        return records

    def _read_record(self) -> DefaultRecord:
        """Read the record at `_pos`, and move `_pos` after it (Kafka's message format 2).

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
        key, pos = nullable_bytes(buffer, pos)
        value, pos = nullable_bytes(buffer, pos)
        num_headers, pos = decode_varint(buffer, pos)
        if num_headers > MAX_HEADERS:
            raise ValueError(f"a record has {num_headers} headers, at most {MAX_HEADERS} are read")

        # The headers end the record, which shows whether its length was right.
        headers: Headers = []
        if num_headers > 0:
            pos = read_headers(buffer, pos, num_headers, headers)
        if num_headers < 0 or pos - start != length or pos > end:
            raise ValueError(f"the fields of a record do not add up to its {length} bytes")

        # Offsets and timestamps are relative to the batch's.
        offset = self.base_offset + offset_delta
        if not self.base_offset <= offset <= self.last_offset:
            raise ValueError(f"a record has offset {offset}, which is not in its batch")
        self._pos = pos
        append_time = self.timestamp_type == self.LOG_APPEND_TIME
        timestamp = self.max_timestamp if append_time else self.first_timestamp + timestamp_delta
        timestamp = min(max(timestamp, -1), MAX_INT64)
        return DefaultRecord(length, offset, timestamp, self.timestamp_type, key, value, headers)

    def _skip_record(self, start: int, error: Exception) -> DefaultRecord:
        """A refused record for the one at `start`, or for all remaining ones if its end is
        unknown."""
        # Its own length and offset may be wrong: they count only if both are within the batch.
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

        # If the end is known, only this record is lost, else all that follow it in the batch.
        if has_end:
            self._pos = body + length
            return self._refused_record(self.base_offset + offset_delta, f"a record: {error}")
        self._next_record_index = self._num_records
        return self._refused_record(
            self.last_offset, f"all up to offset {self.last_offset} of a batch: {error}"
        )

    def _control_record(self) -> Any:
        """Read the record that ends a transaction; None, which means no abort, if it is
        malformed."""
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
        """A record with the reason why the one at `offset` was refused."""
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


class SafeRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The fetched records of a partition, handed out up to a number of bytes.

    A compressed megabyte may hold gigabytes. kafka-python's own loop reads the batches and their
    transactions, and handles each run of records as one record.
    """

    bytes_left = 2**62
    """Bytes that the current poll may still return; no limit until `bound_polls` sets one."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._pending: list[ConsumerRecord] = []
        self._ends: NDArray[np.int64] = np.empty(0, np.int64)
        self._at = 0
        self._is_begun = False

    def take(self, n: int | None = None) -> list[ConsumerRecord]:
        """At most `n` records; the one that uses up `bytes_left` is the last."""
        # Raise an error that the last call deferred first.
        self._maybe_raise_next_inline_exception()
        records: list[ConsumerRecord] = []
        try:
            while (n is None or len(records) < n) and (
                self._at < len(self._pending) or self._read()
            ):
                at = self._at
                used = int(self._ends[at - 1]) if at else 0
                stop = int(np.searchsorted(self._ends, used + self.bytes_left)) + 1
                if n is not None:
                    stop = min(stop, at + n - len(records))
                part = self._pending[at:stop]
                self._at += len(part)
                self.bytes_left -= int(self._ends[self._at - 1]) - used
                records += part
                self.next_fetch_offset = part[-1].offset + 1
                if self.bytes_left <= 0:
                    break
        except Exception as error:  # noqa: BLE001 - as kafka-python: deliver what was read first
            if not records:
                raise
            self._next_inline_exception = error
        return records

    def _read(self) -> bool:
        """Make the next run of records pending. Returns: whether there was one."""
        run_record = next(self.record_iterator, None)
        if run_record is None:
            return False
        run: RecordRun = run_record.value
        self._pending = run.records_for(run_record)
        # Records count with their expanded sizes.
        self._ends = np.cumsum(run.sizes())
        # kafka-python has counted the run as one record.
        self.records_read += len(run) - 1
        # A batch, and so its first run, may begin before the requested offset.
        self._at = 0 if self._is_begun else int(np.argmax(run.columns.offsets >= self.fetch_offset))
        self._is_begun = True
        return True


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

    def bounded_fetch(*args: Any, **kwargs: Any) -> Any:
        nonlocal bytes_left
        bytes_left = max_bytes
        return fetch(*args, **kwargs)

    def bounded_append(drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        nonlocal bytes_left
        if part:
            part.bytes_left = bytes_left
        taken: int = append(drained, part, max_records, update_offsets)
        if part is not None:
            bytes_left = min(bytes_left, part.bytes_left)
        # Report as many as were requested: then the poll ends.
        return taken if bytes_left > 0 else max_records

    fetcher.fetched_records = bounded_fetch
    fetcher._append = bounded_append


def note_fetches(consumer: KafkaConsumer, note: Callable[[], None]) -> None:
    """Call `note` after each answer to a fetch, also one without records, from the client's own
    thread."""
    # kafka-python has no listener for it, so its callback is wrapped.
    handle = consumer._fetcher._handle_fetch_response

    def handle_and_note(*args: Any) -> None:
        handle(*args)
        note()

    consumer._fetcher._handle_fetch_response = handle_and_note


def seek(consumer: KafkaConsumer, partition: TopicPartition, offset: int, epoch: int) -> None:
    """Continue at an offset that was reached under a leader epoch (KIP-320).

    The next poll first asks the broker whether its log still agrees up to there, and raises
    LogTruncationError if it does not.

    kafka-python's own `seek` takes no epoch.
    """
    consumer.seek(partition, offset)
    consumer._subscription.seek(partition, OffsetAndMetadata(offset, "", epoch))


def topic_ids(consumer: KafkaConsumer, topics: Sequence[str]) -> dict[str, str]:
    """The ids of topics in the client's newest metadata, without topics that have none (brokers
    before 2.8).

    kafka-python fetches by name and offset, so it continues reading in a topic that was created
    again.
    """
    ids = {topic: consumer._cluster.topic_id(topic) for topic in topics}
    # A topic that is gone may have the id 0.
    return {topic: str(found) for topic, found in ids.items() if found is not None and found.int}


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
            # A response may lack it; then all records up to the high water mark can be read.
            end = data.last_stable_offset
            stable[fetched.topic_partition] = (
                end if end is not None and end >= 0 else data.high_watermark
            )
        return parse(fetched)

    consumer._fetcher._parse_fetched_data = parse_and_remember
    return stable


def value_sizes(records: Sequence[Any]) -> NDArray[np.int64]:
    """Bytes of the value of each record, 0 if it is absent: int64 [n]."""
    sizes = np.fromiter(map(_value_size, records), np.int64, len(records))
    return np.maximum(sizes, 0)


_value_size = attrgetter("serialized_value_size")


def portions(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split records into runs of at most `PORTION_BYTES`; a larger record is a run of its own."""
    ends = np.cumsum(value_sizes(records))
    first = used = 0
    while first < len(records):
        stop = int(np.searchsorted(ends, used + PORTION_BYTES, side="right"))
        stop = max(stop, first + 1)
        yield records[first:stop]
        first, used = stop, int(ends[stop - 1])
