"""Headers of Kafka records, read from the bytes of a batch."""

import struct

from kafka.errors import CorruptRecordError
from kafka.record.util import decode_varint

Headers = list[tuple[str, bytes | None]]
MAX_HEADERS = 1_000
"""Maximum number of headers of a record: each may take two bytes in a batch and a hundred in
memory."""
UNREADABLE = (ValueError, IndexError, OverflowError, struct.error, CorruptRecordError)
"""Errors that reading a malformed record raises."""


def nullable_bytes(buffer: bytes, pos: int) -> tuple[bytes | None, int]:
    """Read a length and that many bytes; None if the length is negative. Raises: ValueError."""
    length, pos = decode_varint(buffer, pos)
    if length < 0:
        return None, pos
    # A slice would silently be shorter.
    if pos + length > len(buffer):
        raise ValueError(f"a field of {length} bytes exceeds the remaining {len(buffer) - pos}")
    return buffer[pos : pos + length], pos + length


_names: dict[bytes, str] = {}
"""Header names that were read before, at most MAX_NAMES, each shorter than SHORT bytes."""
MAX_NAMES = 1_024
SHORT = 64
"""Lengths below this are encoded as one byte, which is even (zigzag)."""


def read_headers(buffer: bytes, pos: int, count: int, headers: Headers) -> int:
    """Read `count` headers and append them. Returns: the position after them. Raises: UNREADABLE.

    Known names and short contents are read without a call, since calls would take most of the time
    of headers.
    """
    end = len(buffer)
    for _ in range(count):
        # The name.
        start = pos + 1
        double = buffer[pos]
        pos = start + (double >> 1)
        if double & 0x81 or pos > end or (text := _names.get(buffer[start:pos])) is None:
            name, pos = nullable_bytes(buffer, start - 1)
            text = (name or b"").decode(errors="replace")
            if name is not None and len(name) < SHORT and len(_names) < MAX_NAMES:
                _names[name] = text

        # The content.
        start = pos + 1
        double = buffer[pos]
        pos = start + (double >> 1)
        if double & 0x81 or pos > end:
            content, pos = nullable_bytes(buffer, start - 1)
            headers.append((text, content))
        else:
            headers.append((text, buffer[start:pos]))
    return pos
