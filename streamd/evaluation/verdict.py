"""The verdict of a backtest: what keeping state and weights up to date brings, in one sentence."""

from streamd.evaluation.intervals import MIN_WINDOWS, Difference

LITTLE = 0.005
"""MRR below which a sure difference is called little: another seed moves MRR by up to .002, another
graph layer by .001 to .005."""


def verdict(
    *,
    nightly: Difference | None,
    frozen: Difference,
    state: Difference | None,
    rule: str,
    over_rule: Difference,
) -> str:
    """Say whom live beats, whether state and learning matter, and whether a rule does as well.

    Args, differences in MRR: nightly, frozen: live's over these regimes; state: of nightly weights
    with live state over nightly, as both learn alike; nightly and state are None where windows are
    a day or longer; rule: the name of the best rule; over_rule: live's over it.
    """
    if not frozen.is_sure:
        return (
            f"{frozen.num_windows} windows are too few to tell live from the others: it takes "
            f"{MIN_WINDOWS}, so give more events or a smaller windows.width_seconds."
        )

    # Whom live beats.
    found = [] if nightly is None else [_comparison("nightly", nightly)]
    found.append(_comparison("frozen weights", frozen))

    # What that comes from.
    causes = [] if state is None else [f"state {_effect(state)}"]
    causes.append(f"learning {_effect(frozen)}")
    text = f"Live {' and '.join(found)}: {', '.join(causes)} here"

    # A rule is cheaper than any model.
    if over_rule.is_level or over_rule.mean < 0:
        text += f"; but live {_comparison(rule, over_rule)}, a rule that learns nothing"
    return f"{text}."


def _comparison(other: str, by: Difference) -> str:
    """What live does to another, as "beats nightly by .110 ± .010 MRR"."""
    if by.is_level:
        return f"is level with {other} ({by} MRR)"
    if by.mean < 0:
        return f"loses to {other} by {by.reversed()} MRR"
    return f"beats {other} by {by} MRR"


def _effect(of: Difference) -> str:
    """What something does, by its difference to doing without."""
    if of.is_level:
        return "makes no clear difference"
    if of.mean < 0:
        return "does harm"
    return "matters little" if of.mean < LITTLE else "matters"
