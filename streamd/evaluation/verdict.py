"""The verdict of a backtest: what keeping state and weights up to date brings, in one sentence."""

from streamd.evaluation.intervals import MIN_WINDOWS, Difference

LITTLE = 0.005
"""MRR below which a sure difference is called little: another seed moves MRR by up to .002, another
graph layer by .001 to .005."""

BOTH = {
    "makes no clear difference": "neither state nor learning makes a clear difference",
    "does harm": "state and learning do harm",
    "matters little": "state and learning matter little",
    "matters": "state and learning matter",
}
"""What is said where state and learning have the same effect."""


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
    a day or longer, or too few of them lie behind a midnight; rule: the name of the best rule;
    over_rule: live's over it.
    """
    if not frozen.is_sure:
        count = "1 window is" if frozen.num_windows == 1 else f"{frozen.num_windows} windows are"
        return (
            f"{count} too few to tell live from the others: it takes "
            f"{MIN_WINDOWS}, so give more events or a smaller windows.width_seconds."
        )

    # Whom live beats; the verb is said once where it is the same.
    first = "" if nightly is None else _comparison("nightly", nightly)
    second = _comparison("frozen weights", frozen)
    if nightly is not None and _beats(nightly) and _beats(frozen):
        found = f"{first}, frozen weights by {frozen}"
    else:
        found = f"{first} and {second}" if first else second

    # What that comes from.
    by_state = None if state is None else _effect(state)
    by_learning = _effect(frozen)
    if by_state is None:
        causes = f"learning {by_learning} here"
    elif (by_state, by_learning) == ("matters", "matters little"):
        causes = "state matters here, learning little"
    elif by_state == by_learning:
        causes = f"{BOTH[by_state]} here"
    else:
        causes = f"state {by_state}, learning {by_learning} here"
    text = f"Live {found}: {causes}"

    # A rule is cheaper than any model.
    if over_rule.is_level or over_rule.mean < 0:
        text += f"; but live {_comparison(rule, over_rule)}, a rule that learns nothing"
    return f"{text}."


def _beats(by: Difference) -> bool:
    return not by.is_level and by.mean > 0


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
