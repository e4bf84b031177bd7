import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from streamd.graph.ranking import among_candidates, is_candidate, ranks
from streamd.training.measures import average_precision, label_measures, measures, ndcg
from streamd.windows.novelty import Novelty


def test_a_constant_scorer_scores_chance():
    m = measures(np.zeros((50, 101), np.float32))
    assert abs(m["mrr"] - 1 / 51) < 1e-12 and m["auc"] == 0.5 and m["ap"] == 0.5 and m["hits10"] == 0.0


def test_rank_counts_greater_and_half_of_equal():
    assert ranks(np.array([[3, 5, 3, 1], [9, 1, 1, 1]], np.float32)).tolist() == [2.5, 1.0]


def test_an_event_with_few_candidates_ranks_among_those():
    score = np.array([[1, 2, 1, 0], [1, 2, 1, 0], [1, 1, 1, 0], [0, 5, 5, 5]], np.float32)
    few = is_candidate(np.array([[7, 3, 7, 7], [7, 3, 4, 7], [7, 3, 3, 4], [7, 1, 2, 7]]))
    assert few.tolist() == [[True, True, False, False], [True, True, True, False], [True] * 4, [True, True, True, False]]
    assert ranks(among_candidates(score, few)).tolist() == [2, 2.5, 2, 3]
    assert among_candidates(score, few >= 0) is score, "all are candidates"


def test_a_true_score_of_minus_infinity_ranks_last():
    inf = np.inf
    score = np.array([[-inf, 1, -inf, -inf], [-inf] * 4, [np.nan, 1, -inf, -inf], [inf, 1, inf, -inf]], np.float32)
    assert ranks(score).tolist() == [4, 4, 2, 1.5]


def test_ap_and_auc_equal_scikit_learns_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        true, false = rng.integers(0, 6, 40).astype(np.float32), rng.integers(0, 5, 40).astype(np.float32)
        y, p = np.repeat([1, 0], 40), np.concatenate([true, false])
        ap, auc = average_precision(true, false)
        assert abs(ap - average_precision_score(y, p)) < 1e-9 and abs(auc - roc_auc_score(y, p)) < 1e-9


def test_what_is_not_a_number_ranks_last_and_scores_worse_than_chance():
    nan = np.nan
    assert ranks(np.array([[nan, 1, 2, 3], [1, nan, nan, 0], [nan] * 4, [1, 0, 0, 0]], np.float32)).tolist() == [4, 3, 4, 1]
    broken = np.full((50, 101), nan, np.float32)
    m = measures(broken)
    assert m["mrr"] == pytest.approx(1 / 101) and m["hits10"] == 0 and m["auc"] == 0 and m["ap"] <= 0.5


def test_known_destinations_are_scored_apart():
    scores = np.zeros((4, 101), np.float32)
    scores[:2, 0] = 1
    known, no = np.array([True, True, False, False]), np.zeros(4, bool)
    m = measures(scores, Novelty(np.array([True, False, False, False]), known, ~no))
    assert m["mrr_known"] == 1 and m["mrr"] == (2 + 2 / 51) / 4
    assert m["mrr_pair_seen"] == 1 and m["mrr_pair_new"] == pytest.approx((1 + 2 / 51) / 3) and m["mrr_destination_new"] == pytest.approx(1 / 51)
    assert "mrr_source_new" not in m, "no event has a new source"
    assert "mrr_known" not in measures(scores, Novelty(no, no, no)) and not any("_" in name for name in measures(scores))


def test_ndcg_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    said, target = rng.random((30, 15)).astype(np.float32), rng.random((30, 15)).astype(np.float32) * (rng.random((30, 15)) < 0.3)
    target[:, 0] += 0.1
    assert abs(ndcg(said, target, 10) - ndcg_score(target, said, k=10)) < 1e-6
    assert label_measures("classification", np.ones((3, 1)), np.ones((3, 1))) == {}, "one kind only says nothing"
