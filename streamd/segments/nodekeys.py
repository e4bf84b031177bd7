"""The file of external node keys: each row is one byte of type and node set, four of length, then
the key's bytes, and the row number is the node id.

A row whose key was removed by a compaction keeps its length, so that no row moves; its bytes are
zero.
"""

import struct
from collections.abc import Collection, Iterator, Sequence

from streamd.errors import CorruptionError
from streamd.events import Key, SetKey

STRING = 0
INTEGER = 1
REMOVED = 2
SET_SHIFT = 2
"""The upper six bits of the first byte are the number of the node set."""
MAX_NODE_SETS = 1 << (8 - SET_SHIFT)
# A row without a key has length 0 where it never had one, and else the length it had.


def encode_keys(keys: Sequence[Key | None]) -> bytes:
    """Encode keys in order of node ids: strings as UTF-8, integers as eight bytes, so that "1" is
    not 1; None is a row without a key."""
    out = bytearray()
    for key in keys:
        node_set, plain = key if isinstance(key, SetKey) else (0, key)
        if plain is None:
            kind = REMOVED
            data = b""
        elif isinstance(plain, str):
            kind, data = STRING, plain.encode()
        else:
            kind, data = INTEGER, struct.pack("<q", plain)
        out += struct.pack("<BI", kind | node_set << SET_SHIFT, len(data)) + data
    return bytes(out)


def decode_keys(data: bytes) -> Iterator[Key | None]:
    """Decode keys in order of node ids, None for a removed one.

    Raises: CorruptionError where lengths do not add up.
    """
    for node_set, key in decode_sets(data):
        yield SetKey(node_set, key) if node_set and key is not None else key


def decode_sets(data: bytes) -> Iterator[tuple[int, str | int | None]]:
    """Decode (node set, key within it) in order of node ids, the key None for a removed one.

    Raises: CorruptionError where lengths do not add up.
    """
    at = 0
    while at < len(data):
        first, length = struct.unpack_from("<BI", data, at) if at + 5 <= len(data) else (255, 0)
        kind = first & (1 << SET_SHIFT) - 1
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
        if kind == STRING:
            yield first >> SET_SHIFT, body.decode()
        else:
            yield first >> SET_SHIFT, None if kind == REMOVED else struct.unpack("<q", body)[0]
        at += 5 + length


def without_keys(data: bytes, nodes: Collection[int]) -> bytes:
    """Copy encoded keys, row lengths included, without the keys of `nodes`."""
    # Only rows up to the last node that is removed are looked at.
    out = bytearray(data)
    at = 0
    for row in range(max(nodes, default=-1) + 1):
        length = struct.unpack_from("<I", data, at + 1)[0]
        if row in nodes:
            kind = REMOVED | out[at] >> SET_SHIFT << SET_SHIFT
            out[at : at + 5 + length] = struct.pack("<BI", kind, length) + bytes(length)
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
