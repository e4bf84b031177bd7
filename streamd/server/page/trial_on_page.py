"""The figures of the running trial for the status page."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from streamd.trials.report import arm_fields, read_figures


class TrialOnPage:
    """Reads the state of a trial from time to time. Owner: the event loop's thread."""

    def __init__(self, data_dir: Path, name: str) -> None:
        """name: of the trial, "" for none."""
        self._name = name
        self._data_dir = data_dir
        self._content: dict[str, Any] | None = None

    async def refresh(self) -> None:
        """Read the state again; SQLite reads files, so another thread does."""
        if not self._name:
            return
        try:
            figures = await asyncio.to_thread(read_figures, self._data_dir, self._name)
        except sqlite3.DatabaseError:
            # The role trial reports a damaged file; the rest of the page must not end with it.
            figures = None
        if figures is None:
            return
        self._content = {
            "name": figures.name,
            "mismatch": figures.mismatch,
            "arms": [arm_fields(arm) for arm in figures.arms],
            "uncounted": sum(figures.reasons.values()),
        }

    def content(self) -> dict[str, Any] | None:
        """The figures as JSON; None without a trial, and before its role has written any."""
        return self._content
