"""Orders deletes and node features, which have no event time, among the other events.

Their time is estimated: the record's timestamp plus the usual difference of event time and
timestamp. Three orders are exact, since a producer must be able to rely on them:

- such an event never comes before an event that precedes it in its partition;
- a delete comes after every event it names that was produced before it, in any partition;
- an event that follows a delete in the same partition stays after it, and so is not hidden.

Untimed events of a partition keep their order. So it is enough to bind an event to the newest
delete before it that names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamd.decode.block import NO_STAMP, Block, Rows, has_time
from streamd.events import DELETE, EDGE, NODE, Bools, Int64

NEVER = -(2**63)
"""A time before all times: int64's smallest value."""
ALWAYS = 2**63 - 1
"""A time after all times."""
NONE = -1
"""No row, or no second endpoint."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The state of the merge as one partition sees it, apart from the buffers. Times are in
    microseconds.

    lead: usual difference of event time and record timestamp, None before any event. reached:
    record timestamp up to which all other partitions were read. bound: events before this time may
    be released, None for all. overdue: (offset, item) up to which events have waited long enough
    for other partitions. crowded: whether so many runs are in the log ahead of the waiting events
    that node features stop waiting.
    """

    lead: int | None
    reached: int
    bound: int | None
    overdue: tuple[int, int]
    crowded: bool = False


def order_events(
    joined: Block, sizes: Sequence[int], situations: Sequence[Situation]
) -> tuple[Int64, Bools]:
    """Order the events of several partitions, some of them without a time.

    Args: joined: their buffers, concatenated. sizes: events of each. situations: of each.

    Returns: the time that orders each event, int64[n] microseconds, and whether it may be released
    now, bool[n].
    """
    rows = joined.rows
    names = _Names.of(joined, np.repeat(np.arange(len(sizes)), sizes))
    bound_by = names.newest_deletes()
    ends = np.cumsum(sizes)
    parts = [
        _Part(rows[a:b], np.where(bound_by[a:b] < 0, NONE, bound_by[a:b] - a), now)
        for a, b, now in zip(ends - sizes, ends, situations, strict=True)
    ]

    # A delete moves after the events it names that were produced before it.
    if len(names.deletes):
        leaving = np.concatenate([part.ready for part in parts])[names.deletes]
        moved = names.produced_before(leaving)
        for part, a, b in zip(parts, ends - sizes, ends, strict=True):
            own = slice(*np.searchsorted(names.deletes, (a, b)))
            part.move(names.deletes[own] - a, moved[own])
    for part in parts:
        part.bind()
    return np.concatenate([p.at for p in parts]), np.concatenate([p.ready for p in parts])


class _Part:
    """The order within one partition's buffer. Owner: `order_events`.

    bound_by: row of the newest delete before each event that names it, int64[n], NONE for no
    delete. at: the time that orders each event, int64[n]. ready: whether it may be released now.
    """

    def __init__(self, rows: Rows, bound_by: Int64, now: Situation) -> None:
        self._rows = rows
        self._bound_by = bound_by
        self._now = now
        self._timed = timed = has_time(rows)
        if timed.all():
            self.at = rows["time"]
            self.ready = self._due()
            return

        # Estimate the time, within the events that must come before and after.
        stamp = rows["stamp"]
        waits = ~timed & ~(now.crowded & (rows["kind"] == NODE))
        wanted = np.full(len(rows), NEVER)
        if now.lead is not None:
            wanted = np.where(waits & (stamp != NO_STAMP), stamp + now.lead, NEVER)
        latest = np.full(len(rows), ALWAYS)
        bound = np.flatnonzero(bound_by >= 0)
        np.minimum.at(latest, bound_by[bound], rows["time"][bound])
        latest = np.minimum.accumulate(latest[::-1])[::-1]
        earliest = np.maximum.accumulate(np.where(timed, rows["time"], NEVER))
        self._keep_order(np.maximum(earliest, np.minimum(wanted, latest)))

        # An untimed event waits until all other partitions were read up to its timestamp, and until
        # its time has come.
        held = waits & (stamp > now.reached)
        self.ready = self._due() & ~(np.logical_or.accumulate(held) & ~timed)

    def _keep_order(self, at: Int64) -> None:
        """Give the untimed events these times, but none a time before that of an earlier one."""
        behind = np.maximum.accumulate(np.where(self._timed, NEVER, at))
        self.at = np.where(self._timed, self._rows["time"], behind)

    def _due(self) -> Bools:
        """Whether the time of each event has come, or it has waited long enough: bool[n]."""
        rows, now = self._rows, self._now
        if now.bound is None:
            return np.ones(len(rows), np.bool_)
        offset, item = now.overdue
        waited = (rows["offset"] < offset) | ((rows["offset"] == offset) & (rows["item"] <= item))
        due: Bools = (self.at < now.bound) | (~self._timed & waited)
        return due

    def move(self, deletes: Int64, after: Int64) -> None:
        """Move each delete, given by row, to its time in `after` if that is later; NEVER leaves
        it."""
        if (after > self.at[deletes]).any():
            at = self.at.copy()
            at[deletes] = np.maximum(at[deletes], after)
            self._keep_order(at)
            self.ready &= self._timed | self._due()

    def bind(self) -> None:
        """Make each event wait for the delete that binds it."""
        bound = np.flatnonzero(self._bound_by >= 0)
        delete = self._bound_by[bound]
        self.at[bound] = np.maximum(self.at[bound], self.at[delete])
        self.ready[bound] &= self.ready[delete]


