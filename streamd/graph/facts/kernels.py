"""Kernels that compute the pair facts, compiled by numba.

`tests/graph/reference_facts.py` computes the same in plain Python.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.facts.columns import NUM_HALF_LIVES, FactColumn
from streamd.graph.facts.covisits import count_visit, fill_covisits, forget_visits
from streamd.graph.facts.fact_arrays import (
    FACTS,
    HOURS,
    NEVER,
    NUM_RATES,
    PARTNERS,
    POWERS,
    TRANSITIONS,
    FactArrays,
)
from streamd.graph.facts.hour_table import ANYONE, count_hour, events_around, hour_of, key_names
from streamd.graph.facts.pair_table import drop, find, pair_key, touch
from streamd.graph.hashing import mixed
from streamd.graph.jit import compiled_for, inner
from streamd.graph.kernel_types import INT, INTS, INTS_2D, WRITTEN_FACTS

THREE_HOP_PARTNERS = 8
"""Number of last partners at each of three hops, so that at most 512 paths are counted."""
NEVER_LOG_SECONDS = 20.0
"""Log seconds since an event that never happened: 15 years, longer than any relevant gap."""
FLOOR_LOG_SHARE = -14.0
"""Log share of a node that is hardly ever a destination: one event in a million."""
KEPT_REPEATS = 0.8
"""Decay of a node's share of repeats at each of its events: about the last five count."""
UNSEEN_EVENTS = 20.0
"""Events added to a node's count, so that its first transitions have little effect."""
UNSEEN_TRANSITIONS = 0.02
"""Number of these events that are transitions to each candidate: one in a thousand."""
NEVER_LOG_SHARE = -10.0
"""Log share of transitions if the source has no last partner: that of a candidate that followed
none of 420 events."""
NEVER_LOG_EVENTS = 12.0
"""Log events since a transition that never happened: 160,000 events."""
UNSEEN_HOURS = 8.0
"""Events added to the count of a pair or candidate, evenly over the hours and both directions, so
that its first hours have little effect."""
UNSEEN_PAIR = 0.02
"""Events added to a pair's count."""
UNSEEN_SOURCE = 5.0
"""Events added to a source's count, so that its first pairs have little effect."""
NO_LOG_EVENTS = float(np.log(UNSEEN_PAIR))
ANY_LOG_HOUR_SHARE = float(np.log(1.0 / 16.0))
"""Three of 24 hours, in one of two directions."""
LN2 = float(np.log(2.0))

# Columns as integers, which numba compiles as constants.
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
CANDIDATE_WEIGHT = int(FactColumn.CANDIDATE_WEIGHT_50)
CANDIDATE_SINCE_MET = int(FactColumn.LOG_CANDIDATE_EVENTS_SINCE_MET)
SOURCE_REPEATS = int(FactColumn.SOURCE_REPEATS)
CANDIDATE_REPEATS = int(FactColumn.CANDIDATE_REPEATS)
SOURCE_PARTNERS = int(FactColumn.LOG_SOURCE_PARTNERS)
CANDIDATE_PARTNERS = int(FactColumn.LOG_CANDIDATE_PARTNERS)
SOURCE_GAP = int(FactColumn.LOG_SOURCE_GAP)
CANDIDATE_GAP = int(FactColumn.LOG_CANDIDATE_GAP)
TRANSITION_SHARE = int(FactColumn.LOG_TRANSITION_SHARE)
SINCE_TRANSITION = int(FactColumn.LOG_EVENTS_SINCE_TRANSITION)
PAIR_SHARE = int(FactColumn.LOG_PAIR_SHARE)
PAIR_HOUR_SHARE = int(FactColumn.LOG_PAIR_HOUR_SHARE)
CANDIDATE_HOUR_SHARE = int(FactColumn.LOG_CANDIDATE_HOUR_SHARE)
COVISITS = int(FactColumn.LOG_COVISITS)
GREATEST_COVISITS = int(FactColumn.LOG_GREATEST_COVISITS)


