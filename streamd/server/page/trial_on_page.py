"""The figures of the running trial for the status page."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from streamd.trials.figures import ArmFigures, look
from streamd.trials.trial_state import read_sums, state_path


class TrialOnPage:
    """Reads the state of a trial from time to time. Owner: the event loop's thread."""

    def __init__(self, data_dir: Path, name: str) -> None:
        """name: of the trial, "" for none."""
        self._name = name
        self._path = state_path(data_dir, name)
        self._content: dict[str, Any] | None = None

    async def refresh(self) -> None:
        """Read the state again; SQLite reads files, so another thread does."""
        if not self._name:
            return
        try:
            sums = await asyncio.to_thread(read_sums, self._path)
        except sqlite3.DatabaseError:
            # The role trial reports a damaged file; the rest of the page must not end with it.
            sums = None
        if sums is None:
            return
        figures, _ = look(sums)
        self._content = {
            "name": figures.name,
            "mismatch": figures.mismatch,
            "arms": [_arm(arm) for arm in figures.arms],
            "uncounted": sum(figures.reasons.values()),
        }

    def content(self) -> dict[str, Any] | None:
        """The figures as JSON; None without a trial, and before its role has written any."""
        return self._content


def _arm(arm: ArmFigures) -> dict[str, Any]:
    """The figures of an arm. difference and radius: null for the champion and while it is too
    early. is_sure: whether the interval excludes 0."""
    difference = arm.difference
    return {
        "arm": arm.arm,
        "share": arm.share,
        "units": arm.units,
        "answers": arm.impressions,
        "pending": arm.pending,
        "outcomes_a_unit": arm.outcomes_a_unit,
        "value_a_unit": arm.value_a_unit,
        "difference": difference and difference.mean,
        "radius": difference and difference.radius,
        "is_sure": difference is not None and difference.is_sure,
    }
