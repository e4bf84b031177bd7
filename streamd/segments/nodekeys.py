"""External node keys on disk: one byte of type, four of length, then the bytes; the row number is the node id."""

import struct
from collections.abc import Iterator, Sequence

from streamd.errors import CorruptionError
from streamd.events import Key

STRING, INTEGER = 0, 1


def encode_keys(keys: Sequence[Key]) -> bytes:
    """Keys in order; strings as UTF-8, integers as eight bytes, so that "1" is not 1."""
    out = bytearray()
    for key in keys:
        kind, data = (STRING, key.encode()) if isinstance(key, str) else (INTEGER, struct.pack("<q", key))
        out += struct.pack("<BI", kind, len(data)) + data
    return bytes(out)


def decode_keys(data: bytes) -> Iterator[Key]:
    """Keys in order. Raises: CorruptionError where lengths do not add up."""
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<BI", data, at) if at + 5 <= len(data) else (255, 0)
        body = data[at + 5: at + 5 + length]
        if kind not in (STRING, INTEGER) or len(body) != length or (kind == INTEGER and length != 8):
            raise CorruptionError(f"nodes.keys is damaged at byte {at}.", "restore it from a backup.")
        yield body.decode() if kind == STRING else struct.unpack("<q", body)[0]
        at += 5 + length