@inner
def forget(f: FactArrays, nodes: NDArray[Any]) -> None:
    """Delete nodes, in one pass over the tables: their pairs, their rows, and their entries among
    the last partners of other nodes."""

    # Find the known nodes.
    num_nodes = len(f.seen)
    gone = np.zeros(num_nodes, np.bool_)
    found = False
    for node in nodes:
        if 0 <= node < num_nodes and f.seen[node] > 0:
            gone[node] = found = True
    if not found:
        return

    # Drop their pairs. `drop` moves another pair to the same entry, so check this entry again.
    entry = np.int64(0)
    while entry < f.size[0]:
        if gone[f.key[entry] >> np.uint64(32)] or gone[f.key[entry] & np.uint64(0xFFFFFFFF)]:
            drop(f, entry)
        else:
            entry += 1

    # Clear transitions from and to them.
    for place in range(TRANSITIONS):
        if f.step_key[place] != 0:
            key = f.step_key[place] - np.uint64(1)
            if gone[key >> np.uint64(32)] or gone[key & np.uint64(0xFFFFFFFF)]:
                f.step_key[place] = 0

    # Clear their events by hour.
    for place in range(HOURS):
        if f.hours[place, 0] != 0 and key_names(f.hours[place, 0], gone):
            f.hours[place, 0] = 0

    # Clear co-visits with them.
    forget_visits(f, gone)

    # Clear their own rows, and their entries among the partners of other nodes.
    kept = np.empty(PARTNERS, np.int32)
    for node in range(num_nodes):
        if gone[node]:
            # Keep its rank, so that the ranks of other destinations do not change.
            f.seen[node] = f.ring_count[node] = 0
            f.last[node] = f.last_dst[node] = f.pop_at[node] = NEVER
            f.log_gap[node] = NEVER_LOG_SECONDS
            f.repeats[node] = f.num_partners[node] = 0
            for h in range(NUM_HALF_LIVES):
                f.log_pop[node, h] = 0.0
            for i in range(PARTNERS):
                f.ring[node, i] = 0
            continue

        # The remaining partners keep their order, oldest first.
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
def _last_partner(ring: NDArray[Any], ring_count: NDArray[Any], node: int) -> Any:
    """The partner of a node's newest event, -1 if it has none."""
    count = ring_count[node]
    return np.int64(ring[node, (count - 1) % PARTNERS]) if count else np.int64(-1)


def transition_key(a: Any, v: Any) -> Any:
    """The key of the transition from partner a to candidate v, integers or arrays of them."""
    # Keys start at 1, so that 0 is an empty entry.
    return ((np.uint64(a) << np.uint64(32)) | np.uint64(v)) + np.uint64(1)


_transition_key = inner(transition_key)


@inner
def _meet(f: FactArrays, entry: int, side: int, node: int, other: int, time: int) -> None:
    # Compare the event with the node's events before it.
    if f.ring_count[node] > 0:
        same = 1.0 if _last_partner(f.ring, f.ring_count, node) == other else 0.0
        f.repeats[node] = KEPT_REPEATS * f.repeats[node] + (1.0 - KEPT_REPEATS) * same
    if f.met_at[entry, side] < 0:
        f.num_partners[node] += 1
    if f.last[node] != NEVER:
        f.log_gap[node] = _log_seconds(time, f.last[node])

    f.seen[node] += 1
    # Decay the weights by the node's own events since the two last met, then add this event.
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
    """Add the event u -> v. max_pairs: bound of the table of pairs."""

    # Count the transition from the source's last partner. It replaces another one with the same
    # index.
    before = _last_partner(f.ring, f.ring_count, u)
    if before >= 0:
        key = _transition_key(before, v)
        place = mixed(key) & np.uint64(TRANSITIONS - 1)
        count = f.step_count[place] if f.step_key[place] == key else np.float32(0.0)
        f.step_key[place] = key
        f.step_count[place] = count + np.float32(1.0)
        f.step_at[place] = f.seen[before]

    # Update the pair from both of its sides; side 0 is that of the smaller id.
    entry = touch(f, pair_key(u, v), max_pairs)
    side = 0 if u <= v else 1
    _meet(f, entry, side, u, v, time)
    if u != v:
        _meet(f, entry, 1 - side, v, u, time)
    count_visit(f, u, v, f.sent[entry, side] == NEVER)
    f.sent[entry, side] = time
    f.num_met[entry] += 1
    f.last_dst[v] = time

    # Count the hour of the day, for the pair and for the destination.
    hour = hour_of(time)
    count_hour(f, u, v, hour)
    count_hour(f, ANYONE, v, hour)

    # Append a new destination.
    if f.rank[v] == 0:
        f.order[f.size[4]] = v
        f.size[4] += 1
        f.rank[v] = f.size[4]

    # Decay the popularity up to now, then add this event.
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
def _log_hour_share(around: int, events: int) -> Any:
    # UNSEEN_HOURS / 16: three of 24 hours, in one of two directions. The minimum is for a pair that
    # was dropped and came back: its events count from 0 again, its hours do not.
    return np.log((min(around, events) + UNSEEN_HOURS / 16.0) / (events + UNSEEN_HOURS))


