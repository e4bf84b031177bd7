"""Kernels that parse TFRecord frames and tf.train.Example records.

The wire format: https://protobuf.dev/programming-guides/encoding. The scanner parses records in the
usual form of writers: packed lists, a key before its value, no field twice. A record in any other
form is marked SLOW, without results. Every position is checked against the end of the enclosing
message before it is read.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.jit import inner, kernel

FLOAT, INT64, BYTES = 2, 3, 1
"""Kinds of a list: its field number in the message Feature; 0 for a feature without a list."""
DONE, FULL, TRUNCATED, BAD_LENGTH, BAD_DATA = 0, 1, 2, 3, 4
"""Reasons for which `scan_frames` ends: end of the data, arrays are full, or an error of a
record."""
FAST, SLOW = 0, 1
HEADER, FOOTER = 12, 4
"""Bytes before and after the data of a record: its length with a checksum, and the data's
checksum."""


def _crc_tables() -> NDArray[np.uint32]:
    """Tables of CRC32C for 8 bytes per step: [i, b] is the CRC of byte b followed by i zero
    bytes."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            # The polynomial 0x1EDC6F41 with its bits reversed.
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for i in range(1, 8):
        before = tables[i - 1]
        tables[i] = (before >> np.uint32(8)) ^ tables[0][before & np.uint32(255)]
    return tables


TABLES = _crc_tables()


