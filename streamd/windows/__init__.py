"""Time to work: which windows are closed, where memory's chunks end, what each window scored. Pure,
but for history."""

from streamd.windows.window import (
    Window,
    canonical_chunks,
    closed_chunks,
    next_window,
    recorded_windows,
)

__all__ = ["Window", "canonical_chunks", "closed_chunks", "next_window", "recorded_windows"]
