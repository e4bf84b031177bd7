"""Where deletes and node features lie among the events: they have no event time of their own.

Such an event goes by its record's timestamp, moved to event time by what times lead timestamps by
lately. That is an estimate; what a producer must be able to rely on is exact:

- it never lies before what lies before it in its partition;
- a delete lies behind every event it names that was produced before it, in any partition;
- an event that lies behind a delete in the same partition stays behind it, and so is not hidden.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamd.events import DELETE, EDGE, Bools, Int64
from streamd.ingest.block import NO_STAMP, Block, Rows, has_time

NEVER = -(2**63)
ALWAYS = 2**63 - 1
Name = tuple[int, ...]
"""What a delete names: (node,), or (source, destination, event time)."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the merge knows beside the buffers. Times in microseconds.

    lead: what event times lead record timestamps by, None before any event. reached: record
    timestamp up to which all other partitions were read. bound: events before this time may go,
    None: all. overdue: (offset, item) up to which events have waited long enough for other
    partitions.
    """

    lead: int | None
    reached: int
    bound: int | None
    overdue: tuple[int, int]


def place_untimed(own: Block, others: Sequence[Block], now: Situation) -> tuple[Int64, Bools]:
    """Order the buffer of one partition that holds events without a time.

    Args: others: the buffers of the other partitions.
    Returns: int64[n], the time by which each event goes; bool[n], whether it may go now.
    """
    rows = own.rows
    timed = has_time(rows)
    behind_deletes = _later_matches(own)

    # The estimate, no later than an event that must stay behind, no earlier than all that lies
    # before.
    wanted = np.full(len(rows), NEVER)
    if now.lead is not None:
        wanted = np.where(rows["stamp"] != NO_STAMP, rows["stamp"] + now.lead, NEVER)
    latest = np.full(len(rows), ALWAYS)
    for delete, later in behind_deletes:
        latest[delete] = min(latest[delete], rows["time"][later])
    latest = np.minimum.accumulate(latest[::-1])[::-1]
    earliest = np.maximum.accumulate(np.where(timed, rows["time"], NEVER))
    estimate = np.maximum(earliest, np.minimum(wanted, latest))
    at = np.where(timed, rows["time"], np.maximum.accumulate(np.where(timed, NEVER, estimate)))

    # It waits until all others were read up to its timestamp, and until its time has come.
    held = ~timed & (rows["stamp"] > now.reached)
    ready = _due(rows, timed, at, now) & ~(np.logical_or.accumulate(held) & ~timed)

    # What it names and was produced before it, but goes later, goes first.
    leaving = np.flatnonzero(ready & (rows["kind"] == DELETE))
    for delete, time_us in _produced_before(own, leaving, others):
        if time_us > at[delete]:
            at[delete] = time_us
            at = np.where(timed, at, np.maximum.accumulate(np.where(timed, NEVER, at)))
            ready &= timed | _due(rows, timed, at, now)

    # What lies behind a delete that names it waits for it.
    for delete, later in behind_deletes:
        at[later] = max(at[later], at[delete])
        ready[later] &= ready[delete]
    return at, ready


def _due(rows: Rows, timed: Bools, at: Int64, now: Situation) -> Bools:
    """Whether the time of each event has come."""
    if now.bound is None:
        return np.ones(len(rows), np.bool_)
    offset, item = now.overdue
    waited = (rows["offset"] < offset) | ((rows["offset"] == offset) & (rows["item"] <= item))
    due: Bools = (at < now.bound) | (~timed & waited)
    return due


def _later_matches(block: Block) -> list[tuple[int, int]]:
    """(delete, later) pairs of one partition's buffer: a timed event behind a delete that names it."""
    rows = block.rows
    deletes = np.flatnonzero(rows["kind"] == DELETE)
    if not len(deletes):
        return []
    near = _may_be_named(rows, rows["a"][deletes])
    near[: deletes[0]] = False
    if not near.any():
        return []
    near[deletes] = True
    pairs: list[tuple[int, int]] = []
    seen: dict[Name, list[int]] = defaultdict(list)
    for i in np.flatnonzero(near).tolist():
        if rows["kind"][i] == DELETE:
            seen[_named_by(block, i)].append(i)
        else:
            pairs += [(delete, i) for name in _names_of(rows, i) for delete in seen.get(name, ())]
    return pairs


def _produced_before(
    own: Block, deletes: Int64, others: Sequence[Block]
) -> Iterator[tuple[int, int]]:
    """For each of some deletes: the newest time of the events of other partitions that it names and
    that have no later timestamp than it."""
    if not len(deletes):
        return
    named = own.rows["a"][deletes]
    known: dict[Name, list[tuple[int, int]]] = defaultdict(list)
    for block in others:
        for i in np.flatnonzero(_may_be_named(block.rows, named)).tolist():
            for name in _names_of(block.rows, i):
                known[name].append((int(block.rows["stamp"][i]), int(block.rows["time"][i])))
    for events in known.values():
        events.sort()
    for delete in deletes.tolist():
        events = known.get(_named_by(own, delete), [])
        before = events[: bisect_right(events, (int(own.rows["stamp"][delete]), ALWAYS))]
        if before:
            yield delete, max(time_us for _, time_us in before)


def _may_be_named(rows: Rows, named: Int64) -> Bools:
    found: Bools = has_time(rows) & (np.isin(rows["a"], named) | np.isin(rows["b"], named))
    return found


def _named_by(block: Block, delete: int) -> Name:
    """What a delete names."""
    row = block.rows[delete]
    if row["b"] < 0:
        return (int(row["a"]),)
    return int(row["a"]), int(row["b"]), int(block.extras[int(row["extra"])][0])


def _names_of(rows: Rows, event: int) -> set[Name]:
    """All that would hide a timed event."""
    a, b = int(rows["a"][event]), int(rows["b"][event])
    if rows["kind"][event] == EDGE:
        return {(a,), (b,), (a, b, int(rows["time"][event]))}
    return {(a,)}
