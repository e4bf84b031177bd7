"""Completion of node keys by a prefix."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from streamd.events import Bools, Int64, Key, SetKey
from streamd.server.engine.set_names import PlainKey

SLICE_KEYS = 20_000
"""Keys that are searched before other requests get a turn: this takes about 3 ms."""
MAX_KEYS = 400_000
"""Maximum number of keys that are searched for one completion; these are the newest ones."""


async def complete_prefix(
    keys: Sequence[Key | None],
    prefix: str,
    node_set: int | None,
    limit: int,
    is_wanted: Callable[[Int64], Bools] | None = None,
) -> tuple[list[PlainKey], bool]:
    """Find keys that start with a prefix, newest nodes first; a key that equals the prefix comes
    first, if it is among the searched ones.

    keys: of all nodes, by id, None for a deleted node; may grow during the search. An integer key
    is compared by its decimal digits. node_set: number of the node set to search, None for all.
    limit: maximum number of keys. is_wanted: filter of nodes, int64[N] ids -> bool[N]; None for all
    nodes.

    Returns: the keys, and whether the list is complete or has `limit` keys.
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
        # Between two slices, this thread answers requests and appends keys.
        await asyncio.sleep(0)
    return [*exact, *found][:limit], end == 0 or len(found) >= limit
