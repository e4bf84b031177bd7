"""Reads the records of a batch by columns: one numpy pass for each field of thousands of records.

Reading them one by one in Python would take most of ingest's time.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from kafka.consumer.fetcher import ConsumerRecord
from kafka.record.default_records import DefaultRecord
from kafka.record.util import decode_varint
from numpy.typing import NDArray

from streamd.ingest.kafka.record_headers import MAX_HEADERS, UNREADABLE, Headers, read_headers

Ints = NDArray[np.int64]

MAX_RECORDS = 4_096
"""Maximum number of records that one call reads."""
MAX_BYTES = 2**20
"""Number of bytes after which one call ends, at the next record: its result is a copy of them."""
NUMBER_BYTES = 9
"""Maximum bytes of a varint that is read here: 63 bits, so that it fits an int64."""


_record = partial(tuple.__new__, ConsumerRecord)
"""Makes a record of its fields, as `ConsumerRecord._make` does, but without a call in Python."""


class RecordColumns(NamedTuple):
    """Consecutive records of a batch, n in all.

    lengths: their bytes in the batch, int64 [n]. offsets: int64 [n]. timestamps: int64 [n], ms.
    **`*_sizes`: bytes, for headers the sum of names and contents; -1 if absent.
    """

    lengths: Ints
    offsets: Ints
    timestamps: Ints
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]
    key_sizes: Sequence[int]
    value_sizes: Sequence[int]
    header_sizes: Sequence[int]


class RecordRun:
    """Consecutive records of a batch that kafka-python handles as one record: its loop over a batch
    reads these attributes, and passes the run on as the record's value."""

    key = None
    headers = None
    checksum = None

    def __init__(self, columns: RecordColumns, timestamp_type: int) -> None:
        self.columns = columns
        self.timestamp_type = timestamp_type
        self.value = self
        self.offset = int(columns.offsets[-1])
        self.timestamp = int(columns.timestamps[-1])
        self.size_in_bytes = int(columns.lengths.sum())

    def __len__(self) -> int:
        return len(self.columns.keys)

    def validate_crc(self) -> bool:
        """Always True: the batch has the checksum, a record has none."""
        return True

    def sizes(self) -> Ints:
        """Bytes of key, value and headers of each record."""
        columns = self.columns
        parts = np.array([columns.key_sizes, columns.value_sizes, columns.header_sizes], np.int64)
        sizes: Ints = np.maximum(parts, 0).sum(axis=0)
        return sizes

    def records_for(self, run_record: ConsumerRecord) -> list[ConsumerRecord]:
        """The records as a consumer returns them. run_record: the record that has this run as
        value, for topic, partition and leader epoch."""
        columns = self.columns
        count = len(self)
        # Make tuples without a call in Python for each.
        rows = zip(
            [run_record.topic] * count,
            [run_record.partition] * count,
            [run_record.leader_epoch] * count,
            columns.offsets.tolist(),
            columns.timestamps.tolist(),
            [self.timestamp_type] * count,
            columns.keys,
            columns.values,
            columns.headers,
            [None] * count,
            columns.key_sizes,
            columns.value_sizes,
            columns.header_sizes,
            strict=True,
        )
        return list(map(_record, rows))


def columns_of(records: Sequence[DefaultRecord]) -> RecordColumns:
    """The columns of records that were read one by one."""
    return RecordColumns(
        np.array([r.size_in_bytes for r in records], np.int64),
        np.array([r.offset for r in records], np.int64),
        np.array([r.timestamp for r in records], np.int64),
        [r.key for r in records],
        [r.value for r in records],
        [r.headers for r in records],
        [-1 if r.key is None else len(r.key) for r in records],
        [-1 if r.value is None else len(r.value) for r in records],
        [_size(r.headers) for r in records],
    )


