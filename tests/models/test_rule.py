"""The rule that needs no learning follows the stream: past partners if sources repeat, else popularity and co-visits."""

import numpy as np
import pytest

from streamd.graph import NUM_FACTS, FactColumn, PairFacts
from streamd.graph.ranking import ranks
from streamd.models.rule import edgebank_scores, rule_scores

SECOND = 1_000_000
HALF_LIVES = (90, 1_800, 8_640, 43_200, 691_200)


def mrr_by_rule(src, dst, seed=0):
    """MRR of the second half of a stream with an event a minute, by each rule, against 50 of its destinations."""
    rng = np.random.default_rng(seed)
    time = np.arange(len(src)) * 60 * SECOND
    asked = np.arange(len(src) // 2, len(src))
    others = np.unique(dst)
    negatives = others[rng.integers(0, len(others), (len(asked), 50))]
    negatives = np.where(negatives == dst[asked, None], -1, negatives)
    facts = PairFacts(HALF_LIVES, 100_000).advance_scoring(
        src, dst, time, asked, np.concatenate([dst[asked, None], negatives], 1))
    by_rule = {"rule": rule_scores(facts), "edgebank": edgebank_scores(facts)}
    by_rule |= {f"popularity {h}": facts[..., FactColumn.LOG_SHARE_1 + h] for h in range(5)}
    return {name: float((1 / ranks(scores)).mean()) for name, scores in by_rule.items()}


def tastes(num_events, rng):
    """Sources that like one of ten kinds of 200 destinations: the source of each event, and the destinations it likes."""
    src = rng.integers(0, 300, num_events)
    return src, [np.flatnonzero(np.arange(200) % 10 == u % 10) for u in src]


@pytest.mark.parametrize("repeats", [0.0, 0.5, 0.95])
def test_the_rule_beats_partners_and_popularity_however_often_pairs_repeat(repeats):
    rng = np.random.default_rng(1)
    src, liked = tastes(3000, rng)
    had, dst = {}, []
    for u, own in zip(src.tolist(), liked, strict=True):
        past = had.setdefault(u, [])
        new = [v for v in own[: 12 + len(past)].tolist() if v not in past]
        again = past and (rng.random() < repeats or not new)
        dst.append(past[-1 - rng.integers(min(3, len(past)))] if again else int(rng.choice(new)))
        past.append(dst[-1])
    found = mrr_by_rule(src, 300 + np.array(dst))
    assert found["rule"] > max(v for name, v in found.items() if name != "rule") + 0.02, found


def test_a_source_that_repeats_is_given_partners_and_one_that_does_not_popular_destinations():
    """Source 0 alternates between 10 and 11; 20 is popular with others."""
    src = np.array([0] * 20 + [2, 3, 4, 5] * 5)
    dst = np.array([10, 11] * 10 + [20] * 20)
    facts = PairFacts(HALF_LIVES, 1000)
    facts.advance(src, dst, np.arange(len(src)) * SECOND)
    row = facts.compute(np.array([0]), np.array([100 * SECOND]), np.array([[10, 20]]))
    row[..., FactColumn.LOG_COVISITS] = 0
    partner, popular = rule_scores(row)[0]
    assert partner > 4 * popular

    # The same facts of a source whose events were all with new partners.
    row[..., FactColumn.LOG_SOURCE_PARTNERS] = row[..., FactColumn.LOG_SOURCE_EVENTS]
    partner_then, popular_then = rule_scores(row)[0]
    assert partner_then < popular_then and popular_then > 5 * popular


def test_nothing_known_scores_nothing_and_no_row_is_not_finite():
    facts = PairFacts(HALF_LIVES, 1000).compute(np.array([-1]), np.array([SECOND]), np.array([[0, -1]]))
    assert not rule_scores(facts).any()
    drawn = np.random.default_rng(0).normal(size=(500, 3, NUM_FACTS)).astype(np.float32)
    assert np.isfinite(rule_scores(drawn)).all()
