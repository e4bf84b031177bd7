"""Kernels that compute the pair facts, compiled by numba.

`streamd.graph.facts_reference.ReferenceFacts` computes the same in plain Python.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.graph.fact_columns import NUM_HALF_LIVES, FactColumn
from streamd.graph.hashing import mixed
from streamd.graph.jit import inner, kernel

RATES = (0.5, 0.8, 0.95, 0.99)
"""Decay per event of the columns PAIR_WEIGHT_50 to PAIR_WEIGHT_99: from the last event alone to the
last hundred."""
NUM_RATES = len(RATES)
PARTNERS = 16
"""Last partners remembered of a node: one cache line of int32."""
THREE_HOP_PARTNERS = 8
"""Partners followed at each of three hops: at most 512 paths are counted."""
NEVER_LOG_SECONDS = 20.0
"""Log seconds of what never happened: 15 years, longer than any gap that matters."""
FLOOR_LOG_SHARE = -14.0
"""Log share of a node that is hardly ever a destination: one event in a million."""
NEVER = np.int64(-(2**62))
"""Time of what never happened; differences to it do not overflow."""
POWERS = 2048
"""Ages whose decay is tabulated; 0.99 ** 2048 is one in a billion, and is taken as zero."""
LN2 = float(np.log(2.0))

# Columns as plain numbers, which numba compiles in.
PAIR_WEIGHT = int(FactColumn.PAIR_WEIGHT_50)
MET = int(FactColumn.MET)
EVENTS_SINCE_MET = int(FactColumn.LOG_EVENTS_SINCE_MET)
SINCE_SENT = int(FactColumn.LOG_SECONDS_SINCE_SENT)
SINCE_RECEIVED = int(FactColumn.LOG_SECONDS_SINCE_RECEIVED)
SHARE = int(FactColumn.LOG_SHARE_1)
SINCE_DESTINATION = int(FactColumn.LOG_SECONDS_SINCE_DESTINATION)
SINCE_SOURCE = int(FactColumn.LOG_SECONDS_SINCE_SOURCE)
SOURCE_EVENTS = int(FactColumn.LOG_SOURCE_EVENTS)
CANDIDATE_EVENTS = int(FactColumn.LOG_CANDIDATE_EVENTS)
COMMON_PARTNERS = int(FactColumn.LOG_COMMON_PARTNERS)
THREE_HOP_PATHS = int(FactColumn.LOG_THREE_HOP_PATHS)


class FactArrays(NamedTuple):
    """The memory of the pair facts.

    Nodes: seen, last, last_dst int64[N]; log_pop float64[N, 5] as of pop_at int64[N]; ring
    int32[N, 16], newest at (ring_count - 1) % 16; mark int32[N] scratch; rank int32[N], one more
    than a node's place among all destinations by first sight, 0 for none; order int32[N], the other
    way round, first sighted first.

    Pairs (key = smaller id << 32 | larger): weight float32[P, 2, 4], met_at int64[P, 2] (events of
    that side when they last met, -1 never), sent int64[P, 2]; before/after int32[P]: a list from
    least to most recently touched. slots int32[S]: open addressing, entry + 1.

    totals float64[5] as of total_at; power float32[4, 2048]; decay float64[5] per microsecond;
    size: pairs, oldest, newest, total_at, destinations.
    """

    seen: NDArray[Any]
    last: NDArray[Any]
    last_dst: NDArray[Any]
    log_pop: NDArray[Any]
    pop_at: NDArray[Any]
    ring: NDArray[Any]
    ring_count: NDArray[Any]
    mark: NDArray[Any]
    rank: NDArray[Any]
    order: NDArray[Any]
    key: NDArray[Any]
    weight: NDArray[Any]
    met_at: NDArray[Any]
    sent: NDArray[Any]
    before: NDArray[Any]
    after: NDArray[Any]
    slots: NDArray[Any]
    totals: NDArray[Any]
    power: NDArray[Any]
    decay: NDArray[Any]
    size: NDArray[Any]


@inner
def _pair_key(a: int, b: int) -> np.uint64:
    return (np.uint64(min(a, b)) << np.uint64(32)) | np.uint64(max(a, b))


@inner
def find(f: FactArrays, key: np.uint64) -> Any:
    """Entry of a pair, -1 where there is none."""
    wrap = np.uint64(len(f.slots) - 1)
    at = mixed(key) & wrap
    while f.slots[at] != 0:
        entry = f.slots[at] - 1
        if f.key[entry] == key:
            return entry
        at = (at + np.uint64(1)) & wrap
    return -1


@inner
def place(f: FactArrays, entry: int) -> None:
    """Put an entry that is in no slot into one."""
    wrap = np.uint64(len(f.slots) - 1)
    at = mixed(f.key[entry]) & wrap
    while f.slots[at] != 0:
        at = (at + np.uint64(1)) & wrap
    f.slots[at] = entry + 1


@kernel
def place_all(f: FactArrays) -> None:
    """Put all entries into slots, which are empty."""
    for entry in range(f.size[0]):
        place(f, entry)


@inner
def _displace(f: FactArrays, entry: int) -> None:
    """Take an entry out of its slot, and move entries that were probed past it back."""
    wrap = np.uint64(len(f.slots) - 1)
    at = mixed(f.key[entry]) & wrap
    while f.slots[at] != entry + 1:
        at = (at + np.uint64(1)) & wrap

    # Open addressing leaves no holes: close this one from behind.
    hole = at
    f.slots[hole] = 0
    at = (hole + np.uint64(1)) & wrap
    while f.slots[at] != 0:
        home = mixed(f.key[f.slots[at] - 1]) & wrap
        # An entry may move back only where the hole is not before its home.
        if ((at - home) & wrap) >= ((at - hole) & wrap):
            f.slots[hole] = f.slots[at]
            f.slots[at] = 0
            hole = at
        at = (at + np.uint64(1)) & wrap


@inner
def _unlink(f: FactArrays, entry: int) -> None:
    before = f.before[entry]
    after = f.after[entry]
    # size[1] and size[2] name the ends of the list, oldest and newest.
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
def _touch(f: FactArrays, key: np.uint64, max_pairs: int) -> Any:
    """Return the entry of a pair as the most recently touched one.

    A pair that has none gets one; where the table is full, it is that of the least recently touched
    pair.
    """

    # A pair that is known moves to the end of the list.
    entry = find(f, key)
    if entry >= 0:
        if f.size[2] != entry:
            _unlink(f, entry)
            _link_newest(f, entry)
        return entry

    # A new pair takes a free entry, or that of the least recently touched pair.
    if f.size[0] < max_pairs:
        entry = f.size[0]
        f.size[0] += 1
    else:
        entry = f.size[1]
        _displace(f, entry)
        _unlink(f, entry)

    # Its facts begin as those of a pair that never met.
    f.key[entry] = key
    for side in range(2):
        f.met_at[entry, side] = -1
        f.sent[entry, side] = NEVER
        for r in range(NUM_RATES):
            f.weight[entry, side, r] = 0.0
    place(f, entry)
    _link_newest(f, entry)
    return entry


@inner
def _drop(f: FactArrays, entry: int) -> None:
    """Take an entry out of the table; the last one moves into its place."""
    _displace(f, entry)
    _unlink(f, entry)
    last = f.size[0] - 1
    f.size[0] = last
    if entry == last:
        return

    # The last entry moves into the gap: its row, then its place in the list.
    _displace(f, last)
    f.key[entry] = f.key[last]
    for side in range(2):
        f.met_at[entry, side], f.sent[entry, side] = f.met_at[last, side], f.sent[last, side]
        for r in range(NUM_RATES):
            f.weight[entry, side, r] = f.weight[last, side, r]

    # Neighbours in the list point to where the row is now.
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
    place(f, entry)


@inner
def forget(f: FactArrays, nodes: NDArray[Any]) -> None:
    """Delete nodes: their pairs, their rows, and their places among the last partners of others, in
    one pass over the tables."""

    # Which of the nodes are known?
    num_nodes = len(f.seen)
    gone = np.zeros(num_nodes, np.bool_)
    found = False
    for node in nodes:
        if 0 <= node < num_nodes and f.seen[node] > 0:
            gone[node] = found = True
    if not found:
        return

    # Their pairs; `_drop` moves another pair to the same entry, so it is looked at again.
    entry = np.int64(0)
    while entry < f.size[0]:
        if gone[f.key[entry] >> np.uint64(32)] or gone[f.key[entry] & np.uint64(0xFFFFFFFF)]:
            _drop(f, entry)
        else:
            entry += 1

    # Their own rows, and their places among the partners of others.
    kept = np.empty(PARTNERS, np.int32)
    for node in range(num_nodes):
        if gone[node]:
            # Its rank stays, so that the ranks of other destinations do not move.
            f.seen[node] = f.ring_count[node] = 0
            f.last[node] = f.last_dst[node] = f.pop_at[node] = NEVER
            for h in range(NUM_HALF_LIVES):
                f.log_pop[node, h] = 0.0
            for i in range(PARTNERS):
                f.ring[node, i] = 0
            continue

        # Partners that stay keep their order, oldest first.
        held = min(f.ring_count[node], PARTNERS)
        count = 0
        for i in range(held):
            partner = f.ring[node, (f.ring_count[node] - held + i) % PARTNERS]
            if not gone[partner]:
                kept[count] = partner
                count += 1
        if count < held:
            for i in range(count):
                f.ring[node, i] = kept[i]
            f.ring_count[node] = count


@inner
def _power(f: FactArrays, rate: int, age: int) -> Any:
    return f.power[rate, age] if age < POWERS else 0.0


@inner
def _meet(f: FactArrays, entry: int, side: int, node: int, other: int, time: int) -> None:
    f.seen[node] += 1
    # Weights decay by the node's own events since the two last met, then count this event.
    age = f.seen[node] - f.met_at[entry, side]
    for r in range(NUM_RATES):
        old = f.weight[entry, side, r] * _power(f, r, age) if f.met_at[entry, side] >= 0 else 0.0
        f.weight[entry, side, r] = old + 1.0
    f.met_at[entry, side] = f.seen[node]
    f.last[node] = time
    f.ring[node, f.ring_count[node] % PARTNERS] = other
    f.ring_count[node] += 1


@inner
def update(f: FactArrays, u: int, v: int, time: int, max_pairs: int) -> None:
    """Take in the event u -> v."""

    # The pair, seen from both of its sides; side 0 is that of the smaller id.
    entry = _touch(f, _pair_key(u, v), max_pairs)
    side = 0 if u <= v else 1
    _meet(f, entry, side, u, v, time)
    if u != v:
        _meet(f, entry, 1 - side, v, u, time)
    f.sent[entry, side] = time
    f.last_dst[v] = time

    # The destinations in order of first sight.
    if f.rank[v] == 0:
        f.order[f.size[4]] = v
        f.size[4] += 1
        f.rank[v] = f.size[4]

    # Popularity decays up to now, then counts this event.
    known = f.pop_at[v] != NEVER
    for h in range(NUM_HALF_LIVES):
        old = np.exp(f.log_pop[v, h] - (time - f.pop_at[v]) * f.decay[h]) if known else 0.0
        f.log_pop[v, h] = np.log(old + 1.0)
        f.totals[h] = f.totals[h] * np.exp(-(time - f.size[3]) * f.decay[h]) + 1.0
    f.pop_at[v] = time
    f.size[3] = time


@inner
def _log_seconds(now: int, then: int) -> Any:
    if then == NEVER:
        return NEVER_LOG_SECONDS
    return min(np.log(max(now - then, 1) * 1e-6), NEVER_LOG_SECONDS)


@inner
def _mark_three_hops(f: FactArrays, u: int, step: int) -> None:
    # Step 1 counts the paths at their ends; step 0 walks the same paths and clears the counts.
    for i in range(min(f.ring_count[u], THREE_HOP_PARTNERS)):
        x = f.ring[u, (f.ring_count[u] - 1 - i) % PARTNERS]
        for j in range(min(f.ring_count[x], THREE_HOP_PARTNERS)):
            y = f.ring[x, (f.ring_count[x] - 1 - j) % PARTNERS]
            for k in range(min(f.ring_count[y], THREE_HOP_PARTNERS)):
                z = f.ring[y, (f.ring_count[y] - 1 - k) % PARTNERS]
                if step == 0:
                    f.mark[z] = 0
                else:
                    f.mark[z] += 1


@inner
def fill_rows(
    f: FactArrays, u: int, candidates: NDArray[Any], time: int, out: NDArray[Any]
) -> None:
    """Facts about u and each candidate at `time`, float32[C, NUM_FACTS]; ids outside the table are
    nodes never seen."""

    # What depends on the source alone.
    num_nodes = len(f.seen)
    known = 0 <= u < num_nodes
    seen = f.seen[u] if known else 0
    log_seen = np.log1p(seen)
    since_source = _log_seconds(time, f.last[u] if known else NEVER)
    log_total = np.empty(NUM_HALF_LIVES)
    for h in range(NUM_HALF_LIVES):
        log_total[h] = (
            np.log(f.totals[h]) - (time - f.size[3]) * f.decay[h] if f.totals[h] > 0 else 0.0
        )

    # Common partners: mark those of the source, and count the marks among those of each candidate.
    partners = min(f.ring_count[u], PARTNERS) if known else 0
    for i in range(partners):
        f.mark[f.ring[u, i]] += 1
    for c in range(len(candidates)):
        v = candidates[c]
        inside = 0 <= v < num_nodes
        common = 0
        if inside:
            for i in range(min(f.ring_count[v], PARTNERS)):
                common += f.mark[f.ring[v, i]]
        out[c, COMMON_PARTNERS] = np.log1p(common)
    # Cleared at once: paths of three hops are counted by the same marks.
    for i in range(partners):
        f.mark[f.ring[u, i]] = 0

    # Paths of three hops are counted at their ends, before the candidates are looked at.
    if known:
        _mark_three_hops(f, u, np.int64(1))
    for c in range(len(candidates)):
        v = candidates[c]
        inside = 0 <= v < num_nodes
        out[c, THREE_HOP_PATHS] = np.log1p(f.mark[v]) if inside else 0.0

        # How often and how lately the two met.
        entry = find(f, _pair_key(u, v)) if known and inside else -1
        side = 0 if u <= v else 1
        if entry >= 0 and f.met_at[entry, side] >= 0:
            age = seen - f.met_at[entry, side]
            for r in range(NUM_RATES):
                out[c, PAIR_WEIGHT + r] = f.weight[entry, side, r] * _power(f, r, age)
            out[c, MET] = 1.0
            out[c, EVENTS_SINCE_MET] = np.log1p(age)
        else:
            for r in range(NUM_RATES):
                out[c, PAIR_WEIGHT + r] = 0.0
            out[c, MET] = 0.0
            out[c, EVENTS_SINCE_MET] = log_seen
        out[c, SINCE_SENT] = _log_seconds(time, f.sent[entry, side] if entry >= 0 else NEVER)
        out[c, SINCE_RECEIVED] = _log_seconds(
            time, f.sent[entry, (1 - side) if u != v else side] if entry >= 0 else NEVER
        )

        # How popular the candidate is.
        for h in range(NUM_HALF_LIVES):
            share = FLOOR_LOG_SHARE
            if inside and f.pop_at[v] != NEVER:
                share = f.log_pop[v, h] - (time - f.pop_at[v]) * f.decay[h] - log_total[h]
            out[c, SHARE + h] = max(share, FLOOR_LOG_SHARE)
        out[c, SINCE_DESTINATION] = _log_seconds(time, f.last_dst[v] if inside else NEVER)
        out[c, SINCE_SOURCE] = since_source
        out[c, SOURCE_EVENTS] = log_seen
        out[c, CANDIDATE_EVENTS] = np.log1p(f.seen[v]) if inside else 0.0

    # Clear the marks for the next source.
    if known:
        _mark_three_hops(f, u, np.int64(0))


@inner
def _forget_until(
    f: FactArrays, gone: NDArray[Any], gone_at: NDArray[Any], done: int, event: int
) -> int:
    end = done
    while end < len(gone) and gone_at[end] <= event:
        end += 1
    if end > done:
        forget(f, gone[done:end])
    return end


@kernel
def advance(
    f: FactArrays,
    src: NDArray[Any],
    dst: NDArray[Any],
    time: NDArray[Any],
    row_of: NDArray[Any],
    candidates: NDArray[Any],
    out: NDArray[Any],
    max_pairs: int,
    gone: NDArray[Any],
    gone_at: NDArray[Any],
) -> None:
    """Go through events in order; where row_of[i] >= 0 write the facts of its candidates, from
    strictly before, first.

    row_of: int64[E], -1 for none; candidates: int64[R, C]; out: float32[R, C, NUM_FACTS]. Equal
    times do not see one another. gone: int64[D] nodes deleted, each before event gone_at
    (ascending).
    """
    i = done = np.int64(0)
    while i < len(src):
        done = _forget_until(f, gone, gone_at, done, i)

        # Events of one time do not see one another: all their rows are written first.
        j = i
        while j < len(src) and time[j] == time[i]:
            if row_of[j] >= 0:
                fill_rows(f, src[j], candidates[row_of[j]], time[j], out[row_of[j]])
            j += 1

        # Then they are taken in, one by one, with the deletes between them.
        for k in range(i, j):
            done = _forget_until(f, gone, gone_at, done, k)
            update(f, src[k], dst[k], time[k], max_pairs)
        i = j
    _forget_until(f, gone, gone_at, done, len(src))


@kernel
def fill_many(
    f: FactArrays,
    src: NDArray[Any],
    time: NDArray[Any],
    candidates: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Facts of many queries on a state that does not change: src, time int64[R]; candidates
    int64[R, C]."""
    for r in range(len(src)):
        fill_rows(f, src[r], candidates[r], time[r], out[r])
