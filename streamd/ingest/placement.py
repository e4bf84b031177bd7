"""Placement of deletes and node features, which have no event time, among the other events.

Such an event is placed by its record's timestamp plus the usual difference of event time and
timestamp. That is an estimate. What a producer must be able to rely on is exact:

- the event is never placed before an event that precedes it in its partition;
- a delete is placed after every event it names that was produced before it, in any partition;
- an event that follows a delete in the same partition stays after it, and so is not hidden.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamd.events import DELETE, EDGE, Bools, Int64
from streamd.ingest.block import NO_STAMP, Block, Rows, has_time

NEVER = -(2**63)
"""A time before all times: int64's smallest value."""
ALWAYS = 2**63 - 1
"""A time after all times."""
Name = tuple[int, ...]
"""What a delete names, by key numbers: (node,), or (source, destination, event time)."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The state of the merge apart from its buffers. Times are in microseconds.

    lead: usual difference of event time and record timestamp, None before any event. reached:
    record timestamp up to which all other partitions were read. bound: events before this time may
    be released, None for all. overdue: (offset, item) up to which events have waited long enough
    for other partitions.
    """

    lead: int | None
    reached: int
    bound: int | None
    overdue: tuple[int, int]


def place_untimed(own: Block, others: Sequence[Block], now: Situation) -> tuple[Int64, Bools]:
    """Place the events of one partition's buffer, some of which have no time.

    Args: others: the buffers of the other partitions.
    Returns: the time that orders each event, int64[n] microseconds, and whether it may be released
        now, bool[n].
    """
    rows = own.rows
    timed = has_time(rows)
    behind_deletes = _later_matches(own)

    # Estimate the time: before every event that must come after, and after all that come before.
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

    # A delete moves after the events it names that were produced before it.
    leaving = np.flatnonzero(ready & (rows["kind"] == DELETE))
    for delete, time_us in _produced_before(own, leaving, others):
        if time_us > at[delete]:
            at[delete] = time_us
            at = np.where(timed, at, np.maximum.accumulate(np.where(timed, NEVER, at)))
            ready &= timed | _due(rows, timed, at, now)

    # An event that follows a delete of it waits for the delete.
    for delete, later in behind_deletes:
        at[later] = max(at[later], at[delete])
        ready[later] &= ready[delete]
    return at, ready


def _due(rows: Rows, timed: Bools, at: Int64, now: Situation) -> Bools:
    """Whether the time of each event has come, or it has waited long enough: bool[n]."""
    if now.bound is None:
        return np.ones(len(rows), np.bool_)
    offset, item = now.overdue
    waited = (rows["offset"] < offset) | ((rows["offset"] == offset) & (rows["item"] <= item))
    due: Bools = (at < now.bound) | (~timed & waited)
    return due


def _later_matches(block: Block) -> list[tuple[int, int]]:
    """Pairs (delete, later event that it names) of one partition's buffer, by index."""
    rows = block.rows
    deletes = np.flatnonzero(rows["kind"] == DELETE)
    if not len(deletes):
        return []

    # Only events that share a key with a delete are looked at one by one.
    near = _may_be_named(rows, rows["a"][deletes])
    near[: deletes[0]] = False
    if not near.any():
        return []
    near[deletes] = True

    # Go through them in order, remembering the deletes of each name.
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
    """Yield (delete, time) for deletes that name events of other partitions produced before them.

    The time is that of the newest such event. Produced before means that the record's timestamp is
    not later than the delete's.
    """
    if not len(deletes):
        return

    # Collect (timestamp, time) of the events that may be meant, by what could name them.
    named = own.rows["a"][deletes]
    known: dict[Name, list[tuple[int, int]]] = defaultdict(list)
    for block in others:
        for i in np.flatnonzero(_may_be_named(block.rows, named)).tolist():
            for name in _names_of(block.rows, i):
                known[name].append((int(block.rows["stamp"][i]), int(block.rows["time"][i])))

    # Look up each delete.
    for events in known.values():
        events.sort()
    for delete in deletes.tolist():
        events = known.get(_named_by(own, delete), [])
        before = events[: bisect_right(events, (int(own.rows["stamp"][delete]), ALWAYS))]
        if before:
            yield delete, max(time_us for _, time_us in before)


def _may_be_named(rows: Rows, named: Int64) -> Bools:
    """Whether each row has a time and one of these keys: bool[n]."""
    matches: Bools = has_time(rows) & (np.isin(rows["a"], named) | np.isin(rows["b"], named))
    return matches


def _named_by(block: Block, delete: int) -> Name:
    """What a delete names."""
    row = block.rows[delete]
    if row["b"] < 0:
        return (int(row["a"]),)
    return int(row["a"]), int(row["b"]), int(block.extras[int(row["extra"])][0])


def _names_of(rows: Rows, event: int) -> set[Name]:
    """Every name by which a delete would hide a timed event."""
    a, b = int(rows["a"][event]), int(rows["b"][event])
    if rows["kind"][event] == EDGE:
        return {(a,), (b,), (a, b, int(rows["time"][event]))}
    return {(a,)}
