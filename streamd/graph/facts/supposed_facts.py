"""Adds events to the pair facts temporarily, and restores every array afterwards.

This works only for events of one source without earlier events: they add pairs, but change none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Int64
from streamd.graph.facts import covisits, hour_table
from streamd.graph.facts.columns import NUM_FACTS
from streamd.graph.facts.fact_arrays import NODE_ARRAYS, TRANSITIONS, FactArrays
from streamd.graph.facts.kernels import advance, transition_key
from streamd.graph.hashing import mix

Cells = dict[str, tuple[Int64, NDArray[Any]]]
"""Name of an array -> indices of some of its rows, and their values."""


@contextmanager
def supposing(f: FactArrays, src_E: Int64, dst_E: Int64, time_E: Int64) -> Iterator[None]:
    """Add events of one source without earlier events inside the block, and remove them at its end.
    The arrays must have room, so that no other pair is dropped."""
    # Save the rows that the events change; hashed rows by the hashes of the kernels.
    num_pairs, newest, ordered = int(f.size[0]), int(f.size[2]), int(f.size[4])
    nodes = np.unique(np.concatenate([src_E, dst_E]))
    kept: Cells = {name: _rows(f, name, nodes) for name in NODE_ARRAYS}
    new = np.arange(ordered, min(ordered + len(dst_E), len(f.order)))
    kept["order"] = _rows(f, "order", new)
    steps = mix(transition_key(dst_E[:-1], dst_E[1:])) & np.uint64(TRANSITIONS - 1)
    for name in ("step_key", "step_count", "step_at"):
        kept[name] = _rows(f, name, steps.astype(np.int64))
    kept["hours"] = _rows(f, "hours", hour_table.indices_of(src_E, dst_E, time_E))
    kept["covisits"] = _rows(f, "covisits", covisits.indices_of(np.unique(dst_E)))
    whole = f.totals.copy(), f.size.copy()

    none = np.zeros(0, np.int64)
    out = np.zeros((0, 1, NUM_FACTS), np.float32)
    row_of = np.full(len(src_E), -1, np.int64)
    try:
        most = num_pairs + len(src_E)
        advance(f, src_E, dst_E, time_E, row_of, none.reshape(0, 1), out, most, none, none)
        yield
    finally:
        # New pairs took free slots, and are last in the list of pairs.
        _clear_slots(f, num_pairs)
        if newest >= 0:
            f.after[newest] = -1
        for name, (at, values) in kept.items():
            getattr(f, name)[at] = values
        f.totals[:], f.size[:] = whole


def _rows(f: FactArrays, name: str, at: Int64) -> tuple[Int64, NDArray[Any]]:
    return at, getattr(f, name)[at]


def _clear_slots(f: FactArrays, first: int) -> None:
    """Free the slots of the entries from `first` on."""
    # Find all slots before any is freed, since a probe ends at a free slot.
    entry = np.arange(first, int(f.size[0]))
    at = mix(f.key[entry])
    wrap = np.uint64(len(f.slots) - 1)
    slots = []
    while len(entry):
        is_own = f.slots[at & wrap] == entry + 1
        slots += (at & wrap)[is_own].tolist()
        entry, at = entry[~is_own], at[~is_own] + np.uint64(1)
    f.slots[slots] = 0
