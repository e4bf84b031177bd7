"""Event-time windows and memory's canonical chunks, both functions of the log alone (DESIGN section
6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamd.events import Int64


@dataclass(frozen=True)
class Window:
    """Event time [start_us, end_us), edges [first_edge, end_edge)."""

    start_us: int
    end_us: int
    first_edge: int
    end_edge: int

    @property
    def num_edges(self) -> int:
        return self.end_edge - self.first_edge


class TimeIndex(Protocol):
    """What windows need of the log; `streamd.segments.reader.LogReader` is one."""

    @property
    def num_edges(self) -> int: ...

    @property
    def first_edge(self) -> int: ...

    @property
    def watermark(self) -> int: ...

    def time_of(self, event_ids: Int64) -> Int64: ...

    def lower_bound(self, time_us: int) -> int: ...


def next_window(log: TimeIndex, cursor_edge: int, width_us: int) -> Window | None:
    """The window that begins at `cursor_edge`, once the watermark has passed its end; None before.
    Never an empty one."""
    if cursor_edge >= log.num_edges:
        return None
    start = int(log.time_of(np.array([cursor_edge]))[0]) // width_us * width_us
    if log.watermark < start + width_us:
        return None
    return Window(start, start + width_us, cursor_edge, log.lower_bound(start + width_us))


def recorded_windows(log: TimeIndex, width_us: int, origin_us: int = 0) -> Iterator[Window]:
    """All windows of a log that will not grow, the last one whether or not the watermark passed its
    end. origin_us: a time at which one begins."""
    edge = int(log.first_edge)
    while edge < log.num_edges:
        start = (
            int(log.time_of(np.array([edge]))[0]) - origin_us
        ) // width_us * width_us + origin_us
        end = log.lower_bound(start + width_us)
        yield Window(start, start + width_us, edge, end)
        edge = end


def canonical_chunks(time_E: Int64, memory_chunk: int) -> list[tuple[int, int]]:
    """Chunks [a, b) of a whole window: every `memory_chunk` edges, each cut moved to the next
    change of time."""
    cuts = [0]
    while cuts[-1] < len(time_E):
        cut = cuts[-1] + memory_chunk
        if cut < len(time_E):
            cut = int(np.searchsorted(time_E, time_E[cut - 1], side="right"))
        cuts.append(min(cut, len(time_E)))
    return list(zip(cuts, cuts[1:], strict=False))


def closed_chunks(
    time_E: Int64, watermark: int, width_us: int, memory_chunk: int
) -> list[tuple[int, int]]:
    """Chunks [a, b) that are final in a tail of the log that starts at a cut, given the watermark.

    The same cuts as `canonical_chunks` of each window, however the tail grows: what more events
    could still join is not cut.
    """
    out = []
    at = 0
    while at < len(time_E):
        window_end = (int(time_E[at]) // width_us + 1) * width_us
        end = int(np.searchsorted(time_E, window_end))
        cut = at + memory_chunk
        if cut < end:
            cut = int(np.searchsorted(time_E, time_E[cut - 1], side="right"))
        if cut >= end:
            if end == len(time_E) and watermark < window_end:
                break
            cut = end
        out.append((at, cut))
        at = cut
    return out