@inner
def _mark_three_hops(f: FactArrays, u: int, step: int) -> None:
    # With step 1 count the paths at their last nodes; with step 0 clear these counts.
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
    """Write the facts about u and each candidate at `time` to out, float32[C, NUM_FACTS]. Ids
    outside the table are nodes without events."""

    # Values that depend on the source only.
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

    # Common partners: mark those of the source, then count the marks among those of each candidate.
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
    # Clear the marks, which count paths of three hops next.
    for i in range(partners):
        f.mark[f.ring[u, i]] = 0

    # Count paths of three hops at their last nodes.
    if known:
        _mark_three_hops(f, u, np.int64(1))
    before = _last_partner(f.ring, f.ring_count, u) if known else np.int64(-1)
    source_repeats = f.repeats[u] if known else 0.0
    source_partners = np.log1p(f.num_partners[u]) if known else 0.0
    source_gap = f.log_gap[u] if known else NEVER_LOG_SECONDS
    seen_before = f.seen[before] if before >= 0 else 0
    log_before = np.log(seen_before + UNSEEN_EVENTS)
    hour = hour_of(time)
    log_source_share = np.log(seen + UNSEEN_SOURCE)
    never_share = np.log(UNSEEN_TRANSITIONS) - log_before if before >= 0 else NEVER_LOG_SHARE
    for c in range(len(candidates)):
        v = candidates[c]
        inside = 0 <= v < num_nodes
        log_candidate_seen = np.log1p(f.seen[v]) if inside else 0.0
        out[c, SOURCE_REPEATS] = source_repeats
        out[c, CANDIDATE_REPEATS] = f.repeats[v] if inside else 0.0
        out[c, SOURCE_PARTNERS] = source_partners
        out[c, CANDIDATE_PARTNERS] = np.log1p(f.num_partners[v]) if inside else 0.0
        out[c, SOURCE_GAP] = source_gap
        out[c, CANDIDATE_GAP] = f.log_gap[v] if inside else NEVER_LOG_SECONDS

        # Transitions from the source's last partner to the candidate.
        out[c, TRANSITION_SHARE] = never_share
        out[c, SINCE_TRANSITION] = NEVER_LOG_EVENTS
        if before >= 0 and inside:
            key = _transition_key(before, v)
            place = mixed(key) & np.uint64(TRANSITIONS - 1)
            if f.step_key[place] == key:
                share = np.log(f.step_count[place] + UNSEEN_TRANSITIONS) - log_before
                out[c, TRANSITION_SHARE] = share
                out[c, SINCE_TRANSITION] = np.log1p(seen_before - f.step_at[place])
        out[c, THREE_HOP_PATHS] = np.log1p(f.mark[v]) if inside else 0.0

        # Frequency and recency of the pair, by the source's events.
        entry = find(f, pair_key(u, v)) if known and inside else -1
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

        # The same by the candidate's events.
        other = 1 - side if u != v else side
        if entry >= 0 and f.met_at[entry, other] >= 0:
            age = f.seen[v] - f.met_at[entry, other]
            for r in range(NUM_RATES):
                out[c, CANDIDATE_WEIGHT + r] = f.weight[entry, other, r] * _power(f, r, age)
            out[c, CANDIDATE_SINCE_MET] = np.log1p(age)
        else:
            for r in range(NUM_RATES):
                out[c, CANDIDATE_WEIGHT + r] = 0.0
            out[c, CANDIDATE_SINCE_MET] = log_candidate_seen

        # The pair's share of the source's events, and its hours of the day.
        out[c, PAIR_SHARE] = NO_LOG_EVENTS - log_source_share
        out[c, PAIR_HOUR_SHARE] = out[c, CANDIDATE_HOUR_SHARE] = ANY_LOG_HOUR_SHARE
        if entry >= 0:
            met = f.num_met[entry]
            out[c, PAIR_SHARE] = np.log(met + UNSEEN_PAIR) - log_source_share
            out[c, PAIR_HOUR_SHARE] = _log_hour_share(events_around(f, u, v, hour), met)
        if inside and f.seen[v] > 0:
            around = events_around(f, ANYONE, v, hour)
            out[c, CANDIDATE_HOUR_SHARE] = _log_hour_share(around, f.seen[v])

        # Times since one sent to the other.
        out[c, SINCE_SENT] = _log_seconds(time, f.sent[entry, side] if entry >= 0 else NEVER)
        out[c, SINCE_RECEIVED] = _log_seconds(
            time, f.sent[entry, (1 - side) if u != v else side] if entry >= 0 else NEVER
        )

        # The candidate's popularity.
        for h in range(NUM_HALF_LIVES):
            share = FLOOR_LOG_SHARE
            if inside and f.pop_at[v] != NEVER:
                share = f.log_pop[v, h] - (time - f.pop_at[v]) * f.decay[h] - log_total[h]
            out[c, SHARE + h] = max(share, FLOOR_LOG_SHARE)
        out[c, SINCE_DESTINATION] = _log_seconds(time, f.last_dst[v] if inside else NEVER)
        out[c, SINCE_SOURCE] = since_source
        out[c, SOURCE_EVENTS] = log_seen
        out[c, CANDIDATE_EVENTS] = log_candidate_seen

    # Co-visits of each candidate with the source's last destinations.
    if known:
        fill_covisits(f, u, candidates, out[:, COVISITS], out[:, GREATEST_COVISITS])

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


