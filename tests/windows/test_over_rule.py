from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.server.page.headline import headline_of
from streamd.windows.over_rule import BelowRule
from tests.windows.test_drift import record


def window(live, rule=0.5, events=200, names=("rule", "edgebank", "popularity"), known=None):
    """known: MRR of live over half of the events, if there are any with a known destination."""
    scores = {"live": {"mrr": live}} | {name: {"mrr": rule if name == "rule" else 0.1} for name in names}
    if known is not None:
        scores = {name: of | {"mrr_known": known if name == "live" else of["mrr"]} for name, of in scores.items()}
    return replace(record(live, events), scores=scores if events else {}, num_known=events // 2 if known is not None else 0)


def test_new_destinations_put_no_model_above_a_rule():
    assert BelowRule(window(0.6, known=0.4) for _ in range(24)).holds and not BelowRule(window(0.4, known=0.6) for _ in range(24)).holds


@pytest.mark.parametrize(("lives", "holds"), [([0.6] * 24, False), ([0.4] * 24, True), ([0.4] * 11, False),
                                              ([0.2, 0.79] * 12, False), ([0.6] * 24 + [0.4] * 24, True), ([], False)])
def test_windows_below_a_rule_count_only_beyond_chance_and_over_enough_of_them(lives, holds):
    assert BelowRule(window(live) for live in lives).holds == holds


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.2, 0.45, 0.6]), st.sampled_from([0, 50, 200]), st.booleans(), st.sampled_from([None, 0.4, 0.6])), max_size=40))
def test_the_metric_says_after_each_window_and_after_a_restart_what_the_page_says(drawn):
    windows = [window(live, events=events, names=("rule", "edgebank", "popularity")[not newer :], known=known) for live, events, newer, known in drawn]
    following = BelowRule()
    for number, one in enumerate(windows, 1):
        following.add(one)
        head = headline_of(windows[:number])
        assert following.holds == BelowRule(windows[:number]).holds == (head is not None and head.is_below_rule)
