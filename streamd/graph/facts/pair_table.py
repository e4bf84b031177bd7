"""Kernels for the table of pairs: a hash table with a list of its entries in order of their last
update (LRU). Compiled by numba. `streamd.graph.facts.fact_arrays` describes an entry.
"""

from typing import Any

import numpy as np

from streamd.graph.facts.fact_arrays import FACTS, NEVER, NUM_RATES, FactArrays
from streamd.graph.hashing import mixed
from streamd.graph.jit import compiled_for, inner


@inner
def pair_key(a: int, b: int) -> np.uint64:
    return (np.uint64(min(a, b)) << np.uint64(32)) | np.uint64(max(a, b))


@inner
def find(f: FactArrays, key: np.uint64) -> Any:
    """Index of a pair's entry, -1 if it has none."""
    wrap = np.uint64(len(f.slots) - 1)
    at = mixed(key) & wrap
    while f.slots[at] != 0:
        entry = f.slots[at] - 1
        if f.key[entry] == key:
            return entry
        at = (at + np.uint64(1)) & wrap
    return -1


@inner
def insert_slot(f: FactArrays, entry: int) -> None:
    """Insert an entry without a slot into the hash table."""
    wrap = np.uint64(len(f.slots) - 1)
    at = mixed(f.key[entry]) & wrap
    while f.slots[at] != 0:
        at = (at + np.uint64(1)) & wrap
    f.slots[at] = entry + 1


@compiled_for(FACTS)
def insert_all_slots(f: FactArrays) -> None:
    """Insert all entries into the hash table, which is empty."""
    for entry in range(f.size[0]):
        insert_slot(f, entry)


@inner
def _remove_slot(f: FactArrays, entry: int) -> None:
    """Remove an entry from the hash table, and move later entries of the same probe back."""
    wrap = np.uint64(len(f.slots) - 1)
    at = mixed(f.key[entry]) & wrap
    while f.slots[at] != entry + 1:
        at = (at + np.uint64(1)) & wrap

    # Linear probing stops at a hole, so fill it with a later entry, which leaves the next hole.
    hole = at
    f.slots[hole] = 0
    at = (hole + np.uint64(1)) & wrap
    while f.slots[at] != 0:
        home = mixed(f.key[f.slots[at] - 1]) & wrap
        # An entry must not move to a hole before its home slot.
        if ((at - home) & wrap) >= ((at - hole) & wrap):
            f.slots[hole] = f.slots[at]
            f.slots[at] = 0
            hole = at
        at = (at + np.uint64(1)) & wrap


@inner
def _unlink(f: FactArrays, entry: int) -> None:
    before = f.before[entry]
    after = f.after[entry]
    # size[1] and size[2] are the oldest and the newest entry of the list.
    if before >= 0:
        f.after[before] = after
    else:
        f.size[1] = after
    if after >= 0:
        f.before[after] = before
    else:
        f.size[2] = before


@inner
def _link_newest(f: FactArrays, entry: int) -> None:
    newest = f.size[2]
    f.before[entry], f.after[entry] = newest, -1
    if newest >= 0:
        f.after[newest] = entry
    else:
        f.size[1] = entry
    f.size[2] = entry


@inner
def touch(f: FactArrays, key: np.uint64, max_pairs: int) -> Any:
    """Return the entry of a pair, and move it to the end of the list as the most recently updated
    one. A new pair gets a free entry, or that of the least recently updated pair."""

    # A known pair moves to the end of the list.
    entry = find(f, key)
    if entry >= 0:
        if f.size[2] != entry:
            _unlink(f, entry)
            _link_newest(f, entry)
        return entry

    # A new pair takes a free entry, or that of the least recently updated pair.
    if f.size[0] < max_pairs:
        entry = f.size[0]
        f.size[0] += 1
    else:
        entry = f.size[1]
        _remove_slot(f, entry)
        _unlink(f, entry)

    # Its facts start as those of a pair that never met.
    f.key[entry] = key
    f.num_met[entry] = 0
    for side in range(2):
        f.met_at[entry, side] = -1
        f.sent[entry, side] = NEVER
        for r in range(NUM_RATES):
            f.weight[entry, side, r] = 0.0
    insert_slot(f, entry)
    _link_newest(f, entry)
    return entry


@inner
def drop(f: FactArrays, entry: int) -> None:
    """Delete an entry. The last entry of the table moves to its index."""
    _remove_slot(f, entry)
    _unlink(f, entry)
    last = f.size[0] - 1
    f.size[0] = last
    if entry == last:
        return

    # Move the last entry into the gap: its row, then its links in the list.
    _remove_slot(f, last)
    f.key[entry], f.num_met[entry] = f.key[last], f.num_met[last]
    for side in range(2):
        f.met_at[entry, side], f.sent[entry, side] = f.met_at[last, side], f.sent[last, side]
        for r in range(NUM_RATES):
            f.weight[entry, side, r] = f.weight[last, side, r]

    # Its neighbors in the list point to the new index.
    before = f.before[last]
    after = f.after[last]
    f.before[entry], f.after[entry] = before, after
    if before >= 0:
        f.after[before] = entry
    else:
        f.size[1] = entry
    if after >= 0:
        f.before[after] = entry
    else:
        f.size[2] = entry
    insert_slot(f, entry)
