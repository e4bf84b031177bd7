"""Partitions merged by event time, each waiting for those behind it for a bounded wall time.

The merge is pure. It is given events, ends of partitions and readings of a clock. It answers which
events may be appended now, and where to read on.

Edges and labels are ordered by their own time. Deletes and node features have none. They are
ordered by their record's timestamp plus the usual difference of event time and timestamp, and never
before the events before them in their partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Int64, Position
from streamd.ingest.block import NO_STAMP, Block, Rows, empty_block, has_time, joined
from streamd.ingest.placement import ALWAYS, NEVER, Situation, place_untimed

NUM_LEADS = 1_000
"""Newest events whose (time - timestamp) is remembered. Their median places events without a time,
and single outliers do not move it."""
Place = tuple[int, int]
"""Offset and item of an event in its partition."""


@dataclass(eq=False)
class _Partition:
    """The buffer of one partition, and how far it was read. Owner: the merger.

    following: place after the last pushed event. frontier: newest event time pushed. reached:
    newest record timestamp pushed. at_end: it was read to its end. ever: it has had an event with a
    time. num_untimed: buffered events without a time of their own. ahead: places of events that
    were released before an earlier place was.
    """

    frontier: int = NEVER
    reached: int = NEVER
    at_end: bool = False
    ever: bool = False
    pushed: bool = False
    following: Place = (0, 0)
    blocks: list[Block] = field(default_factory=list)
    num_buffered: int = 0
    num_untimed: int = 0
    earliest: int = ALWAYS
    ahead: list[Place] = field(default_factory=list)

    @property
    def only_untimed(self) -> bool:
        """Whether no event since the start has a time; then no partition waits for this one."""
        return self.pushed and self.frontier == NEVER

    def buffer(self) -> Block:
        """The buffered events as one block."""
        if len(self.blocks) > 1:
            self.blocks = [joined(self.blocks)]
        return self.blocks[0]

    def head(self, count: int) -> Block:
        """Buffered events, all of which have a time, among which the first `count` in log order
        are."""
        buffer = self.buffer()
        time = buffer.rows["time"]
        if len(buffer) <= count or buffer.extras or (time[1:] < time[:-1]).any():
            return buffer
        return buffer.split(count)[0]

    def take_out(self, gone: Bools) -> None:
        """Take out events that are released. gone: bool, of the first events of the buffer."""
        # Usually they are the first ones; the rest is not copied then.
        buffer = self.buffer()
        count = int(gone.sum())
        left: Sequence[Place] = ()
        if gone[:count].all():
            rest = buffer.split(count)[1]
        else:
            # Remember those that were released while others before them are still buffered.
            gone = np.append(gone, np.zeros(len(buffer) - len(gone), np.bool_))
            rest = buffer.take(~gone)
            left = _places(buffer.rows[gone])
        self.keep(rest)
        first = _first(rest.rows) if len(rest) else self.following
        self.ahead = sorted(x for x in (*self.ahead, *left) if x >= first)

    def keep(self, block: Block) -> None:
        """Replace the buffer by this block."""
        timed = block.rows["time"][has_time(block.rows)] if self.num_untimed else block.rows["time"]
        self.num_buffered = len(block)
        self.num_untimed = len(block) - len(timed)
        self.blocks = [block] if len(block) else []
        self.earliest = int(timed.min()) if len(timed) else ALWAYS


class _Arrival(NamedTuple):
    """One push. at: monotonic seconds. newest: newest event time. last: place of its last event."""

    at: float
    newest: int
    part: _Partition
    last: Place


class Merger:
    """Buffers events per partition and releases them in time order. Owner: the poll thread.

    An event is released when no partition that is still behind can hold an earlier one. The others
    wait for a partition that was read to its end for `wait_seconds` only. They do not wait for one
    that never had an event with a time.
    """

    def __init__(
        self,
        num_sources: int,
        wait_seconds: float,
        edge_feature_dim: int,
        max_buffered: int = 50_000,
    ) -> None:
        self.wait_seconds = wait_seconds
        self.max_buffered = max_buffered
        self._dim = edge_feature_dim
        self._parts = [_Partition() for _ in range(num_sources)]
        self._arrivals: list[_Arrival] = []
        """Pushes of all partitions of which events are buffered, oldest first."""
        self._leads = np.zeros(0, np.int64)

    def start(self, source: int, position: Position) -> None:
        """Begin a partition at its stored position."""
        part = self._parts[source]
        part.following = (position.offset, position.index)
        part.ahead = list(position.ahead)
        part.ever = position.offset > 0

    def push(self, source: int, events: Block, following: Place, at_end: bool, now: float) -> None:
        """Take what one poll brought from one partition.

        Args: events: in order of offset and item; following: the place after them, from which to
        read on; now: monotonic seconds.
        """
        part = self._parts[source]
        part.following = max(part.following, following)
        part.at_end = at_end
        if not len(events):
            return

        # Note how far the partition was read, in event time and in record timestamps.
        part.pushed = True
        rows = events.rows
        timed = rows[has_time(rows)]
        newest = int(timed["time"].max()) if len(timed) else NEVER
        if len(timed):
            part.ever = True
            part.frontier = max(part.frontier, newest)
            part.earliest = min(part.earliest, int(timed["time"].min()))
            self._learn_leads(timed)
        part.reached = max(part.reached, int(rows["stamp"].max()))

        # Buffer the events.
        part.blocks.append(events)
        part.num_buffered += len(rows)
        part.num_untimed += len(rows) - len(timed)
        self._arrivals.append(_Arrival(now, newest, part, _place(rows[-1])))

    def release(self, now: float, limit: int) -> Block:
        """Take out the events that may be appended now, in log order, at most `limit`."""
        waiting = [p for p in self._parts if p.num_buffered]
        bound = self._bound(now)
        taken = [p for p in waiting if bound is None or p.earliest < bound]
        if any(p.num_untimed for p in waiting):
            taken = waiting
        if not taken:
            return empty_block(self._dim)

        # Order the events that may be released.
        timed = not any(p.num_untimed for p in taken)
        heads = [p.head(limit) if timed else p.buffer() for p in taken]
        merged = joined(heads)
        at, ready = self._placed(taken, merged, bound, now)
        order = _log_order(merged.rows, at)
        if ready is not None:
            order = order[ready[order]]
        order = order[:limit]

        # Take them out of the buffers.
        released = merged.take(order)
        gone = np.zeros(len(merged), np.bool_)
        gone[order] = True
        for part, own in zip(taken, np.split(gone, np.cumsum([*map(len, heads)])), strict=False):
            part.take_out(own)

        # Forget the arrivals of which no event is buffered.
        oldest = min(p.earliest for p in waiting)
        self._arrivals = [
            a
            for a in self._arrivals
            if a.newest >= oldest or (a.part.num_untimed and a.last >= _first(a.part.buffer().rows))
        ]
        return released

    def _bound(self, now: float) -> int | None:
        """The time before which events may be released; None for all."""
        if len(self._parts) == 1:
            return None
        # Partitions at their end are waited for until `wait_seconds` have passed.
        live = [p.frontier for p in self._parts if p.at_end and p.ever and not p.only_untimed]
        overdue = [a.newest for a in self._arrivals if now - a.at >= self.wait_seconds]
        until = min(live) if live else ALWAYS
        if overdue:
            until = max(until, max(overdue) + 1)
        return min([until, *(p.frontier for p in self._behind())])

    def _behind(self) -> list[_Partition]:
        """Partitions that may still hold an earlier event, for which the others wait.

        Left out: a partition of which only events without a time are known, and one whose buffer
        is full of them, since it can be read on only when they are released.
        """
        return [
            p
            for p in self._parts
            if not p.at_end and not p.only_untimed and not p.num_untimed >= self.max_buffered
        ]

    def _placed(
        self, taken: Sequence[_Partition], merged: Block, bound: int | None, now: float
    ) -> tuple[Int64, Bools | None]:
        """The time that orders each event of the joined buffers, int64[n] microseconds, and whether
        it may be released now, bool[n], None for all."""
        time = merged.rows["time"]
        # Where all events have a time, it alone orders them.
        if not any(p.num_untimed for p in taken):
            return time, None if bound is None else time < bound
        # While partitions are behind, nothing is overdue: their events may have to go first.
        overdue = (
            [] if self._behind() else [a for a in self._arrivals if now - a.at >= self.wait_seconds]
        )

        # A partition with events without a time is placed among the buffers of the others.
        at = []
        ready = []
        for part in taken:
            own = part.buffer()
            if not part.num_untimed:
                at.append(own.rows["time"])
                ready.append(
                    own.rows["time"] < bound if bound is not None else np.ones(len(own), np.bool_)
                )
                continue
            placed = place_untimed(
                own,
                [p.buffer() for p in taken if p is not part],
                Situation(
                    lead=int(np.median(self._leads)) if len(self._leads) else None,
                    reached=self._others_reached(part),
                    bound=bound,
                    overdue=max((a.last for a in overdue if a.part is part), default=(-1, -1)),
                ),
            )
            at.append(placed[0])
            ready.append(placed[1])
        return np.concatenate(at), np.concatenate(ready)

    def _others_reached(self, part: _Partition) -> int:
        """The record timestamp up to which all other partitions were read that can be read on."""
        return min(
            (
                p.reached
                for p in self._parts
                if p is not part and not p.at_end and p.num_buffered < self.max_buffered
            ),
            default=ALWAYS,
        )

    def _learn_leads(self, timed: Rows) -> None:
        """Remember (time - timestamp) of the newest events."""
        # Only the newest count, so that a producer whose clock changed is followed soon.
        newest = timed[timed["stamp"] != NO_STAMP][-NUM_LEADS:]
        self._leads = np.concatenate([self._leads, newest["time"] - newest["stamp"]])[-NUM_LEADS:]

    def position(self, source: int) -> Position:
        """Where to read on once all released events are in the log."""
        part = self._parts[source]
        first = _first(part.buffer().rows) if part.num_buffered else part.following
        return Position(*first, tuple(x for x in part.ahead if x >= first))

    def paused(self) -> list[int]:
        """Numbers of the partitions with full buffers, except those that all others wait for."""
        slowest = min((p.frontier for p in self._behind()), default=ALWAYS)
        return [
            i
            for i, p in enumerate(self._parts)
            if p.num_buffered >= self.max_buffered
            and (
                p.at_end
                or p.frontier > slowest
                or p.num_untimed >= self.max_buffered
                or p.only_untimed
            )
        ]

    def next_due(self, now: float) -> float:
        """Seconds until a buffered event may be released even if no partition brings more; 3600
        where none is buffered."""
        if not self._arrivals:
            return 3600.0
        if len(self._parts) == 1:
            return 0.0
        return max(0.0, self._arrivals[0].at + self.wait_seconds - now)

    def buffers(self) -> list[Block]:
        """The buffers of the partitions that have one."""
        return [p.buffer() for p in self._parts if p.num_buffered]

    @property
    def num_buffered(self) -> int:
        """Number of buffered events."""
        return sum(p.num_buffered for p in self._parts)

    @property
    def all_at_end(self) -> bool:
        """Whether all partitions were read to their end."""
        return all(p.at_end for p in self._parts)


def not_yet_appended(rows: Rows, resume: Position) -> NDArray[np.bool_]:
    """Whether the log lacks each event of a partition that is read again from `resume`: bool[n]."""
    offset = rows["offset"]
    item = rows["item"]
    missing: NDArray[np.bool_] = (offset > resume.offset) | (
        (offset == resume.offset) & (item >= resume.index)
    )
    if resume.ahead:
        ahead = set(resume.ahead)
        for i in np.flatnonzero(offset <= resume.ahead[-1][0]).tolist():
            missing[i] &= (int(offset[i]), int(item[i])) not in ahead
    return missing


def _log_order(rows: Rows, at: Int64) -> NDArray[np.int64]:
    """Indices in the order of the log: by time, then partition, offset and item."""
    if (at[1:] > at[:-1]).all():
        return np.arange(len(rows))
    return np.lexsort((rows["item"], rows["offset"], rows["source"], at))


def _first(rows: Rows) -> Place:
    """Place of the first event of a buffer, which is in order of offset and item."""
    return _place(rows[0])


def _place(row: np.void) -> Place:
    return int(row["offset"]), int(row["item"])


def _places(rows: Rows) -> Sequence[Place]:
    return list(zip(rows["offset"].tolist(), rows["item"].tolist(), strict=True))