@compiled_for(FACTS, INTS, INTS, INTS, INTS, INTS_2D, WRITTEN_FACTS, INT, INTS, INTS)
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
    """Add events in order. For an event with row_of[i] >= 0, first write the facts of its
    candidates strictly before the event's time.

    row_of: int64[E], row of the event in candidates and out, -1 for none. candidates: int64[R, C].
    out: float32[R, C, NUM_FACTS]. gone: int64[D], deleted nodes. gone_at: int64[D], ascending, the
    index of the event before which each is deleted.
    """
    i = done = np.int64(0)
    while i < len(src):
        done = _forget_until(f, gone, gone_at, done, i)

        # Facts are strictly before the event's time, so write all rows of equal times first.
        j = i
        while j < len(src) and time[j] == time[i]:
            if row_of[j] >= 0:
                fill_rows(f, src[j], candidates[row_of[j]], time[j], out[row_of[j]])
            j += 1

        # Then add these events one by one, with the deletes between them.
        for k in range(i, j):
            done = _forget_until(f, gone, gone_at, done, k)
            update(f, src[k], dst[k], time[k], max_pairs)
        i = j
    _forget_until(f, gone, gone_at, done, len(src))


@compiled_for(FACTS, INTS, INTS, INTS_2D, WRITTEN_FACTS)
def fill_many(
    f: FactArrays,
    src: NDArray[Any],
    time: NDArray[Any],
    candidates: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Write the facts of queries, without changing the state. src, time: int64[R]; candidates:
    int64[R, C]; out: float32[R, C, NUM_FACTS]."""
    for r in range(len(src)):
        fill_rows(f, src[r], candidates[r], time[r], out[r])
