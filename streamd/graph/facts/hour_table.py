"""Kernels for the table of hours of the day: the number of events of pairs, and of events received
by nodes, at each hour. Compiled by numba.

The table has a fixed size. The index of a count is a hash of its key; if two keys have the same
index, the newer count replaces the older one.
"""

from typing import Any

import numpy as np

from streamd.events import Int64
from streamd.graph.facts.fact_arrays import HOURS, FactArrays
from streamd.graph.hashing import mix, mixed
from streamd.graph.jit import inner

HOUR_US = 3_600_000_000
HOURS_A_DAY = 24
NODE_BITS = 28
"""Bits of a node id in a key: `PairFacts` holds 2 ** 28 nodes at most."""
HOUR_BITS = 5
ANYONE = 1 << NODE_BITS
"""In place of a source: events of any source."""


def _hour(time: Any) -> Any:
    """Hour of the day (UTC) of a time in microseconds."""
    return (time // HOUR_US) % HOURS_A_DAY


def _pair(u: Any, v: Any) -> Any:
    # Keys start at 1, so that 0 is an empty entry. The caller adds the hour in the low bits.
    return ((np.uint64(u) << np.uint64(NODE_BITS)) | np.uint64(v)) + np.uint64(1)


hour_of = inner(_hour)
_key = inner(_pair)


def indices_of(src_E: Int64, dst_E: Int64, time_E: Int64) -> Int64:
    """The rows of the table that E events change: int64[2 E]. time_E: microseconds."""
    hour_E = _hour(time_E).astype(np.uint64)
    keys = (_pair(src_E, dst_E), _pair(np.full(len(dst_E), ANYONE), dst_E))
    at = np.concatenate([mix(key) + hour_E for key in keys])
    return (at & np.uint64(HOURS - 1)).astype(np.int64)


@inner
def key_names(key: np.uint64, gone: Any) -> bool:
    """Whether a key of the table names a deleted node. gone: bool[N], True for deleted nodes."""
    bare = (key >> np.uint64(HOUR_BITS)) - np.uint64(1)
    u = bare >> np.uint64(NODE_BITS)
    return bool(gone[bare & np.uint64(ANYONE - 1)] or (u != ANYONE and gone[u]))


@inner
def count_hour(f: FactArrays, u: int, v: int, hour: int) -> None:
    """Count an event u -> v at an hour of the day; u is a node or ANYONE."""
    key = _key(u, v)
    # The counts of a pair are contiguous, hour by hour.
    place = (mixed(key) + np.uint64(hour)) & np.uint64(HOURS - 1)
    key = (key << np.uint64(HOUR_BITS)) | np.uint64(hour)
    if f.hours[place, 0] != key:
        f.hours[place, 0] = key
        f.hours[place, 1] = 0
    f.hours[place, 1] += np.uint64(1)


@inner
def events_around(f: FactArrays, u: int, v: int, hour: int) -> Any:
    """Number of events u -> v in an hour of the day and the hours before and after it, as far as
    the table still has the counts."""
    key = _key(u, v)
    first = mixed(key)
    found = np.int64(0)
    for step in range(HOURS_A_DAY - 1, HOURS_A_DAY + 2):
        near = np.uint64((hour + step) % HOURS_A_DAY)
        place = (first + near) & np.uint64(HOURS - 1)
        if f.hours[place, 0] == (key << np.uint64(HOUR_BITS)) | near:
            found += np.int64(f.hours[place, 1])
    return found
