"""Initial training: if the log already has a past, the trainer trains on its newest windows at
once.

It does not have to go window by window from the log's first event.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamd.eventlog.reader import LogReader
from streamd.settings.loading import BootstrapSettings, WindowSettings
from streamd.storage import write_durably
from streamd.windows import Window, next_window

FILE = "bootstrap.json"
"""Name of the file, in the trainer's folder."""


@dataclass(frozen=True)
class Range:
    """Events [first_edge, end_edge) of whole windows, over the event time [start_us, end_us)."""

    first_edge: int
    end_edge: int
    start_us: int
    end_us: int

    def window(self) -> Window:
        """The range as one window."""
        return Window(self.start_us, self.end_us, self.first_edge, self.end_edge)


def planned_range(
    settings: BootstrapSettings,
    windows: WindowSettings,
    log: LogReader,
    folder: Path,
    short: bool = False,
) -> Range | None:
    """Choose the newest closed windows, with at most `bootstrap.max_events` events in all.

    The range is stored durably before the training, so that a restart takes the same one.

    short: whether a range of at most `windows.max_events` events is chosen too. A trainer asks for
    that while a champion with other settings serves.

    Returns: None if `bootstrap.max_events` is 0, if no whole window fits, or if closed windows have
    at most `windows.max_events` events in all: the trainer then takes them one by one.
    """
    # After a restart: the range that was stored before it.
    path = folder / FILE
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Range)

    # The range ends with the last closed window.
    width_us = windows.width_seconds * 1_000_000
    end = log.lower_bound(log.watermark // width_us * width_us)
    if not settings.max_events or (end - log.first_edge <= windows.max_events and not short):
        return None

    # It begins at the first boundary of windows among the newest `max_events` events.
    wanted = max(log.first_edge, end - settings.max_events)
    first = log.first_edge
    if wanted > first:
        window = next_window(log, wanted, width_us)
        assert window is not None
        first = window.end_edge
    if first >= end:
        return None

    # Its event time begins with that of its first window.
    start = next_window(log, first, width_us)
    assert start is not None
    planned = Range(first, end, start.start_us, log.watermark // width_us * width_us)
    write_durably(path, msgspec.json.encode(planned))
    return planned
