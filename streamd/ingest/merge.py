"""Partitions merged by event time: those ahead wait for those behind, live ones for a bounded wall
time.

Pure: fed with events, ends and a clock reading, it says which events may be appended now and what
to read on from.

Edges and labels go by their own time. Deletes and node features have none: they go by their
record's timestamp plus what event times lead timestamps by lately, never before what lies before
them in their partition.
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
"""Events whose (time - timestamp) tells where in event time a record without a time belongs."""
Place = tuple[int, int]
"""Offset and item of an event in its partition."""


@dataclass(eq=False)
class _Partition:
    """following: place behind all that was pushed. frontier: newest event time pushed. reached:
    newest record timestamp pushed. num_untimed: buffered events without a time of their own."""

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
        """Whether nothing that came since the start has a time: then its end is nobody's business."""
        return self.pushed and self.frontier == NEVER

    def buffer(self) -> Block:
        """All that is buffered, as one block."""
        if len(self.blocks) > 1:
            self.blocks = [joined(self.blocks)]
        return self.blocks[0]

    def keep(self, block: Block) -> None:
        """Buffer this and nothing else."""
        timed = block.rows["time"][has_time(block.rows)] if self.num_untimed else block.rows["time"]
        self.num_buffered = len(block)
        self.num_untimed = len(block) - len(timed)
        self.blocks = [block] if len(block) else []
        self.earliest = int(timed.min()) if len(timed) else ALWAYS


class _Arrival(NamedTuple):
    """What one push brought: when, its newest event time, and the place of its last event."""

    at: float
    newest: int
    part: _Partition
    last: Place


