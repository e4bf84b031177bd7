"""Whether a new version may serve at once: a pure function of how its learning went."""

import math
from dataclasses import dataclass

KEPT_SHARE = 0.7
MIN_TAIL = 5


@dataclass(frozen=True)
class Decision:
    promote: bool
    reason: str


def decide(finite: bool, tail_before: float, tail_after: float, num_tail: int) -> Decision:
    """Refuse what is not finite, or whose held-out tail collapsed: MRR below 0.7 of before and
    beyond what `num_tail` events scatter by chance (one over the root of their number)."""
    if not finite:
        return Decision(False, "a loss or weight is not finite")
    if num_tail < MIN_TAIL or math.isnan(tail_before):
        return Decision(True, f"finite; a tail of {num_tail} events is too short to judge")
    scatter = 1.0 / math.sqrt(num_tail)
    if tail_after < KEPT_SHARE * tail_before - scatter:
        return Decision(
            False, f"MRR on the held-out tail fell from {tail_before:.3f} to {tail_after:.3f}"
        )
    return Decision(True, f"finite; MRR on the held-out tail {tail_before:.3f} -> {tail_after:.3f}")