def read_columns(batch: Any, buffer: bytes, pos: int, count: int) -> tuple[RecordColumns, int]:
    """Read up to `count` records of Kafka's message format 2 from a position on.

    batch: has their first offset, and a first timestamp of less than 62 bits. Returns: the records,
    and the position after them.

    It stops before the first record that is malformed or has a number of more than 63 bits; the
    caller reads that one alone. Raises: nothing.
    """
    # Only the lengths must be read one by one.
    starts, ends = _bounds(buffer, pos, min(count, MAX_RECORDS))
    data = np.frombuffer(buffer, np.uint8)
    lengths = ends - starts

    # A byte of attributes, then the numbers; malformed ones clear `is_sound` and raise nothing.
    at, is_sound = starts + 1, lengths > 0
    is_sound &= data[np.minimum(starts, len(data) - 1)] < 0x80
    timestamp_deltas, at = _numbers(data, at, is_sound)
    offset_deltas, at = _numbers(data, at, is_sound)
    is_sound &= (offset_deltas >= 0) & (offset_deltas <= batch.last_offset_delta)
    key_starts, key_ends, at = _parts(data, at, ends, is_sound)
    value_starts, value_ends, at = _parts(data, at, ends, is_sound)
    num_headers, at = _numbers(data, at, is_sound)
    is_sound &= (num_headers >= 0) & (num_headers <= MAX_HEADERS)
    is_sound &= (num_headers > 0) | (at == ends)

    # Headers are read by record, since few records have the same.
    num_sound = len(starts) if is_sound.all() else int(np.argmin(is_sound))
    headers, header_sizes = _headers(buffer, at, ends, num_headers[:num_sound])
    n = len(headers)
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        timestamps = np.full(n, batch.max_timestamp, np.int64)
    else:
        timestamps = np.maximum(batch.first_timestamp + timestamp_deltas[:n], -1)
    columns = RecordColumns(
        lengths[:n],
        batch.base_offset + offset_deltas[:n],
        timestamps,
        _slices(buffer, key_starts[:n], key_ends[:n]),
        _slices(buffer, value_starts[:n], value_ends[:n]),
        headers,
        np.maximum(key_ends[:n] - key_starts[:n], -1).tolist(),
        np.maximum(value_ends[:n] - value_starts[:n], -1).tolist(),
        header_sizes,
    )
    return columns, int(ends[n - 1]) if n else pos


def _bounds(buffer: bytes, pos: int, count: int) -> tuple[Ints, Ints]:
    """Start (after the length) and end of each record that is complete in the buffer."""
    starts, ends = [], []
    size, stop = len(buffer), pos + MAX_BYTES
    try:
        for _ in range(count):
            # A length below 64 is one byte and one below 8,192 two; the sign is the lowest bit.
            length = buffer[pos]
            if length < 0x80:
                pos += 1
            elif (more := buffer[pos + 1]) < 0x80:
                length = length & 0x7F | more << 7
                pos += 2
            else:
                length, pos = decode_varint(buffer, pos)
                length <<= 1
            if length & 1 or length < 0:
                break
            length >>= 1
            end = pos + length
            if end > size:
                break
            starts.append(pos)
            ends.append(end)
            pos = end
            if pos >= stop:
                break
    except (ValueError, IndexError):
        # The caller reads that record alone, and reports the error.
        pass
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _numbers(data: NDArray[np.uint8], at: Ints, is_sound: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Read a zigzag varint at each position. is_sound: cleared for a varint that is too long or
    ends beyond the data. Returns: values and the positions after them, undefined for those that are
    not sound."""
    last = len(data) - 1
    byte = data[np.minimum(at, last)]
    found = (byte & 0x7F).astype(np.int64)
    size = np.ones(len(at), np.int64)
    rows = np.flatnonzero(byte & 0x80)
    for number in range(1, NUMBER_BYTES):
        if not len(rows):
            break
        byte = data[np.minimum(at[rows] + number, last)]
        found[rows] |= (byte & 0x7F).astype(np.int64) << (7 * number)
        size[rows] += 1
        rows = rows[byte >= 0x80]
    is_sound[rows] = False
    at = at + size
    is_sound &= at <= len(data)
    return (found >> 1) ^ -(found & 1), at


def _parts(
    data: NDArray[np.uint8], at: Ints, ends: Ints, is_sound: NDArray[np.bool_]
) -> tuple[Ints, Ints, Ints]:
    """Read a length at each position and skip that many bytes. is_sound: cleared if they reach
    beyond the record. Returns: start and end, which is less than the start if the part is absent,
    and the position after it."""
    size, start = _numbers(data, at, is_sound)
    # A length has up to 62 bits, so its sum with a position cannot overflow.
    end = start + size
    is_sound &= end <= ends
    return start, end, np.maximum(start, end)


def _slices(buffer: bytes, starts: Ints, ends: Ints) -> list[bytes | None]:
    # An absent part ends before it starts.
    if (ends < starts).all():
        return [None] * len(starts)
    return [
        buffer[start:end] if end >= start else None
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _headers(
    buffer: bytes, at: Ints, ends: Ints, num_headers: Ints
) -> tuple[list[Headers], list[int]]:
    """Headers and their bytes of each record, up to the first with malformed ones."""
    headers: list[Headers] = []
    sizes: list[int] = []
    if not num_headers.any():
        return [[] for _ in num_headers], [-1] * len(num_headers)
    for count, pos, end in zip(num_headers.tolist(), at.tolist(), ends.tolist(), strict=False):
        found: Headers = []
        if count:
            try:
                if read_headers(buffer, pos, count, found) != end:
                    break
            except UNREADABLE:
                break
        headers.append(found)
        sizes.append(_size(found))
    return headers, sizes


def _size(headers: Headers) -> int:
    return sum(len(name) + len(content or b"") for name, content in headers) if headers else -1
