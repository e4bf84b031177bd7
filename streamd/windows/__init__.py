"""Windows of event time: which are closed, where memory's chunks end, and what each window scored.

All of it is pure functions, but for the history of scores, which is a file.
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
