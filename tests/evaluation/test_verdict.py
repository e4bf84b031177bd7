import pytest

from streamd.evaluation.intervals import MIN_WINDOWS, Difference
from streamd.evaluation.verdict import LITTLE, verdict

CLEAR = Difference(0.2, 0.01, 21)


def said(*, nightly=CLEAR, frozen=CLEAR, state=CLEAR, rule="EdgeBank", over_rule=CLEAR):
    return verdict(nightly=nightly, frozen=frozen, state=state, rule=rule, over_rule=over_rule)


def of(mean, radius=0.001, num_windows=21):
    return Difference(mean, radius, num_windows)


def test_a_verdict_is_one_sentence_with_its_intervals():
    assert said(nightly=of(0.11, 0.01), frozen=of(0.002)) == (
        "Live beats nightly by .110 ± .010 MRR, frozen weights by .002 ± .001: state matters here, learning little."
    )


def test_windows_of_a_day_have_no_nightly_model_to_compare_with():
    assert said(nightly=None, state=None) == "Live beats frozen weights by .200 ± .010 MRR: learning matters here."


@pytest.mark.parametrize(
    ("mean", "radius", "words", "effect"),
    [
        (LITTLE, 0.001, "beats frozen weights by .005 ± .001 MRR", "learning matters here"),
        (LITTLE - 1e-9, 0.001, "beats frozen weights by .005 ± .001 MRR", "learning matters little here"),
        (0.02, 0.02, "is level with frozen weights (.020 ± .020 MRR)", "learning makes no clear difference here"),
        (0.02, 0.02 - 1e-9, "beats frozen weights by .020 ± .020 MRR", "learning matters here"),
        (-0.02, 0.02, "is level with frozen weights (-.020 ± .020 MRR)", "learning makes no clear difference here"),
        (-0.02, 0.01, "loses to frozen weights by .020 ± .010 MRR", "learning does harm here"),
        (0, 0, "is level with frozen weights (.000 ± .000 MRR)", "learning makes no clear difference here"),
    ],
)
def test_the_words_follow_from_the_interval_and_from_the_size(mean, radius, words, effect):
    assert said(nightly=None, state=None, frozen=of(mean, radius)) == f"Live {words}: {effect}."


def test_state_is_told_from_nightly_weights_that_see_it_and_not_from_live():
    assert "state makes no clear difference, learning matters here" in said(nightly=of(0.1), state=of(0.001, 0.002))
    assert "state does harm" in said(state=of(-0.01))


@pytest.mark.parametrize(("effect", "words"), [
    (of(0.01), "state and learning matter here."), (of(0.002), "state and learning matter little here."),
    (of(0.001, 0.001), "neither state nor learning makes a clear difference here."), (of(-0.01), "state and learning do harm here.")])
def test_the_same_effect_of_both_is_said_once(effect, words):
    assert said(frozen=effect, state=effect).endswith(words)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (of(-0.03), "; but live loses to EdgeBank by .030 ± .001 MRR, a rule that learns nothing."),
        (of(0.001, 0.001), "; but live is level with EdgeBank (.001 ± .001 MRR), a rule that learns nothing."),
        (of(0.0011), " here."),
    ],
)
def test_a_rule_that_does_as_well_is_named(by, words):
    assert said(over_rule=by).endswith(words)


def test_too_few_windows_tell_nothing():
    few = of(0.2, 0.01, MIN_WINDOWS - 1)
    assert said(frozen=few).startswith(f"{MIN_WINDOWS - 1} windows are too few to tell") and "beats" not in said(frozen=few)
    assert "beats" in said(frozen=of(0.2, 0.01, MIN_WINDOWS))
    assert said(frozen=of(0.2, 0.01, 1)).startswith("1 window is too few to tell")
