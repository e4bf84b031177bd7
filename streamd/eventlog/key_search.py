"""Finds keys in the file of node keys by comparing whole rows, so that the integer 8 matches
neither a text nor a part of another number."""

from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from streamd.eventlog.layout import KEYS
from streamd.eventlog.node_keys import encode_keys, key_slices
from streamd.events import Key


class KeyRow(NamedTuple):
    """A row of the file of node keys. node: its node id. at: offset of its first byte."""

    key: Key
    node: int
    at: int


def find_keys(folder: Path, num_bytes: int, keys: Collection[Key]) -> list[KeyRow]:
    """Find the rows with one of some keys, compared with type and node set, in bounded memory.

    folder: the data directory. num_bytes: committed bytes of the file; if there are none, it is not
    opened. Raises: CorruptionError if the file is damaged.
    """
    # Compare encoded rows, which include type and node set.
    wanted = {encode_keys([key]): key for key in keys}
    found: list[KeyRow] = []
    if not num_bytes:
        return found
    before = 0
    for part in key_slices(folder / KEYS, lambda: num_bytes):
        bounds = [*part.start_R.tolist(), len(part.data)]
        for row, (begin, end) in enumerate(pairwise(bounds)):
            if (key := wanted.get(part.data[begin:end])) is not None:
                found.append(KeyRow(key, part.first + row, before + begin))
        before += len(part.data)
    return found
