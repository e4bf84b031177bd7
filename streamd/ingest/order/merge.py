"""Merges partitions by event time; each waits a bounded wall time for slower ones.

The merge is pure: from events, ends of partitions and readings of a clock it computes the events
that may be appended now, and the positions to continue at.

Edges and labels are ordered by their own time. Deletes and node features have none. They are
ordered by their record's timestamp plus the usual difference of event time and timestamp, and never
before the events before them in their partition.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.decode.block import NO_STAMP, Block, Rows, empty_block, has_time, joined
from streamd.events import DELETE, Bools, Int64, OffsetItem, Position, Run
from streamd.ingest.order.placement import ALWAYS, NEVER, Situation, order_events
from streamd.ingest.order.runs import join_runs, offset_item, runs_from, runs_of

NUM_LEADS = 1_000
"""Number of newest events with a remembered lead (time - timestamp). The median lead estimates the
time of events without one; single outliers do not move it."""
MAX_RUNS = 500_000
"""Limit of runs of events ahead of all positions; at the limit partitions are paused. A run takes
up to 64 bytes in a journal line, of which followers accept at most 64 MiB."""
CROWDED_RUNS = 1_000
"""Runs ahead of one position at which its node features stop waiting: if each record holds a node
and an edge, the nodes would lag further and further."""
RUNS_SECONDS = 1.0
"""Longest wait for as many new events as a journal line lists runs: otherwise the journal would
grow faster than the log."""


@dataclass(eq=False)
class _Partition:
    """The buffer of one partition, and how far it was read. Owner: the merger.

    max_buffered, max_runs: limits at which it is paused. following: (offset, index) after the last
    pushed event. frontier: newest event time pushed. reached: newest record timestamp pushed.
    at_end: it was read to its end. ever: it has had an event with a time. num_untimed: buffered
    events without a time of their own, of which num_deletes are deletes. earliest: earliest
    buffered event time. ahead: runs of events that were released before an earlier event.
    """

    max_buffered: int
    max_runs: int
    frontier: int = NEVER
    reached: int = NEVER
    at_end: bool = False
    ever: bool = False
    pushed: bool = False
    following: OffsetItem = (0, 0)
    blocks: list[Block] = field(default_factory=list)
    num_buffered: int = 0
    num_untimed: int = 0
    num_deletes: int = 0
    earliest: int = ALWAYS
    ahead: tuple[Run, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether to pause the partition, because too many events are buffered or too many runs are
        ahead. Runs count only while events are buffered: runs from before a restart end only by
        further reading."""
        crowded = self.num_buffered > 0 and len(self.ahead) >= self.max_runs
        return crowded or self.num_buffered >= self.max_buffered

    @property
    def is_stuck(self) -> bool:
        """Whether reading can continue only after untimed events are released. Node features are
        released once enough runs are ahead of them; deletes may wait for other partitions."""
        return self.num_untimed >= self.max_buffered or (
            self.num_deletes > 0 and len(self.ahead) >= self.max_runs
        )

    @property
    def is_untimed(self) -> bool:
        """Whether no event since the start has a time; then no partition waits for this one."""
        return self.pushed and self.frontier == NEVER

    def buffer(self) -> Block:
        """The buffered events as one block."""
        if len(self.blocks) > 1:
            self.blocks = [joined(self.blocks)]
        return self.blocks[0]

    def head(self, count: int) -> Block:
        """Events of a buffer in which all have a time, among them the first `count` in log
        order."""
        buffer = self.buffer()
        time = buffer.rows["time"]
        if len(buffer) <= count or buffer.extras or (time[1:] < time[:-1]).any():
            return buffer
        return buffer.split(count)[0]

    def take_out(self, gone: Bools) -> None:
        """Remove released events. gone: bool, for the first events of the buffer."""
        # Usually they are the first ones; then the remaining events are not copied.
        buffer = self.buffer()
        count = int(gone.sum())
        runs: Sequence[Run] = self.ahead
        if gone[:count].all():
            rest = buffer.split(count)[1]
        else:
            # Remember events that were released while earlier ones are still buffered.
            gone = np.append(gone, np.zeros(len(buffer) - len(gone), np.bool_))
            rest = buffer.take(~gone)
            runs = [*runs, *runs_of(buffer.rows, gone)]
        self.keep(rest)
        self.ahead = join_runs(runs, rest.rows, self.following) if runs else ()

    def keep(self, block: Block) -> None:
        """Replace the buffer by this block."""
        timed = block.rows["time"]
        if self.num_untimed:
            timed = timed[has_time(block.rows)]
            self.num_deletes = int((block.rows["kind"] == DELETE).sum())
        self.num_buffered = len(block)
        self.num_untimed = len(block) - len(timed)
        self.blocks = [block] if len(block) else []
        self.earliest = int(timed.min()) if len(timed) else ALWAYS


