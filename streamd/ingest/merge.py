"""Partitions merged by event time: those ahead wait for those behind, live ones for a bounded wall time.

Pure: fed with events, ends and a clock reading, it says which events may be appended now and what to read on from.
"""

from dataclasses import dataclass, field

from streamd.events import Event, Position

NEVER = -(2**63)
ALWAYS = 2**63 - 1


@dataclass
class _Partition:
    frontier: int = NEVER
    at_end: bool = False
    ever: bool = False
    next_offset: int = 0
    buffered: list[Event] = field(default_factory=list)
    ahead: list[tuple[int, int]] = field(default_factory=list)
    appended: frozenset[tuple[int, int]] = frozenset()


class Merger:
    """Buffers events per partition and releases them in time order. Owner: the poll thread.

    An event leaves when no partition that is still behind can hold an earlier one. A partition read to its end holds
    the others back for `wait_seconds` only; one that never had a record holds nobody back.
    """

    def __init__(self, num_sources: int, wait_seconds: float, max_buffered: int = 50_000) -> None:
        self.wait_seconds = wait_seconds
        self.max_buffered = max_buffered
        self._parts = [_Partition() for _ in range(num_sources)]
        self._arrivals: list[tuple[float, int]] = []
        """(monotonic seconds, newest time among the events that arrived then), oldest first."""

    def start(self, source: int, position: Position) -> None:
        """Read `source` on from a stored position."""
        part = self._parts[source]
        part.next_offset, part.ahead = position.offset, list(position.ahead)
        part.appended, part.ever = frozenset(position.ahead), position.offset > 0

    def add_source(self) -> int:
        self._parts.append(_Partition())
        return len(self._parts) - 1

    def newest(self, source: int) -> int:
        """Newest event time seen in a partition, 0 before any: what node events of it take as their time."""
        return max(self._parts[source].frontier, 0)

    def push(self, source: int, events: list[Event], next_offset: int, at_end: bool, now: float) -> None:
        """Take what one poll brought from one partition. now: monotonic seconds."""
        part = self._parts[source]
        part.next_offset, part.at_end = next_offset, at_end
        if not events:
            return
        part.ever = True
        newest = max(e.time for e in events)
        part.frontier = max(part.frontier, newest)
        part.buffered.extend(events)
        self._arrivals.append((now, newest))

    def release(self, now: float, limit: int) -> list[Event]:
        """Events that may be appended now, in log order, at most `limit`."""
        waiting = [p for p in self._parts if p.buffered]
        if not waiting:
            return []
        bound = self._bound(now)
        merged: list[Event] = []
        for part in waiting:
            part.buffered.sort()
            merged += part.buffered if bound is None else [e for e in part.buffered if e.time < bound]
        merged.sort()
        released = merged[:limit]
        if released:
            self._remove(released, waiting)
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

    def _remove(self, released: list[Event], waiting: list[_Partition]) -> None:
        taken: dict[int, list[tuple[int, int]]] = {}
        for e in released:
            taken.setdefault(e.source, []).append((e.offset, e.item))
        last = released[-1]
        for source, done in taken.items():
            part = self._parts[source]
            part.buffered = [e for e in part.buffered if e > last]
            if part.buffered:
                first = min((e.offset, e.item) for e in part.buffered)
                part.ahead = sorted(x for x in (*part.ahead, *done) if x > first)
            else:
                part.ahead = [x for x in part.ahead if x[0] >= part.next_offset]
        if not any(p.buffered for p in waiting):
            self._arrivals.clear()
        else:
            oldest = min(e.time for p in waiting for e in p.buffered[:1])
            self._arrivals = [a for a in self._arrivals if a[1] >= oldest]

    def is_appended(self, source: int, offset: int, index: int) -> bool:
        """Whether the log holds this event already: after a restart, those appended ahead of the position are."""
        return (offset, index) in self._parts[source].appended

    def position(self, source: int) -> Position:
        """Where to read on from, given that all released events are in the log."""
        part = self._parts[source]
        if not part.buffered:
            return Position(part.next_offset, 0, tuple(part.ahead))
        offset, index = min((e.offset, e.item) for e in part.buffered)
        return Position(offset, index, tuple(part.ahead))

    def paused(self) -> list[int]:
        """Partitions that should not be polled now: full buffers, except the one all others wait for."""
        slowest = min((p.frontier for p in self._parts if not p.at_end), default=NEVER)
        return [i for i, p in enumerate(self._parts)
                if len(p.buffered) >= self.max_buffered and (p.at_end or p.frontier > slowest)]

    def next_due(self, now: float) -> float:
        """Seconds until a buffered event may leave without news from other partitions; 3600 with none waiting."""
        if not self._arrivals:
            return 3600.0
        if len(self._parts) == 1:
            return 0.0
        return max(0.0, self._arrivals[0][0] + self.wait_seconds - now)

    @property
    def num_buffered(self) -> int:
        return sum(len(p.buffered) for p in self._parts)

    @property
    def all_at_end(self) -> bool:
        return all(p.at_end for p in self._parts)
