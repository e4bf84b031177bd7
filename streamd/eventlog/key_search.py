"""Finds keys in the file of node keys by their whole rows, so that the integer 8 is neither a text
nor a part of another number."""

from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from streamd.eventlog.layout import KEYS
from streamd.eventlog.node_keys import encode_keys, key_slices
from streamd.events import Key


class KeyRow(NamedTuple):
    """A row of the file of node keys. node: its number. at: its first byte."""

    key: Key
    node: int
    at: int


def find_keys(folder: Path, num_bytes: int, keys: Collection[Key]) -> list[KeyRow]:
    """Find the rows that hold one of some keys, each with its type and node set, in bounded memory.

    folder: that of the file, a data directory. num_bytes: committed bytes of the file, which is not
    opened if there are none.
    Raises: CorruptionError if the file is damaged.
    """
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
