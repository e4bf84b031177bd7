"""Event-time windows and memory's canonical chunks, which depend on the log alone (DESIGN section
6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamd.events import Int64

MOSTLY = 0.5
"""A window with a larger share of late events than this is not trained on."""


@dataclass(frozen=True)
class Window:
    """A window of event time [start_us, end_us), microseconds, and its events [first_edge,
    end_edge)."""

    start_us: int
    end_us: int
    first_edge: int
    end_edge: int

    @property
    def num_edges(self) -> int:
        return self.end_edge - self.first_edge


class TimeIndex(Protocol):
    """The part of a log that determines the windows; `streamd.eventlog.reader.LogReader` has it."""

    @property
    def num_edges(self) -> int: ...

    @property
    def first_edge(self) -> int: ...

    @property
    def watermark(self) -> int: ...

    def time_of(self, event_ids: Int64) -> Int64: ...

    def lower_bound(self, time_us: int) -> int: ...


class LateIndex(Protocol):
    """Counts late events; `LogReader` has it."""

    def num_late(self, first: int, end: int, before_us: int) -> int: ...


def num_late(log: LateIndex, window: Window) -> int:
    """Number of a window's events that came late, with a time before the window's start; the log
    stores them with the watermark as time."""
    return log.num_late(window.first_edge, window.end_edge, window.start_us)


def is_mostly_late(log: LateIndex, window: Window) -> bool:
    """Whether more than half of a window's events came late, for example after a replay of many
    dead letters. Such a window does not represent its own time, so it is not trained on.

    The result depends only on the log, since a closed window gets no more events.
    """
    return num_late(log, window) > MOSTLY * window.num_edges


def mergeable(log: LateIndex, windows: list[Window]) -> list[Window]:
    """The first of the windows that may be trained on as one: a window of mostly late events comes
    alone."""
    late = (i for i, window in enumerate(windows) if is_mostly_late(log, window))
    return windows[: max(1, next(late, len(windows)))]


def next_window(log: TimeIndex, cursor_edge: int, width_us: int) -> Window | None:
    """The window that begins at event id `cursor_edge`; None until the watermark has passed its
    end.

    It is never empty: stretches of time without an event are skipped.
    """
    if cursor_edge >= log.num_edges:
        return None
    # Windows begin at multiples of their width since the epoch, regardless of earlier windows.
    start = int(log.time_of(np.array([cursor_edge]))[0]) // width_us * width_us
    if log.watermark < start + width_us:
        return None
    return Window(start, start + width_us, cursor_edge, log.lower_bound(start + width_us))


def recorded_windows(log: TimeIndex, width_us: int, origin_us: int = 0) -> Iterator[Window]:
    """Yield all windows of a log that will not grow, the last one even if the watermark has not
    passed its end.

    origin_us: a time at which a window begins.
    """
    # Each window begins with the first event after the previous one, so none is empty.
    edge = int(log.first_edge)
    while edge < log.num_edges:
        start = (
            int(log.time_of(np.array([edge]))[0]) - origin_us
        ) // width_us * width_us + origin_us
        end = log.lower_bound(start + width_us)
        yield Window(start, start + width_us, edge, end)
        edge = end


def canonical_chunks(time_E: Int64, memory_chunk: int) -> list[tuple[int, int]]:
    """Cut a whole window into chunks of rows [a, b), of at least `memory_chunk` events each except
    the last.

    Cuts are made only between different times, so that events of equal time share a chunk.
    """
    # Times ascend: search for the first event with a later time than the one before the cut.
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
    """Cut a tail of the log, which starts at a cut, into chunks of rows [a, b), as far as they are
    final.

    The cuts equal those of `canonical_chunks` in each window, however the tail grows: a chunk that
    later events could still join is left out.
    """
    out = []
    at = 0
    while at < len(time_E):
        window_end = (int(time_E[at]) // width_us + 1) * width_us
        end = int(np.searchsorted(time_E, window_end))

        # Within the window a cut is final once an event with a later time follows it.
        cut = at + memory_chunk
        if cut < end:
            cut = int(np.searchsorted(time_E, time_E[cut - 1], side="right"))

        # The window's last chunk is final once the window is closed.
        if cut >= end:
            if end == len(time_E) and watermark < window_end:
                break
            cut = end
        out.append((at, cut))
        at = cut
    return out


def ends_until_after(log: TimeIndex, event: int, width_us: int) -> list[int]:
    """Ends, in microseconds, of the windows up to the first one that begins at or after an event:
    the window of that event, and the next one if events before it share its window.

    Events that have not arrived yet are assumed to follow the watermark at once.
    """
    newest = log.watermark
    if event < log.num_edges:
        newest = int(log.time_of(np.array([event]))[0])
    end = (newest // width_us + 1) * width_us
    if log.lower_bound(end - width_us) >= event:
        return [end]
    # The next window is that of the next event; time without events may precede it.
    following = log.lower_bound(end)
    start = end
    if following < log.num_edges:
        start = int(log.time_of(np.array([following]))[0]) // width_us * width_us
    return [end, start + width_us]
