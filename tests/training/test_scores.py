import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from streamd.training.negatives import negatives
from streamd.training.scores import average_precision, measures, ranks


def test_a_constant_scorer_scores_chance():
    m = measures(np.zeros((50, 101), np.float32))
    assert abs(m["mrr"] - 1 / 51) < 1e-12 and m["auc"] == 0.5 and m["ap"] == 0.5 and m["hits10"] == 0.0


def test_rank_counts_greater_and_half_of_equal():
    assert ranks(np.array([[3, 5, 3, 1], [9, 1, 1, 1]], np.float32)).tolist() == [2.5, 1.0]


def test_ap_and_auc_equal_scikit_learns_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        true, false = rng.integers(0, 6, 40).astype(np.float32), rng.integers(0, 5, 40).astype(np.float32)
        y, p = np.repeat([1, 0], 40), np.concatenate([true, false])
        ap, auc = average_precision(true, false)
        assert abs(ap - average_precision_score(y, p)) < 1e-9 and abs(auc - roc_auc_score(y, p)) < 1e-9


def plain_negatives(pool, event, dst, seed, count):
    """The protocol's words, in Python integers."""
    two, g = 2**64, 0x9E3779B97F4A7C15

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % two
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % two
        return x ^ (x >> 31)

    out = []
    for j in range(count):
        h = mix((mix((seed + g) % two) + (100 * event + j + 1) * g) % two)
        at = pool.index(dst) if dst in pool else len(pool)
        i = h % (len(pool) - (dst in pool))
        out.append(pool[i + (i >= at)])
    return out


def test_negatives_are_the_protocols_and_never_the_true_destination():
    pool = np.array([2, 3, 5, 7, 11, 13])
    events, dst = np.array([0, 1, 10**12, 4]), np.array([5, 2, 99, 13])
    got = negatives(pool, events, dst, seed=3)
    for row, e, d in zip(got.tolist(), events.tolist(), dst.tolist(), strict=True):
        assert row == plain_negatives(pool.tolist(), e, d, 3, 100) and d not in row
