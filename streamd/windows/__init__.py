"""Windows of event time: their boundaries, the ends of memory's chunks, and the history of their
scores.

All of it is pure functions, except for the history, which is a file.
"""

from streamd.windows.window import (
    Window,
    canonical_chunks,
    closed_chunks,
    ends_until_after,
    is_mostly_late,
    mergeable,
    next_window,
    num_late,
    recorded_windows,
)

__all__ = [
    "Window",
    "canonical_chunks",
    "closed_chunks",
    "ends_until_after",
    "is_mostly_late",
    "mergeable",
    "next_window",
    "num_late",
    "recorded_windows",
]
