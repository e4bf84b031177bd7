import itertools

import pytest

from streamd.evaluation.backtest import Result
from streamd.evaluation.compared import mrr_difference
from streamd.evaluation.regimes import RegimeWindow
from streamd.evaluation.verdict import LITTLE, comparison, effects, over_best_rule, verdict
from streamd.windows import Window
from streamd.windows.intervals import MIN_WINDOWS, Difference

CLEAR = Difference(0.2, 0.01, 21)


def of(mean, radius=0.001, num_windows=21):
    return Difference(mean, radius, num_windows)


def said(*, over_rule=CLEAR, nightly=CLEAR, causes=None):
    return verdict("Live", "EdgeBank", over_rule, nightly, effects(causes or {"state": CLEAR, "learning": CLEAR}, nightly))


def test_a_verdict_is_one_sentence_of_three_clauses_with_their_intervals():
    assert said(nightly=of(0.11, 0.01), causes={"state": of(0.1), "learning": of(0.01)}) == (
        "Live beats the best rule (EdgeBank) by .200 ± .010 MRR; it beats nightly by .110 ± .010 MRR; "
        "state brings .100 ± .001, learning brings .010 ± .001."
    )


def test_a_live_model_that_is_not_compared_with_nightly_says_why():
    text = verdict("Live", "EdgeBank", CLEAR, "windows are a day or longer", f"{effects({'learning': of(0.1)})} over frozen weights")
    assert text == ("Live beats the best rule (EdgeBank) by .200 ± .010 MRR; it is not compared with nightly, since windows are a day "
                    "or longer; learning brings .100 ± .001 over frozen weights.")


@pytest.mark.parametrize(
    ("mean", "radius", "words", "effect"),
    [
        (LITTLE, 0.001, "beats it by .005 ± .001 MRR", "brings .005 ± .001"),
        (LITTLE - 1e-9, 0.001, "beats it by .005 ± .001 MRR", "brings little (.005 ± .001)"),
        (0.02, 0.02, "is level with it, .020 ± .020 MRR", "brings nothing that shows (.020 ± .020)"),
        (0.02, 0.02 - 1e-9, "beats it by .020 ± .020 MRR", "brings .020 ± .020"),
        (-0.02, 0.02, "is level with it, -.020 ± .020 MRR", "brings nothing that shows (-.020 ± .020)"),
        (-0.02, 0.01, "loses to it by .020 ± .010 MRR", "costs .020 ± .010"),
        (0, 0, "is level with it, .000 ± .000 MRR", "brings nothing that shows (.000 ± .000)"),
    ],
)
def test_the_words_follow_from_the_interval_and_from_the_size(mean, radius, words, effect):
    assert comparison("it", of(mean, radius)) == words and effects({"learning": of(mean, radius)}) == f"learning {effect}"


def test_a_lead_never_comes_from_nothing():
    """Parts that are too small to show each may add up to a difference that shows."""
    none = {"state": of(0.01, 0.02), "learning": of(0.02, 0.03)}
    assert effects(none, of(0.03, 0.01)) == "state and learning bring that together, each alone is too little to show"
    assert effects(none, of(-0.03, 0.01)) == "state and learning cost that together, each alone is too little to show"
    assert effects(none, of(0.03, 0.04)) == "neither state nor learning brings anything that shows"
    parts = [of(mean, 0.01) for mean in (-0.1, 0.0, 0.1)]
    for state, learning, nightly in itertools.product(parts, repeat=3):
        text = said(nightly=nightly, causes={"state": state, "learning": learning})
        _, against, causes = text.split("; ")
        assert "no clear difference" not in text
        if state.is_level and learning.is_level:
            assert ("together" in causes) == (not nightly.is_level)
        assert against.startswith("it beats") == (nightly.mean > 0)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (of(-0.03), "loses to the best rule (EdgeBank, which needs no training) by .030 ± .001 MRR"),
        (of(0.001, 0.001), "is level with the best rule (EdgeBank, which needs no training), .001 ± .001 MRR"),
        (of(0.0011), "beats the best rule (EdgeBank) by .001 ± .001 MRR"),
    ],
)
def test_a_rule_that_does_as_well_is_cheaper(by, words):
    assert said(over_rule=by).startswith(f"Live {words}; it beats nightly")


def test_too_few_windows_tell_nothing():
    few = of(0.2, 0.01, MIN_WINDOWS - 1)
    assert said(over_rule=few).startswith(f"{MIN_WINDOWS - 1} windows are too few to tell") and "beats" not in said(over_rule=few)
    assert "beats" in said(over_rule=of(0.2, 0.01, MIN_WINDOWS))
    assert said(over_rule=of(0.2, 0.01, 1)).startswith("1 window is too few to tell")


def window_of(i, live, rule, num_known=40):
    """A window of 100 events. live, rule: MRR over all of them and over those whose destination was known."""
    names = ("mrr", "mrr_known") if num_known else ("mrr",)
    scores = {name: dict(zip(names, pair, strict=False)) for name, pair in (("live", live), ("rule", rule))}
    others = dict.fromkeys(("edgebank", "popularity_2"), dict.fromkeys(names, 0.01))
    return RegimeWindow(window=Window(i, i + 1, i, i + 1), num_scored=100, num_known=num_known, scores=scores | others, seconds={}, mean_negatives=100.0)


def test_regimes_and_rules_compare_over_the_events_whose_destination_was_known():
    """A model that gives new destinations any score is ahead over all events of one that gives none."""
    result = Result([window_of(i, (0.5, 0.4), (0.2, 0.4)) for i in range(16)], 2, {})
    assert over_best_rule(result)[1].is_level and result.difference("live", "rule", "mrr").mean == pytest.approx(0.3)
    assert result.known_note() == "They compare over the 640 of 1,600 events with a destination known before."
    behind = Result([window_of(i, (0.5, 0.3), (0.2, 0.4)) for i in range(16)], 2, {})
    assert over_best_rule(behind)[1].is_worse

    # Windows without such an event do not count, unless none has one.
    bare = [window_of(16 + i, (0.9, None), (0.1, None), num_known=0) for i in range(3)]
    mixed = mrr_difference(([*result.windows, *bare], "live"), ([*result.windows, *bare], "rule"))
    assert (mixed.mean, mixed.num_windows) == (pytest.approx(0), 16)
    assert mrr_difference((bare, "live"), (bare, "rule")).mean == pytest.approx(0.8)
    assert Result(bare, 2, {}).known_note() == "" and Result([window_of(0, (1, 1), (1, 1), 100)], 2, {}).known_note() == ""
