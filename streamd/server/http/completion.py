"""Completion of a node's key by its first characters."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from streamd.events import Bools, Int64, Key, SetKey
from streamd.server.engine.set_names import PlainKey

SLICE_KEYS = 20_000
"""Keys looked at before requests have a turn: about 3 ms."""
MAX_KEYS = 400_000
"""Keys looked at for one completion, the newest ones."""


async def completed(
    keys: Sequence[Key | None],
    prefix: str,
    node_set: int | None,
    limit: int,
    is_wanted: Callable[[Int64], Bools] | None = None,
) -> tuple[list[PlainKey], bool]:
    """Find keys that begin with a prefix, newest nodes first; the key that equals it comes first.

    keys: of all nodes, by their ids, None for a deleted one; it may grow meanwhile. node_set:
    number of the set that is meant, all sets if None. An integer begins with its digits. is_wanted:
    of nodes by their ids, int64[N] -> bool[N]; all are if None.
    Returns: at most `limit` keys, and whether all keys were looked at or enough were found.
    """
    exact: list[PlainKey] = []
    found: list[PlainKey] = []
    end = len(keys)
    first = max(0, end - MAX_KEYS)
    while end > first and len(found) < limit:
        begin = max(first, end - SLICE_KEYS)
        wanted_N = np.ones(end - begin, np.bool_)
        if is_wanted is not None:
            wanted_N = is_wanted(np.arange(begin, end))
        rows = zip(reversed(keys[begin:end]), wanted_N[::-1].tolist(), strict=True)
        for key, counts in rows:
            number, own = key if isinstance(key, SetKey) else (0, key)
            if not counts or own is None or (node_set is not None and number != node_set):
                continue
            text = own if isinstance(own, str) else str(own)
            if text == prefix:
                exact.append(own)
            elif text.startswith(prefix) and len(found) < limit:
                found.append(own)
        end = begin
        # Keys come in this thread: answers go on between two slices.
        await asyncio.sleep(0)
    return [*exact, *found][:limit], end == 0 or len(found) >= limit
