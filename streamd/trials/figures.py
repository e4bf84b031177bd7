"""The figures of a trial: each arm, its difference from the champion, and the sample ratio."""

from dataclasses import dataclass

from streamd.settings.trials import CHAMPION
from streamd.trials.always_valid import ArmDifference, difference_of
from streamd.trials.sample_ratio import is_mismatch, log_evidence
from streamd.trials.trial_state import TrialSums

LEVEL = 0.05
"""Probability of an interval that excludes the true difference, over all arms and all looks; and of
a wrong alarm of the sample ratio."""
TUNING = "tuning "
EVIDENCE = "evidence"
"""Names of the figures that later looks need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmFigures:
    """The figures of an arm, over the impressions that are older than the horizon.

    share: of the units. pending: newer impressions, which count nowhere yet. takers: units with an
    outcome. value: sum over all units. difference: of the value a unit from the champion's, None
    for the champion, and while it is too early.
    """

    arm: str
    share: float
    units: int
    takers: int
    impressions: int
    pending: int
    outcomes: int
    value: float
    difference: ArmDifference | None

    @property
    def is_champion(self) -> bool:
        return self.arm == CHAMPION

    @property
    def outcomes_a_unit(self) -> float:
        return self.outcomes / self.units if self.units else 0.0

    @property
    def value_a_unit(self) -> float:
        return self.value / self.units if self.units else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFigures:
    """The figures of a trial. mismatch: whether the arms' numbers of units contradict their shares:
    then the differences mean nothing. reasons: reason -> records and events that count nowhere."""

    name: str
    arms: tuple[ArmFigures, ...]
    mismatch: bool
    reasons: dict[str, int]


def look(state: TrialSums) -> tuple[TrialFigures, dict[str, float]]:
    """Compute the figures. Returns: them, and figures that later looks need and that are not kept
    yet."""
    definition = state.definition
    others = [arm for arm in definition.shares if arm != CHAMPION]
    kept: dict[str, float] = {}
    differences: dict[str, ArmDifference] = {}
    for arm in others:
        # The level is shared over the comparisons.
        tuning = state.kept.get(TUNING + arm)
        level = LEVEL / len(others)
        found = difference_of(state.sums[arm], state.sums[CHAMPION], level, tuning)
        if found is not None:
            differences[arm] = found
            if tuning is None:
                kept[TUNING + arm] = found.tuning

    # The largest evidence so far counts, so an alarm stays.
    units = {arm: sums.units for arm, sums in state.sums.items()}
    before = state.kept.get(EVIDENCE, 0.0)
    evidence = max(before, log_evidence(units, definition.shares))
    if evidence > before:
        kept[EVIDENCE] = evidence
    arms = tuple(
        ArmFigures(
            arm=arm,
            share=share,
            units=state.sums[arm].units,
            takers=state.sums[arm].takers,
            impressions=state.impressions[arm],
            pending=state.opened[arm] - state.impressions[arm],
            outcomes=state.outcomes[arm],
            value=state.sums[arm].total,
            difference=differences.get(arm),
        )
        for arm, share in sorted(definition.shares.items(), key=lambda row: row[0] != CHAMPION)
    )
    mismatch = is_mismatch(evidence, LEVEL)
    figures = TrialFigures(
        name=definition.name, arms=arms, mismatch=mismatch, reasons=state.reasons
    )
    return figures, kept
