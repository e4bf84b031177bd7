"""A version's scores are those of the windows that it scored, not of the window that it learned last."""

import pytest

from streamd.windows.history import WindowRecord
from streamd.windows.version_scores import version_scores


def record(start, scored_by, version, num_scored=100, **scores):
    return WindowRecord(start_us=start, end_us=start + 1, first_edge=0, end_edge=num_scored, num_scored=num_scored, version=version, scored_by=scored_by,
                        promoted=True, reason="", scores=scores, loss=None, seconds={}, finished_at=0.0, num_known=num_scored)


def of(mrr, known=None):
    return {"mrr": mrr, "hits10": mrr / 2} | ({} if known is None else {"mrr_known": known})


def test_a_version_has_the_scores_of_the_windows_after_it():
    found = version_scores([
        record(0, "rule", "a", live=of(0.3), rule=of(0.3), edgebank=of(0.1)), record(1, "a", "a", live=of(0.8), rule=of(0.5), edgebank=of(0.1)),
        record(2, "a", "b", num_scored=300, live=of(0.4), rule=of(0.3), edgebank=of(0.6)), record(3, "b", "c", live=of(0.9), rule=of(0.2), edgebank=of(0.1))], {"a", "b", "c"})
    assert {name: one.num_windows for name, one in found.items()} == {"a": 2, "b": 1}, "c has scored nothing, and the rule is no version"
    assert found["a"].mrr == pytest.approx(0.5) and found["a"].hits10 == pytest.approx(0.25)
    assert (found["a"].rule_name, found["a"].rule) == ("edgebank", pytest.approx(0.475)) and found["b"].mrr == 0.9


def test_windows_without_scores_are_left_out_and_one_measure_is_compared():
    found = version_scores([record(0, "a", "a"), record(1, "a", "a", live=of(0.8), rule=of(0.7)), record(2, "a", "b", live=of(0.9, 0.6), rule=of(0.8, 0.5)),
                            record(3, "b", "b", num_scored=0, live=of(0.0))], {"a", "b"})
    assert set(found) == {"a"} and (found["a"].measure, found["a"].mrr, found["a"].rule, found["a"].num_windows) == ("mrr_known", 0.6, 0.5, 1)
    assert version_scores([record(0, "a", "a", live=of(0.5))], ["a"])["a"].rule_name is None
