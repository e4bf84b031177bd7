"""What a trainer learns first where it finds a log with a past: the newest of it at once, instead
of window by window."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.storage import write_durably
from streamd.windows import Window, next_window

FILE = "bootstrap.json"


@dataclass(frozen=True)
class Range:
    """Edges [first_edge, end_edge), whole windows; event time [start_us, end_us)."""

    first_edge: int
    end_edge: int
    start_us: int
    end_us: int

    def window(self) -> Window:
        return Window(self.start_us, self.end_us, self.first_edge, self.end_edge)


def planned_range(
    settings: Settings, log: LogReader, folder: Path, short: bool = False
) -> Range | None:
    """The newest closed windows with `bootstrap.max_events` in all, written down before it starts
    so that a restart takes the same; None where closed windows hold no more than one may
    (`windows.max_events`): those are learned singly.

    short: learn what is shorter at once too, as what stands beside a champion does.
    """
    path = folder / FILE
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Range)
    width_us = settings.windows.width_seconds * 1_000_000
    end = log.lower_bound(log.watermark // width_us * width_us)
    if not settings.bootstrap.max_events or (
        end - log.first_edge <= settings.windows.max_events and not short
    ):
        return None
    wanted = max(log.first_edge, end - settings.bootstrap.max_events)
    first = log.first_edge
    if wanted > first:
        window = next_window(log, wanted, width_us)
        assert window is not None
        first = window.end_edge
    if first >= end:
        return None
    start = next_window(log, first, width_us)
    assert start is not None
    found = Range(first, end, start.start_us, log.watermark // width_us * width_us)
    write_durably(path, msgspec.json.encode(found))
    return found
