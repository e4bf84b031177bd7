"""The file of external node keys: each row is one byte of type and node set, four of length, then
the key's bytes; the row number is the node id.

If a compaction removed its key, a row keeps its length, so that no row moves; its bytes are zero.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.errors import CorruptionError
from streamd.events import Bools, Int64, Key, SetKey

STRING = 0
INTEGER = 1
REMOVED = 2
SET_SHIFT = 2
"""The upper six bits of the first byte are the number of the node set."""
MAX_NODE_SETS = 1 << (8 - SET_SHIFT)
# A row without a key has length 0 if it never had one, else the length of the removed key.
KIND = (1 << SET_SHIFT) - 1
"""The lower two bits of the first byte are the type."""
ROW_HEAD = 5
"""Bytes of type, node set and length."""
INTEGER_BYTES = 8
SLICE_BYTES = 1 << 20
"""Bytes of rows read at once: some 40,000 rows, or 10 ms."""


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

    Raises: CorruptionError if lengths do not add up.
    """
    for node_set, key in decode_sets(data):
        yield SetKey(node_set, key) if node_set and key is not None else key


def decode_sets(data: bytes) -> Iterator[tuple[int, str | int | None]]:
    """Decode (node set, key within it) in order of node ids, the key None for a removed one.

    Raises: CorruptionError if lengths do not add up.
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
            raise _damage_at(at)
        if kind == STRING:
            yield first >> SET_SHIFT, body.decode()
        else:
            yield first >> SET_SHIFT, None if kind == REMOVED else struct.unpack("<q", body)[0]
        at += 5 + length


def without_keys(data: bytes, nodes: Collection[int]) -> bytes:
    """Copy encoded keys, row lengths included, without the keys of `nodes`."""
    # Read only the rows up to the last removed node.
    out = bytearray(data)
    at = 0
    for row in range(max(nodes, default=-1) + 1):
        length = struct.unpack_from("<I", data, at + 1)[0]
        if row in nodes:
            kind = REMOVED | out[at] >> SET_SHIFT << SET_SHIFT
            out[at : at + 5 + length] = struct.pack("<BI", kind, length) + bytes(length)
        at += 5 + length
    return bytes(out)


class KeySlice(NamedTuple):
    """Complete rows of the file of keys.

    first: number of the first row. data: their bytes. start_R: int64, start of each row in `data`.
    """

    first: int
    data: bytes
    start_R: Int64

    def stored(self, is_gone: Callable[[Int64], Bools]) -> dict[int, Key]:
        """The keys still stored for nodes that are gone: node id -> key."""
        end_R = [*self.start_R[1:].tolist(), len(self.data)]
        found = {}
        for row in self._gone(is_gone).tolist():
            key = next(decode_keys(self.data[self.start_R[row] : end_R[row]]))
            if key is not None:
                found[self.first + row] = key
        return found

    def without(self, is_gone: Callable[[Int64], Bools]) -> bytes:
        """The bytes without the keys of nodes that are gone."""
        return without_keys(self.data, set(self._gone(is_gone).tolist()))

    def reserved(self) -> int:
        """The node that compacted edges point to, the only one that never had a key; -1 if it is
        not in this slice."""
        length_R = np.diff(self.start_R, append=len(self.data)) - ROW_HEAD
        never_R = (self._bytes[self.start_R] == REMOVED) & (length_R == 0)
        return self.first + int(never_R.argmax()) if never_R.any() else -1

    def _gone(self, is_gone: Callable[[Int64], Bools]) -> Int64:
        return np.flatnonzero(is_gone(self.first + np.arange(len(self.start_R))))

    @property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8)


def key_slices(path: Path, end: Callable[[], int]) -> Iterator[KeySlice]:
    """Read the rows of the file of keys, SLICE_BYTES at a time.

    end: the committed bytes of the file, which may grow between two slices.
    Raises: CorruptionError if lengths do not add up or a type is unknown.
    """
    first = at = 0
    rest = b""
    with path.open("rb") as file:
        while at < end():
            piece = file.read(min(SLICE_BYTES, end() - at))
            at += len(piece)
            rest += piece
            starts, whole = _rows(rest)
            if not piece or (at >= end() and whole < len(rest)):
                raise _damage_at(at - len(rest) + whole)
            part = KeySlice(first, rest[:whole], np.array(starts, np.int64))
            kind_R = part._bytes[part.start_R] & KIND
            length_R = np.diff(part.start_R, append=whole) - ROW_HEAD
            wrong_R = (kind_R > REMOVED) | ((kind_R == INTEGER) & (length_R != INTEGER_BYTES))
            if wrong_R.any():
                raise _damage_at(at - len(rest) + starts[int(wrong_R.argmax())])
            yield part
            first += len(starts)
            rest = rest[whole:]


def _rows(data: bytes) -> tuple[list[int], int]:
    """Find the complete rows. Returns: their starts, and the end of the last one."""
    length_at = struct.Struct("<I").unpack_from
    starts = []
    at = 0
    while at + ROW_HEAD <= len(data):
        end = at + ROW_HEAD + length_at(data, at + 1)[0]
        if end > len(data):
            break
        starts.append(at)
        at = end
    return starts, at


def _damage_at(at: int) -> CorruptionError:
    return CorruptionError(f"nodes.keys is damaged at byte {at}.", "restore it from a backup.")
