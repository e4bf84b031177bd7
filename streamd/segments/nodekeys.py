"""The file of external node keys: each row is one byte of type, four of length, then the key's
bytes, and the row number is the node id.

A row whose key was removed by a compaction keeps its length, so that no row moves; its bytes are
zero.
"""

import struct
from collections.abc import Collection, Iterator, Sequence

from streamd.errors import CorruptionError
from streamd.events import Key

STRING = 0
INTEGER = 1
REMOVED = 2
# A row without a key has length 0 where it never had one, and else the length it had.


def encode_keys(keys: Sequence[Key | None]) -> bytes:
    """Encode keys in order of node ids: strings as UTF-8, integers as eight bytes, so that "1" is
    not 1; None is a row without a key."""
    out = bytearray()
    for key in keys:
        if key is None:
            kind = REMOVED
            data = b""
        else:
            kind, data = (
                (STRING, key.encode())
                if isinstance(key, str)
                else (INTEGER, struct.pack("<q", key))
            )
        out += struct.pack("<BI", kind, len(data)) + data
    return bytes(out)


def decode_keys(data: bytes) -> Iterator[Key | None]:
    """Decode keys in order of node ids, None for a removed one.

    Raises: CorruptionError where lengths do not add up.
    """
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<BI", data, at) if at + 5 <= len(data) else (255, 0)
        body = data[at + 5 : at + 5 + length]

        # A row that ends early, or of no known type, is damage: 255 means a torn head.
        if (
            kind not in (STRING, INTEGER, REMOVED)
            or len(body) != length
            or (kind == INTEGER and length != 8)
        ):
            raise CorruptionError(
                f"nodes.keys is damaged at byte {at}.", "restore it from a backup."
            )
        yield (
            None
            if kind == REMOVED
            else body.decode()
            if kind == STRING
            else struct.unpack("<q", body)[0]
        )
        at += 5 + length


def without_keys(data: bytes, nodes: Collection[int]) -> bytes:
    """Copy encoded keys, row lengths included, without the keys of `nodes`."""
    # Only rows up to the last node that is removed are looked at.
    out = bytearray(data)
    at = 0
    for row in range(max(nodes, default=-1) + 1):
        length = struct.unpack_from("<I", data, at + 1)[0]
        if row in nodes:
            out[at : at + 5 + length] = struct.pack("<BI", REMOVED, length) + bytes(length)
        at += 5 + length
    return bytes(out)


def reserved_node(data: bytes) -> int:
    """Find the node that compacted edges point to, the one that never had a key; -1 before there is
    one."""
    at = row = 0
    while at < len(data):
        kind, length = struct.unpack_from("<BI", data, at)
        if kind == REMOVED and length == 0:
            return row
        at = at + 5 + length
        row = row + 1
    return -1
