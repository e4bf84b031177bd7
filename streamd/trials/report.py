"""The figures of a trial as fields for JSON, and as text for a table."""

from pathlib import Path
from typing import Any

from streamd.trials.figures import ArmFigures, TrialFigures, look
from streamd.trials.trial_state import read_sums, state_path

COLUMNS = (
    "arm",
    "share",
    "units",
    "answers",
    "pending",
    "outcomes a unit",
    "value a unit",
    "difference from the champion",
)
MISMATCH = (
    "The numbers of units contradict the shares: units are lost in an arm, and the differences "
    "mean nothing."
)

UNCOUNTED = {
    "double": "repeated outcomes and copies of records",
    "late": "answers that came after the join of their edges",
    "ahead": "answers with a time ahead of the stream",
    "before": "outcomes before their answer",
    "after": "outcomes after the horizon",
    "unknown": "outcomes of unknown answers",
    "other_trial": "answers of another trial",
    "other_arm": "answers in an arm that this trial does not have",
    "other_nodes": "answers about other node sets",
    "moved": "answers to units of another arm",
    "deleted": "answers to deleted nodes",
    "lost": "records that Kafka dropped",
    "malformed": "malformed records",
}
"""Reason -> the records and events that do not count."""


def read_figures(data_dir: Path, trial: str) -> TrialFigures | None:
    """Read the figures of a trial, as of one moment while its role writes; None before it has
    written any. Raises: sqlite3.DatabaseError if the state is damaged."""
    # The sums are of one transaction of the role.
    sums = read_sums(state_path(data_dir, trial))
    return None if sums is None else look(sums)[0]


def arm_fields(arm: ArmFigures) -> dict[str, Any]:
    """The figures of an arm. difference and radius: None for the champion and while it is too
    early. is_sure: whether the interval excludes 0."""
    # A difference needs enough units in both arms.
    difference = arm.difference
    return {
        "arm": arm.arm,
        "share": arm.share,
        "units": arm.units,
        "takers": arm.takers,
        "answers": arm.impressions,
        "pending": arm.pending,
        "outcomes": arm.outcomes,
        "outcomes_a_unit": arm.outcomes_a_unit,
        "value": arm.value,
        "value_a_unit": arm.value_a_unit,
        "difference": None if difference is None else difference.mean,
        "radius": None if difference is None else difference.radius,
        "is_sure": difference is not None and difference.is_sure,
    }


def rows(figures: TrialFigures) -> list[tuple[str, ...]]:
    """A row of COLUMNS for each arm, the champion first."""
    return [
        (
            arm.arm,
            f"{arm.share:g}",
            f"{arm.units:,}",
            f"{arm.impressions:,}",
            f"{arm.pending:,}",
            f"{arm.outcomes_a_unit:.4g}",
            f"{arm.value_a_unit:.4g}",
            _difference(arm),
        )
        for arm in figures.arms
    ]


def notes(figures: TrialFigures) -> list[str]:
    """The sentences below the table; none if all records count and the shares are kept."""
    found = [MISMATCH] if figures.mismatch else []
    # Without this sentence, all records count.
    if figures.reasons:
        counts = "; ".join(
            f"{UNCOUNTED.get(reason, reason)} ({reason}): {number:,}"
            for reason, number in figures.reasons.items()
        )
        found.append(f"Not counted: {counts}.")
    return found


def _difference(arm: ArmFigures) -> str:
    """The difference of an arm from the champion, in words."""
    if arm.difference is None:
        return "-" if arm.is_champion else "too early"
    sure = "" if arm.difference.is_sure else ", not shown to differ"
    return f"{arm.difference.mean:+.4g} ± {arm.difference.radius:.2g}{sure}"