@dataclass(frozen=True, kw_only=True)
class _Names:
    """Matches deletes with the events that they name.

    A name is the number of a node or of an edge. Each of D deletes has one. A mention is a timed
    event with such a name; an edge has three: its own and those of both endpoints. There are M
    mentions.

    rows: of all partitions. part: int64[n] number of the partition of each row. deletes: int64[D],
    their rows, ascending, and delete_name. mentioned: int64[M], rows, and mention_name, ascending.
    """

    rows: Rows
    part: Int64
    deletes: Int64
    delete_name: Int64
    mentioned: Int64
    mention_name: Int64

    @classmethod
    def of(cls, block: Block, part: Int64) -> "_Names":
        rows = block.rows
        deletes = np.flatnonzero(rows["kind"] == DELETE)

        # Consider only events that share a key with a delete.
        named = rows["a"][deletes]
        near = has_time(rows)
        if len(deletes):
            near &= np.isin(rows["a"], named) | np.isin(rows["b"], named)
        else:
            near[:] = False
        near_M = np.flatnonzero(near)
        edge_M = near_M[rows["kind"][near_M] == EDGE]

        # A name is (node, NONE, 0) or (source, destination, event time).
        time_D = np.zeros(len(deletes), np.int64)
        of_edge = np.flatnonzero(rows["b"][deletes] >= 0)
        extras = rows["extra"][deletes[of_edge]].tolist()
        time_D[of_edge] = [int(block.extras[x][0]) for x in extras]
        columns = (
            (deletes, rows["a"][deletes], rows["b"][deletes], time_D),
            (near_M, rows["a"][near_M], NONE, 0),
            (edge_M, rows["b"][edge_M], NONE, 0),
            (edge_M, rows["a"][edge_M], rows["b"][edge_M], rows["time"][edge_M]),
        )
        row, *name = (
            np.concatenate([np.broadcast_to(c[i], c[0].shape) for c in columns]) for i in range(4)
        )
        number = _number_rows(name)
        count = len(deletes)
        mention_name = number[count:]
        known = np.flatnonzero(np.isin(mention_name, number[:count]))
        known = known[np.argsort(mention_name[known], kind="stable")]
        return cls(
            rows=rows,
            part=part,
            deletes=deletes,
            delete_name=number[:count],
            mentioned=row[count:][known],
            mention_name=mention_name[known],
        )

    def newest_deletes(self) -> Int64:
        """Row of the newest delete before each event, in its partition, that names it: int64[n],
        NONE for no delete."""
        count = len(self.rows)
        newest = np.full(count, NONE, np.int64)
        if len(self.mentioned):
            # In order of name and row, the delete right before a mention is the newest.
            placed = np.sort(self.delete_name * count + self.deletes)
            before = np.searchsorted(placed, self.mention_name * count + self.mentioned) - 1
            name, delete = np.divmod(placed[before], count)
            own = self.part[delete] == self.part[self.mentioned]
            found = np.flatnonzero((before >= 0) & (name == self.mention_name) & own)
            np.maximum.at(newest, self.mentioned[found], delete[found])
        return newest

    def produced_before(self, chosen: Bools) -> Int64:
        """The earliest time that each chosen delete may have: after all events of other partitions
        that it names and that were produced before it. It is 1 us after the newest of them,
        int64[D], NEVER for none; at equal times the number of the partition would decide the order.

        "Produced before" means a record timestamp that is not later than the delete's.
        """
        newest = np.full(len(self.deletes), NEVER)
        if not len(self.mentioned):
            return newest
        part = self.part[self.deletes]
        for number in np.unique(part[chosen]).tolist():
            own = np.flatnonzero(chosen & (part == number))
            newest[own] = self._newest_elsewhere(number, own)
        return newest

    def _newest_elsewhere(self, part: int, own: Int64) -> Int64:
        """As `produced_before`, for the deletes `own` of partition `part`."""
        # Gather the mentions of their names in other partitions: (name, timestamp, time).
        names, name_D = np.unique(self.delete_name[own], return_inverse=True)
        first = np.searchsorted(self.mention_name, names)
        sizes = np.searchsorted(self.mention_name, names, side="right") - first
        name = np.repeat(np.arange(len(names)), sizes)
        index = np.arange(len(name)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        elsewhere = self.part[self.mentioned[index]] != part
        name, event = name[elsewhere], self.mentioned[index[elsewhere]]
        if not len(event):
            return np.full(len(own), NEVER)

        # Number timestamps and times, so that a pair of name and number fits one integer.
        stamps, stamp = np.unique(self.rows["stamp"][event], return_inverse=True)
        times, time = np.unique(self.rows["time"][event], return_inverse=True)
        placed = name * len(stamps) + stamp
        order = np.argsort(placed, kind="stable")
        placed = placed[order]
        newest = np.maximum.accumulate((name * len(times) + time)[order])

        # The mention right before each delete, in order of name and timestamp.
        until = np.searchsorted(stamps, self.rows["stamp"][self.deletes[own]], side="right") - 1
        at = np.searchsorted(placed, name_D * len(stamps) + until, side="right") - 1
        found = (at >= 0) & (placed[at] // len(stamps) == name_D)
        return np.where(found, times[newest[at] % len(times)] + 1, NEVER)


def _number_rows(columns: Sequence[Int64]) -> Int64:
    """Number the distinct rows of a table of k columns of n values: int64[n]."""
    order = np.lexsort(columns)
    number = np.zeros(len(order), np.int64)
    if len(order):
        differs = np.logical_or.reduce([c[order][1:] != c[order][:-1] for c in columns])
        number[order[1:]] = np.cumsum(differs)
    return number