class _Arrival(NamedTuple):
    """One push. at: monotonic seconds. newest: newest event time. last: (offset, index) of its last
    event."""

    at: float
    newest: int
    part: _Partition
    last: OffsetItem


class Merger:
    """Buffers events per partition and releases them in time order. Owner: the poll thread.

    An event is released once no slower partition can hold an earlier one. The others wait at most
    `wait_seconds` for a partition that was read to its end, and do not wait for one that never had
    an event with a time.
    """

    def __init__(
        self,
        num_sources: int,
        wait_seconds: float,
        edge_feature_dim: int,
        max_buffered: int = 50_000,
    ) -> None:
        self.wait_seconds = wait_seconds
        self._dim = edge_feature_dim
        max_runs = max(1, MAX_RUNS // num_sources)
        self._parts = [_Partition(max_buffered, max_runs) for _ in range(num_sources)]
        self._arrivals: list[_Arrival] = []
        """Pushes with events still buffered, oldest first. Pushes of one partition that have waited
        long enough are merged into one."""
        self._unspent = 0
        """Events that were pushed, minus the runs that the journal's lines have listed since."""
        self._released_at = -RUNS_SECONDS
        self._leads = np.zeros(0, np.int64)

    def start(self, source: int, position: Position) -> None:
        """Start a partition at its stored position."""
        part = self._parts[source]
        part.following = (position.offset, position.index)
        part.ahead = position.ahead
        part.ever = position.offset > 0

    def push(
        self, source: int, events: Block, following: OffsetItem, at_end: bool, now: float
    ) -> None:
        """Buffer the events that one poll brought from one partition.

        Args: events: in order of offset and item; following: (offset, index) after them, at which
        to continue; now: monotonic seconds.
        """
        part = self._parts[source]
        part.following = max(part.following, following)
        part.at_end = at_end
        if not len(events):
            # Without a waiting event, no run before this offset is needed any more.
            if not part.num_buffered:
                part.ahead = runs_from(part.ahead, part.following)
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
        part.num_deletes += int((rows["kind"] == DELETE).sum())
        self._arrivals.append(_Arrival(now, newest, part, offset_item(rows[-1])))
        self._unspent += len(rows)

    def release(self, now: float, limit: int) -> Block:
        """Remove and return the events that may be appended now, in log order, at most `limit`."""
        waiting = [p for p in self._parts if p.num_buffered]
        bound = self._bound(now)
        taken = [p for p in waiting if bound is None or p.earliest < bound]
        if any(p.num_untimed for p in waiting):
            taken = waiting
        num_runs = sum(len(p.ahead) for p in self._parts)
        if not taken or self._is_early(num_runs, now):
            return empty_block(self._dim)
        # Each event may begin a run; near the limit, release one event at a time.
        limit = max(1, min(limit, 2 * MAX_RUNS - num_runs))

        # Order the events that may be released.
        timed = not any(p.num_untimed for p in taken)
        heads = [p.head(limit) if timed else p.buffer() for p in taken]
        merged = joined(heads)
        at, ready = self._order_times(taken, merged, bound, now)
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
        self._forget_arrivals(min(p.earliest for p in waiting), now)
        if len(released):
            self._unspent = max(0, self._unspent - num_runs)
            self._released_at = now
        return released

    def _is_early(self, num_runs: int, now: float) -> bool:
        """Whether to wait for more events, so that the journal's lines list fewer runs than events
        arrive."""
        soon = now - self._released_at < RUNS_SECONDS
        return num_runs > self._unspent and soon and not self.all_at_end

    def _forget_arrivals(self, oldest: int, now: float) -> None:
        """Forget arrivals without buffered events. oldest: earliest buffered event time."""
        first = {p: offset_item(p.buffer().rows[0]) for p in self._parts if p.num_untimed}
        overdue: dict[_Partition, int] = {}
        kept: list[_Arrival] = []
        for a in self._arrivals:
            if a.newest < oldest and not (a.part in first and a.last >= first[a.part]):
                continue
            at = overdue.get(a.part)
            if at is not None and now - a.at >= self.wait_seconds:
                b = kept[at]
                kept[at] = b._replace(newest=max(a.newest, b.newest), last=max(a.last, b.last))
                continue
            if now - a.at >= self.wait_seconds:
                overdue[a.part] = len(kept)
            kept.append(a)
        self._arrivals = kept

    def _bound(self, now: float) -> int | None:
        """The time before which events may be released; None for all."""
        if len(self._parts) == 1:
            return None
        # Wait for partitions at their end, until `wait_seconds` have passed.
        live = [p.frontier for p in self._parts if p.at_end and p.ever and not p.is_untimed]
        overdue = [a.newest for a in self._arrivals if now - a.at >= self.wait_seconds]
        until = min(live) if live else ALWAYS
        if overdue:
            until = max(until, max(overdue) + 1)
        return min([until, *(p.frontier for p in self._behind())])

    def _behind(self) -> list[_Partition]:
        """Partitions that may still hold an earlier event, for which the others wait.

        Excludes partitions with only untimed events so far, and stuck ones (`is_stuck`).
        """
        return [p for p in self._parts if not p.at_end and not p.is_untimed and not p.is_stuck]

    def _order_times(
        self, taken: Sequence[_Partition], merged: Block, bound: int | None, now: float
    ) -> tuple[Int64, Bools | None]:
        """The time that orders each event of the joined buffers, int64[n] microseconds, and whether
        it may be released now, bool[n], None for all."""
        time = merged.rows["time"]
        # If all events have a time, it alone orders them.
        if not any(p.num_untimed for p in taken):
            return time, None if bound is None else time < bound
        # While there are slower partitions, no event is overdue: theirs may have to go first.
        overdue: dict[_Partition, OffsetItem] = {}
        if not self._behind():
            for a in self._arrivals:
                if now - a.at >= self.wait_seconds:
                    overdue[a.part] = max(a.last, overdue.get(a.part, a.last))
        # The two lowest record timestamps reached by partitions that can be read further: for every
        # partition they give the lowest among the others.
        reached = heapq.nsmallest(
            2,
            (
                (p.reached, i)
                for i, p in enumerate(self._parts)
                if not p.at_end and not p.is_stuck and p.num_buffered < p.max_buffered
            ),
        )

        lead = int(np.median(self._leads)) if len(self._leads) else None
        situations = [
            Situation(
                lead=lead,
                reached=next((r for r, i in reached if self._parts[i] is not part), ALWAYS),
                bound=bound,
                overdue=overdue.get(part, (-1, -1)),
                crowded=len(part.ahead) >= min(CROWDED_RUNS, part.max_runs),
            )
            for part in taken
        ]
        return order_events(merged, [p.num_buffered for p in taken], situations)

    def _learn_leads(self, timed: Rows) -> None:
        """Remember (time - timestamp) of the newest events."""
        # Only the newest count, so that a producer whose clock changed is followed soon.
        newest = timed[timed["stamp"] != NO_STAMP][-NUM_LEADS:]
        self._leads = np.concatenate([self._leads, newest["time"] - newest["stamp"]])[-NUM_LEADS:]

    def position(self, source: int) -> Position:
        """The position to continue at once all released events are in the log."""
        part = self._parts[source]
        first = offset_item(part.buffer().rows[0]) if part.num_buffered else part.following
        # Runs before the position need not be remembered.
        return Position(*first, runs_from(part.ahead, first))

    def partitions_to_pause(self) -> list[int]:
        """Numbers of the partitions that are full, except those that all others wait for."""
        slowest = min((p.frontier for p in self._behind()), default=ALWAYS)
        return [
            i
            for i, p in enumerate(self._parts)
            if p.is_full and (p.at_end or p.frontier > slowest or p.is_stuck or p.is_untimed)
        ]

    def next_due(self, now: float) -> float:
        """Seconds until a buffered event may be released even if no partition brings more; 3600 if
        none is buffered."""
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


def _log_order(rows: Rows, at: Int64) -> NDArray[np.int64]:
    """Indices in the order of the log: by time, then partition, offset and item."""
    if (at[1:] > at[:-1]).all():
        return np.arange(len(rows))
    return np.lexsort((rows["item"], rows["offset"], rows["source"], at))
