"""The verdict of a backtest, in one sentence of three clauses: live against the best rule, live
against nightly, and the causes of its lead."""

from collections.abc import Mapping

from streamd.evaluation.backtest import RULES, TITLES, Result
from streamd.number_texts import count_noun
from streamd.windows.intervals import MIN_WINDOWS, Difference

GIVE_MORE = f"it takes {MIN_WINDOWS}, so give more events or a smaller windows.width_seconds"
"""The number of windows that is enough, and the ways to get it."""
LEARNING = "learning each window"
"""Name of a cause: training on each window, as opposed to each night or not at all."""
LITTLE = 0.005
"""A significant difference below this MRR is called little: another seed moves MRR by up to .002,
another graph layer by .001 to .005."""


def verdict_of(result: Result) -> str:
    """The verdict on live. With too few windows it is a sentence on that; with too few negatives it
    has one more sentence."""
    why = why_no_nightly(result)
    nightly = None if why else result.difference("live", "nightly")
    # Without nightly weights to compare with, the cause is training as a whole.
    if nightly is None:
        learning = {LEARNING: result.difference("live", "frozen")}
        causes = f"{effects(learning)} over frozen weights"
    else:
        # These two differences add up to the difference to nightly.
        state = result.difference("nightly_live", "nightly")
        learning = {LEARNING: result.difference("live", "nightly_live")}
        causes = effects({"state": state} | learning, nightly)
    text = verdict("Live", *over_best_rule(result), why or nightly or "", causes)
    return " ".join(filter(None, (text, result.known_note(), result.few_note())))


def over_best_rule(result: Result) -> tuple[str, Difference]:
    """The rule with the best MRR by `Result.measure`, and live's difference to it."""
    rule = max(RULES, key=lambda name: result.mean(name)[result.measure])
    return TITLES[rule], result.difference("live", rule)


def why_no_nightly(result: Result) -> str:
    """Reason why live is not compared with nightly, as a clause; empty if it is."""
    if "nightly" not in result.windows[0].scores:
        return "windows are a day or longer"
    if not result.nightly_windows:
        return "no midnight (UTC) is before any of the windows"
    count = len(result.nightly_windows)
    if count < MIN_WINDOWS:
        return f"only {count_noun(count, 'window')} came after a midnight (UTC), of {MIN_WINDOWS}"
    return ""


def verdict(
    subject: str, rule: str, over_rule: Difference, nightly: Difference | str, causes: str
) -> str:
    """The three clauses as one sentence.

    subject: the judged run. rule: name of the best rule. over_rule: the subject's difference to it,
    in MRR.
    nightly: the difference to nightly, or the reason for its absence. causes: of the lead, as a
    clause.
    """
    # Without an interval no comparison is possible.
    if not over_rule.is_sure:
        return f"{too_few(over_rule.num_windows)} to tell live from the others: {GIVE_MORE}."
    # Unless the subject is ahead, mention that a rule is cheaper than any model.
    is_ahead = not over_rule.is_level and over_rule.mean > 0
    best = f"the best rule ({rule}{'' if is_ahead else ', which needs no training'})"
    against_nightly = (
        f"is not compared with nightly, since {nightly}"
        if isinstance(nightly, str)
        else comparison("nightly", nightly)
    )
    return f"{subject} {comparison(best, over_rule)}; it {against_nightly}; {causes}."


def too_few(num_windows: int) -> str:
    """The beginning of a sentence about fewer windows than `MIN_WINDOWS`."""
    return f"{num_windows} {'window is' if num_windows == 1 else 'windows are'} too few"


def comparison(other: str, by: Difference) -> str:
    """A difference as a verb phrase, such as "beats nightly by .110 ± .010 MRR"."""
    if by.is_level:
        return f"is level with {other}, {by} MRR"
    if by.mean < 0:
        return f"loses to {other} by {by.opposite()} MRR"
    return f"beats {other} by {by} MRR"


def effects(causes: Mapping[str, Difference], whole: Difference | None = None) -> str:
    """The effects of causes, as a clause. causes: name -> its difference in MRR. whole: their
    sum."""
    if whole is not None and all(by.is_level for by in causes.values()):
        # Effects that are each too small to show may show together.
        if whole.is_level:
            return f"neither {' nor '.join(causes)} brings anything that shows"
        verb = "bring" if whole.mean > 0 else "cost"
        return f"{' and '.join(causes)} {verb} that together, each alone is too little to show"
    return ", ".join(f"{name} {_effect(by)}" for name, by in causes.items())


def _effect(by: Difference) -> str:
    if by.is_level:
        return f"brings nothing that shows ({by})"
    if by.mean < 0:
        return f"costs {by.opposite()}"
    return f"brings little ({by})" if by.mean < LITTLE else f"brings {by}"