@inner
def _word(data: NDArray[Any], at: int) -> Any:
    """The little-endian uint32 at a position."""
    return (
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@inner
def _masked_crc(data: NDArray[Any], start: int, end: int) -> Any:
    """The masked CRC32C of data[start:end]."""
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        low = _word(data, at) ^ crc
        crc = (
            TABLES[7, low & np.uint32(255)]
            ^ TABLES[6, (low >> np.uint32(8)) & np.uint32(255)]
            ^ TABLES[5, (low >> np.uint32(16)) & np.uint32(255)]
            ^ TABLES[4, low >> np.uint32(24)]
            ^ TABLES[3, data[at + 4]]
            ^ TABLES[2, data[at + 5]]
            ^ TABLES[1, data[at + 6]]
            ^ TABLES[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = (crc >> np.uint32(8)) ^ TABLES[0, (crc ^ np.uint32(data[at])) & np.uint32(255)]
        at += 1
    crc = crc ^ np.uint32(0xFFFFFFFF)
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return np.uint32(rotated + np.uint32(0xA282EAD8))


@kernel
def scan_frames(
    data: NDArray[Any], begin: int, start_R: NDArray[Any], end_R: NDArray[Any]
) -> tuple[int, int, int]:
    """Find the records of a TFRecord file and check both checksums of each.

    data: uint8. begin: index of the first record's first byte. start_R, end_R: written, the bounds
    of each record's data. Returns: the number of records, the index after the last of them, and the
    reason for the end.
    """
    at: Any = begin
    found = 0
    size = len(data)
    while at < size:
        if found == len(start_R):
            return found, at, FULL
        if size - at < HEADER:
            return found, at, TRUNCATED
        if _masked_crc(data, at, at + 8) != _word(data, at + 8):
            return found, at, BAD_LENGTH
        length: Any = np.int64(_word(data, at)) | np.int64(_word(data, at + 4)) << np.int64(32)
        # As a signed number, a length beyond 2^63 is negative.
        if length < 0 or length > size - at - HEADER - FOOTER:
            return found, at, TRUNCATED
        start = at + HEADER
        end = start + length
        if _masked_crc(data, start, end) != _word(data, end):
            return found, at, BAD_DATA
        start_R[found] = start
        end_R[found] = end
        found += 1
        at = end + FOOTER
    return found, at, DONE


@inner
def _length(data: NDArray[Any], at: Any, end: int) -> tuple[Any, Any]:
    """Parse a length at `at`. Returns: start and end of the bytes that it counts; (-1, -1) if they
    do not fit before `end`, or if the varint has more than five bytes."""
    value: Any = np.int64(0)
    # Five bytes have 35 bits, more than any length that protobuf allows.
    for i in range(5):
        if at >= end:
            return -1, -1
        byte = np.int64(data[at])
        at += 1
        value |= (byte & np.int64(127)) << np.int64(7 * i)
        if byte < 128:
            return (at, at + value) if value <= end - at else (-1, -1)
    return -1, -1


@inner
def _key(
    data: NDArray[Any],
    start: int,
    end: int,
    names: NDArray[Any],
    name_K: NDArray[Any],
    hint: int,
) -> int:
    """The index of a key among the names, -1 if it is none of them. hint: index to compare first,
    since writers keep an order."""
    number = len(name_K) - 1
    # Begin with the expected key, and wrap around once.
    for i in range(number):
        k = hint + i
        if k >= number:
            k -= number
        if name_K[k + 1] - name_K[k] != end - start:
            continue
        same = True
        for j in range(end - start):
            if data[start + j] != names[name_K[k] + j]:
                same = False
                break
        if same:
            return k
    return -1


@inner
def _count_ints(data: NDArray[Any], start: int, end: int) -> int:
    """The number of varints, -1 if one is incomplete or exceeds 64 bits."""
    count = 0
    length = 0
    for at in range(start, end):
        length += 1
        if data[at] < 128:
            # The tenth byte has room for the highest of 64 bits only.
            if length == 10 and data[at] > 1:
                return -1
            count += 1
            length = 0
        elif length == 10:
            return -1
    return count if length == 0 else -1


@inner
def _count_bytes(data: NDArray[Any], start: int, end: int) -> int:
    """The number of strings of a bytes list, -1 if it has another form."""
    count = 0
    at = start
    while at < end:
        if data[at] != 0x0A:
            return -1
        value, behind = _length(data, at + 1, end)
        if value < 0:
            return -1
        count += 1
        at = behind
    return count


@inner
def _scan_list(data: NDArray[Any], start: int, end: int) -> tuple[int, int, int, int]:
    """Parse a feature's list. Returns: its kind, start and end of its values, and their number (-1
    if the feature has another form)."""
    if start == end:
        return 0, start, start, 0
    tag = data[start]
    # One of the three lists: field 1, 2 or 3, preceded by a length.
    if tag != 0x0A and tag != 0x12 and tag != 0x1A:
        return 0, 0, 0, -1
    at, behind = _length(data, start + 1, end)
    if behind != end:
        return 0, 0, 0, -1
    kind = tag >> 3
    if at == end:
        return kind, at, at, 0
    if kind == BYTES:
        return kind, at, end, _count_bytes(data, at, end)
    # A packed list is a single field with all values.
    if data[at] != 0x0A:
        return 0, 0, 0, -1
    at, behind = _length(data, at + 1, end)
    if behind != end:
        return 0, 0, 0, -1
    if kind == INT64:
        return kind, at, end, _count_ints(data, at, end)
    return kind, at, end, (end - at) // 4 if (end - at) % 4 == 0 else -1


@inner
def _scan_record(
    data: NDArray[Any],
    at: int,
    end: int,
    names: NDArray[Any],
    name_K: NDArray[Any],
    kind_K: NDArray[Any],
    start_K: NDArray[Any],
    end_K: NDArray[Any],
    count_K: NDArray[Any],
) -> int:
    """Find the lists of one record. Returns: FAST, or SLOW if it has another form."""
    kind_K[:] = 0
    count_K[:] = 0
    if at == end:
        return FAST
    # An Example has one field, the message Features, which must fill the record.
    if data[at] != 0x0A:
        return SLOW
    at, behind = _length(data, at + 1, end)
    if behind != end:
        return SLOW
    hint = 0
    while at < end:
        # Parse an entry of the map: its key, then its value.
        if data[at] != 0x0A:
            return SLOW
        at, behind = _length(data, at + 1, end)
        if at < 0 or at == behind or data[at] != 0x0A:
            return SLOW
        key, key_end = _length(data, at + 1, behind)
        if key < 0 or key_end == behind or data[key_end] != 0x12:
            return SLOW
        value, value_end = _length(data, key_end + 1, behind)
        if value_end != behind:
            return SLOW
        kind, first, last, count = _scan_list(data, value, value_end)
        if count < 0:
            return SLOW
        k = _key(data, key, key_end, names, name_K, hint)
        if k >= 0:
            # The last value of a repeated key counts.
            kind_K[k] = kind
            start_K[k] = first
            end_K[k] = last
            count_K[k] = count
            hint = k + 1
            if hint == len(kind_K):
                hint = 0
        at = behind
    return FAST


@kernel
def scan_examples(
    data: NDArray[Any],
    start_R: NDArray[Any],
    end_R: NDArray[Any],
    names: NDArray[Any],
    name_K: NDArray[Any],
    want_K: NDArray[Any],
    kind_RK: NDArray[Any],
    start_RK: NDArray[Any],
    end_RK: NDArray[Any],
    count_RK: NDArray[Any],
    state_R: NDArray[Any],
) -> tuple[int, int]:
    """Find the lists of named features in records.

    names: uint8, all names concatenated. name_K: int64[K + 1], the start of each. want_K: the
    expected kind of each. Writes for each record and name the kind of the list, start and end of
    its values, and their number; and for each record FAST or SLOW. Returns: the number of SLOW
    records, and the number of lists with values of another kind.
    """
    slow = 0
    wrong = 0
    for r in range(len(start_R)):
        state_R[r] = _scan_record(
            data,
            start_R[r],
            end_R[r],
            names,
            name_K,
            kind_RK[r],
            start_RK[r],
            end_RK[r],
            count_RK[r],
        )
        slow += state_R[r]
        for k in range(len(want_K)):
            if count_RK[r, k] > 0 and kind_RK[r, k] != want_K[k]:
                wrong += 1
    return slow, wrong


@kernel
def fill_values(
    data: NDArray[Any],
    want_K: NDArray[Any],
    start_RK: NDArray[Any],
    end_RK: NDArray[Any],
    count_RK: NDArray[Any],
    ints: NDArray[Any],
    float_bytes: NDArray[Any],
    text_start: NDArray[Any],
    text_end: NDArray[Any],
) -> None:
    """Write the values that `scan_examples` has found, by name, then by record.

    want_K: the kind of each name, which all of its lists with values have. ints: int64.
    float_bytes: uint8, four for each value. text_start, text_end: int64, bounds of each string in
    the data.
    """
    int_at = 0
    float_at = 0
    text_at = 0
    for k in range(len(want_K)):
        for r in range(len(start_RK)):
            if count_RK[r, k] == 0:
                continue
            at = start_RK[r, k]
            end = end_RK[r, k]
            if want_K[k] == FLOAT:
                for i in range(end - at):
                    float_bytes[float_at + i] = data[at + i]
                float_at += end - at
            elif want_K[k] == INT64:
                while at < end:
                    value = np.uint64(0)
                    shift = np.uint64(0)
                    # Seven bits in each byte, the lowest first.
                    while data[at] >= 128:
                        value |= np.uint64(data[at] & 127) << shift
                        shift += np.uint64(7)
                        at += 1
                    value |= np.uint64(data[at]) << shift
                    at += 1
                    ints[int_at] = np.int64(value)
                    int_at += 1
            else:
                while at < end:
                    # Strings are not copied here: their bounds refer to the data.
                    text_start[text_at], at = _length(data, at + 1, end)
                    text_end[text_at] = at
                    text_at += 1


@kernel
def min_and_max(values: NDArray[Any]) -> tuple[int, int]:
    """The minimum and the maximum of int64 values, at least one."""
    least = most = values[0]
    for value in values:
        least = min(least, value)
        most = max(most, value)
    return least, most


@kernel
def write_varints(values: NDArray[Any], out: NDArray[Any]) -> int:
    """Write int64 values as varints. out: uint8, ten bytes for each value. Returns: the number of
    written bytes."""
    at = 0
    for i in range(len(values)):
        # A negative number has all of the highest bits set, so it takes ten bytes.
        value = np.uint64(values[i])
        while value >= np.uint64(128):
            out[at] = np.uint8(value & np.uint64(127)) | np.uint8(128)
            at += 1
            value >>= np.uint64(7)
        out[at] = np.uint8(value)
        at += 1
    return at
