"""Negative destinations as a hash of seed, event and number: the same for every model, regime and restart."""

import numpy as np
from numpy.typing import NDArray

from streamd.events import Int64

UInt64 = NDArray[np.uint64]
NUM_SCORED = 100
NUM_LEARNED = 10
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: UInt64) -> UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def negatives(pool: Int64, event_E: Int64, dst_E: Int64, seed: int = 0, count: int = NUM_SCORED) -> Int64:
    """`count` negatives per event, int64[E, count], uniform over `pool` (ascending, >= 2 nodes) without the true one.

    SplitMix64 of seed and (100 * event + j + 1), the protocol of the accuracy baselines; event: global edge id.
    """
    with np.errstate(over="ignore"):
        at = np.searchsorted(pool, dst_E)
        known = pool[np.minimum(at, len(pool) - 1)] == dst_E
        number = np.arange(1, count + 1, dtype=np.uint64)
        counter: UInt64 = np.multiply(event_E.astype(np.uint64)[:, None], np.uint64(NUM_SCORED), dtype=np.uint64) + number
        start: UInt64 = np.array([seed], np.uint64) + _GOLDEN
        h = _mix(np.add(_mix(start), counter * _GOLDEN, dtype=np.uint64))
    i: Int64 = (h % (len(pool) - known).astype(np.uint64)[:, None]).astype(np.int64)
    out: Int64 = pool[i + (known[:, None] & (i >= at[:, None]))]
    return out
