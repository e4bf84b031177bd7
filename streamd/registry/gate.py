"""The gate decides by the result of learning whether a new version may serve at once."""

import math
from dataclasses import dataclass

KEPT_SHARE = 0.7
"""Share of its MRR that a version must keep. The gate detects collapse only: the comparison with
the last proven version judges smaller losses, over more events."""
MIN_TAIL = 5
"""Least number of held-out events: with fewer their MRR scatters by 0.5 and more."""


@dataclass(frozen=True)
class Decision:
    """Whether a version may serve, with the reason in words."""

    promote: bool
    reason: str


def decide(finite: bool, tail_before: float, tail_after: float, num_tail: int) -> Decision:
    """Refuse a version that is not finite, or whose MRR on the held-out tail collapsed.

    It collapsed if it is below 0.7 of the MRR before learning by more than chance. The mean over
    `num_tail` events scatters by one over the root of their number.
    """
    if not finite:
        return Decision(False, "a loss or weight is not finite")

    # Too few events to judge: it serves, and the contest compares it with the proven version.
    if num_tail < MIN_TAIL or math.isnan(tail_before):
        events = "event" if num_tail == 1 else "events"
        return Decision(True, f"finite; a tail of {num_tail} {events} is too short to judge")
    # With more events, chance explains smaller falls only.
    scatter = 1.0 / math.sqrt(num_tail)
    if tail_after < KEPT_SHARE * tail_before - scatter:
        return Decision(
            False, f"MRR on the held-out tail fell from {tail_before:.3f} to {tail_after:.3f}"
        )
    return Decision(True, f"finite; MRR on the held-out tail {tail_before:.3f} -> {tail_after:.3f}")


def is_below_rule(tail_after: float, tail_rule: float, num_tail: int) -> bool:
    """Whether a version ranks the held-out tail worse than the best rule by more than chance.

    tail_rule: MRR of that rule over the same `num_tail` events; NaN is unknown.
    """
    return num_tail >= MIN_TAIL and tail_after < tail_rule - 1.0 / math.sqrt(num_tail)
