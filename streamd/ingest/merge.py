"""Partitions merged by event time: those ahead wait for those behind, live ones for a bounded wall time.

Pure: fed with events, ends and a clock reading, it says which events may be appended now and what to read on from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamd.events import Position
from streamd.ingest.block import Block, Rows, empty_block, joined

NEVER = -(2**63)
ALWAYS = 2**63 - 1
Place = tuple[int, int]
"""Offset and item of an event in its partition."""


@dataclass
class _Partition:
    frontier: int = NEVER
    at_end: bool = False
    ever: bool = False
    next_offset: int = 0
    blocks: list[Block] = field(default_factory=list)
    num_buffered: int = 0
    earliest: int = ALWAYS
    ahead: list[Place] = field(default_factory=list)

    def buffer(self) -> Block:
        """All that is buffered, as one block."""
        if len(self.blocks) > 1:
            self.blocks = [joined(self.blocks)]
        return self.blocks[0]

    def keep(self, block: Block) -> None:
        """Buffer this and nothing else."""
        self.num_buffered = len(block)
        self.blocks = [block] if len(block) else []
        self.earliest = int(block.rows["time"].min()) if len(block) else ALWAYS


class Merger:
    """Buffers events per partition and releases them in time order. Owner: the poll thread.

    An event leaves when no partition that is still behind can hold an earlier one. A partition read to its end holds
    the others back for `wait_seconds` only; one that never had a record holds nobody back.
    """

    def __init__(self, num_sources: int, wait_seconds: float, edge_feature_dim: int, max_buffered: int = 50_000) -> None:
        self.wait_seconds = wait_seconds
        self.max_buffered = max_buffered
        self._dim = edge_feature_dim
        self._parts = [_Partition() for _ in range(num_sources)]
        self._arrivals: list[tuple[float, int]] = []
        """(monotonic seconds, newest time among the events that arrived then), oldest first."""

    def start(self, source: int, position: Position) -> None:
        """Read `source` on from a stored position."""
        part = self._parts[source]
        part.next_offset, part.ahead, part.ever = position.offset, list(position.ahead), position.offset > 0

    def newest(self, source: int) -> int:
        """Newest event time seen in a partition, 0 before any: what node events of it take as their time."""
        return max(self._parts[source].frontier, 0)

    def push(self, source: int, events: Block, next_offset: int, at_end: bool, now: float) -> None:
        """Take what one poll brought from one partition. now: monotonic seconds."""
        part = self._parts[source]
        part.next_offset, part.at_end = next_offset, at_end
        if not len(events):
            return
        part.ever = True
        times = events.rows["time"]
        newest = int(times.max())
        part.frontier = max(part.frontier, newest)
        part.blocks.append(events)
        part.num_buffered += len(events)
        part.earliest = min(part.earliest, int(times.min()))
        self._arrivals.append((now, newest))

    def release(self, now: float, limit: int) -> Block:
        """Events that may be appended now, in log order, at most `limit`."""
        waiting = [p for p in self._parts if p.num_buffered]
        bound = self._bound(now)
        taken = [p for p in waiting if bound is None or p.earliest < bound]
        if not taken:
            return empty_block(self._dim)
        buffers = [p.buffer() for p in taken]
        merged = joined(buffers)
        order = _log_order(merged.rows)
        if bound is not None:
            order = order[merged.rows["time"][order] < bound]
        order = order[:limit]
        if len(taken) == 1 and _is_prefix(order):
            released, rest = merged.split(len(order))
            self._keep(taken[0], rest, ())
        else:
            released = merged.take(order)
            gone = np.zeros(len(merged), np.bool_)
            gone[order] = True
            at = 0
            for part, buffer in zip(taken, buffers, strict=True):
                left = gone[at: at + len(buffer)]
                self._keep(part, buffer.take(~left), _places(buffer.rows[left]))
                at += len(buffer)
        if not any(p.num_buffered for p in waiting):
            self._arrivals.clear()
        else:
            oldest = min(p.earliest for p in waiting)
            self._arrivals = [a for a in self._arrivals if a[1] >= oldest]
        return released

    def _bound(self, now: float) -> int | None:
        """Events strictly before this time may go; None: all of them."""
        if len(self._parts) == 1:
            return None
        behind = [p.frontier for p in self._parts if not p.at_end]
        live = [p.frontier for p in self._parts if p.at_end and p.ever]
        overdue = [newest for arrival, newest in self._arrivals if now - arrival >= self.wait_seconds]
        until = min(live) if live else ALWAYS
        if overdue:
            until = max(until, max(overdue) + 1)
        return min([until, *behind])

    @staticmethod
    def _keep(part: _Partition, rest: Block, left: Sequence[Place]) -> None:
        """Go on with `rest` in the buffer. left: places of events that went while others before them may have stayed."""
        part.keep(rest)
        if len(rest):
            first = _first(rest.rows)
            part.ahead = sorted(x for x in (*part.ahead, *left) if x > first)
        else:
            part.ahead = [x for x in part.ahead if x[0] >= part.next_offset]

    def position(self, source: int) -> Position:
        """Where to read on from, given that all released events are in the log."""
        part = self._parts[source]
        if not part.num_buffered:
            return Position(part.next_offset, 0, tuple(part.ahead))
        offset, index = _first(part.buffer().rows)
        return Position(offset, index, tuple(part.ahead))

    def paused(self) -> list[int]:
        """Partitions that should not be polled now: full buffers, except the one all others wait for."""
        slowest = min((p.frontier for p in self._parts if not p.at_end), default=NEVER)
        return [i for i, p in enumerate(self._parts)
                if p.num_buffered >= self.max_buffered and (p.at_end or p.frontier > slowest)]

    def next_due(self, now: float) -> float:
        """Seconds until a buffered event may leave without news from other partitions; 3600 with none waiting."""
        if not self._arrivals:
            return 3600.0
        if len(self._parts) == 1:
            return 0.0
        return max(0.0, self._arrivals[0][0] + self.wait_seconds - now)

    @property
    def num_buffered(self) -> int:
        return sum(p.num_buffered for p in self._parts)

    @property
    def all_at_end(self) -> bool:
        return all(p.at_end for p in self._parts)


def not_yet_appended(rows: Rows, resume: Position) -> NDArray[np.bool_]:
    """Which events of a partition, read again from `resume`, the log does not hold: bool[n]."""
    offset, item = rows["offset"], rows["item"]
    missing: NDArray[np.bool_] = (offset > resume.offset) | ((offset == resume.offset) & (item >= resume.index))
    if resume.ahead:
        ahead = set(resume.ahead)
        for i in np.flatnonzero(offset <= resume.ahead[-1][0]).tolist():
            missing[i] &= (int(offset[i]), int(item[i])) not in ahead
    return missing


def _log_order(rows: Rows) -> NDArray[np.int64]:
    time = rows["time"]
    if (time[1:] > time[:-1]).all():
        return np.arange(len(rows))
    return np.lexsort((rows["item"], rows["offset"], rows["source"], time))


def _is_prefix(order: NDArray[np.int64]) -> bool:
    """Whether places in a buffer are its first ones, in order: then they leave in order of offset too."""
    return not len(order) or bool(order[0] == 0 and order[-1] == len(order) - 1 and (order[1:] > order[:-1]).all())


def _first(rows: Rows) -> Place:
    """Place of the first event of a buffer, which is in order of offset and item."""
    return int(rows["offset"][0]), int(rows["item"][0])


def _places(rows: Rows) -> Sequence[Place]:
    return list(zip(rows["offset"].tolist(), rows["item"].tolist(), strict=True))