class Merger:
    """Buffers events per partition and releases them in time order. Owner: the poll thread.

    An event leaves when no partition that is still behind can hold an earlier one. A partition read
    to its end holds the others back for `wait_seconds` only; one that never had an event with a
    time holds nobody back.
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
        """Of all partitions, oldest first."""
        self._leads = np.zeros(0, np.int64)

    def start(self, source: int, position: Position) -> None:
        """Read `source` on from a stored position."""
        part = self._parts[source]
        part.following = (position.offset, position.index)
        part.ahead = list(position.ahead)
        part.ever = position.offset > 0

    def push(self, source: int, events: Block, following: Place, at_end: bool, now: float) -> None:
        """Take what one poll brought from one partition.

        Args: events: in order of offset and item; following: place behind them, from which to read
        on;
            now: monotonic seconds.
        """
        part = self._parts[source]
        part.following = max(part.following, following)
        part.at_end = at_end
        if not len(events):
            return
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
        part.blocks.append(events)
        part.num_buffered += len(rows)
        part.num_untimed += len(rows) - len(timed)
        self._arrivals.append(_Arrival(now, newest, part, _place(rows[-1])))

    def release(self, now: float, limit: int) -> Block:
        """Events that may be appended now, in log order, at most `limit`."""
        waiting = [p for p in self._parts if p.num_buffered]
        bound = self._bound(now)
        taken = [p for p in waiting if bound is None or p.earliest < bound]
        if any(p.num_untimed for p in waiting):
            taken = waiting
        if not taken:
            return empty_block(self._dim)

        # Order what may go.
        merged = joined([p.buffer() for p in taken])
        at, ready = self._placed(taken, merged, bound, now)
        order = _log_order(merged.rows, at)
        if ready is not None:
            order = order[ready[order]]
        order = order[:limit]

        # Take it out of the buffers, remembering what goes ahead of something that stays.
        if len(taken) == 1 and _is_prefix(order):
            released, rest = merged.split(len(order))
            self._keep(taken[0], rest, ())
        else:
            released = merged.take(order)
            gone = np.zeros(len(merged), np.bool_)
            gone[order] = True
            first = 0
            for part in taken:
                buffer = part.buffer()
                left = gone[first : first + len(buffer)]
                self._keep(part, buffer.take(~left), _places(buffer.rows[left]))
                first += len(buffer)

        # Forget the arrivals of which nothing is left.
        oldest = min(p.earliest for p in waiting)
        self._arrivals = [
            a
            for a in self._arrivals
            if a.newest >= oldest or (a.part.num_untimed and a.last >= _first(a.part.buffer().rows))
        ]
        return released

    def _bound(self, now: float) -> int | None:
        """Events strictly before this time may go; None: all of them."""
        if len(self._parts) == 1:
            return None
        live = [p.frontier for p in self._parts if p.at_end and p.ever and not p.only_untimed]
        overdue = [a.newest for a in self._arrivals if now - a.at >= self.wait_seconds]
        until = min(live) if live else ALWAYS
        if overdue:
            until = max(until, max(overdue) + 1)
        return min([until, *(p.frontier for p in self._behind())])

    def _behind(self) -> list[_Partition]:
        """Partitions that may still hold an earlier event, for which the others wait.

        Not one of which only events without a time are known; and not one that is full of them,
        which can be read on only when they leave.
        """
        return [
            p
            for p in self._parts
            if not p.at_end and not p.only_untimed and not p.num_untimed >= self.max_buffered
        ]

    def _placed(
        self, taken: Sequence[_Partition], merged: Block, bound: int | None, now: float
    ) -> tuple[Int64, Bools | None]:
        """Time by which each event of the joined buffers goes, and which may go now; None: all."""
        time = merged.rows["time"]
        if not any(p.num_untimed for p in taken):
            return time, None if bound is None else time < bound
        # While partitions are behind nothing is overdue: what they hold may have to go first.
        overdue = (
            [] if self._behind() else [a for a in self._arrivals if now - a.at >= self.wait_seconds]
        )
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
        """Record timestamp up to which all other partitions that can be read on were read."""
        return min(
            (
                p.reached
                for p in self._parts
                if p is not part and not p.at_end and p.num_buffered < self.max_buffered
            ),
            default=ALWAYS,
        )

    def _learn_leads(self, timed: Rows) -> None:
        newest = timed[timed["stamp"] != NO_STAMP][-NUM_LEADS:]
        self._leads = np.concatenate([self._leads, newest["time"] - newest["stamp"]])[-NUM_LEADS:]

    @staticmethod
    def _keep(part: _Partition, rest: Block, left: Sequence[Place]) -> None:
        """Go on with `rest` in the buffer. left: places of events that went while others before
        them may have stayed."""
        part.keep(rest)
        first = _first(rest.rows) if len(rest) else part.following
        part.ahead = sorted(x for x in (*part.ahead, *left) if x >= first)

    def position(self, source: int) -> Position:
        """Where to read on from, given that all released events are in the log."""
        part = self._parts[source]
        first = _first(part.buffer().rows) if part.num_buffered else part.following
        return Position(*first, tuple(x for x in part.ahead if x >= first))

    def paused(self) -> list[int]:
        """Partitions that should not be polled now: full buffers, except the one all others wait
        for."""
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
        """Seconds until a buffered event may leave without news from other partitions; 3600 with
        none waiting."""
        if not self._arrivals:
            return 3600.0
        if len(self._parts) == 1:
            return 0.0
        return max(0.0, self._arrivals[0].at + self.wait_seconds - now)

    def buffers(self) -> list[Block]:
        """All that is buffered."""
        return [p.buffer() for p in self._parts if p.num_buffered]

    @property
    def num_buffered(self) -> int:
        return sum(p.num_buffered for p in self._parts)

    @property
    def all_at_end(self) -> bool:
        return all(p.at_end for p in self._parts)


def not_yet_appended(rows: Rows, resume: Position) -> NDArray[np.bool_]:
    """Which events of a partition, read again from `resume`, the log does not hold: bool[n]."""
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
    if (at[1:] > at[:-1]).all():
        return np.arange(len(rows))
    return np.lexsort((rows["item"], rows["offset"], rows["source"], at))


def _is_prefix(order: NDArray[np.int64]) -> bool:
    """Whether places in a buffer are its first ones, in order: then they leave in order of offset
    too."""
    return not len(order) or bool(
        order[0] == 0 and order[-1] == len(order) - 1 and (order[1:] > order[:-1]).all()
    )


def _first(rows: Rows) -> Place:
    """Place of the first event of a buffer, which is in order of offset and item."""
    return _place(rows[0])


def _place(row: np.void) -> Place:
    return int(row["offset"]), int(row["item"])


def _places(rows: Rows) -> Sequence[Place]:
    return list(zip(rows["offset"].tolist(), rows["item"].tolist(), strict=True))
