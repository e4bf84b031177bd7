from pathlib import Path

import numpy as np

from streamd.training.versions.shadow import NUM_SPREADS, Comparison, judge

ENOUGH, WINDOW, YEAR = 2000, 95, 24 * 365


def ranks_of(rng, shape, mrr_loss=0.0):
    """Reciprocal ranks of a champion and a shadow that agree on most events, as two versions of a model do; a share of the
    champion's hits is lost."""
    shadow = 1 / rng.geometric(0.55, shape)
    moved = rng.random(shape) < 0.4
    champion = np.where(moved, 1 / rng.geometric(0.55, shape), shadow)
    return np.where(rng.random(shape) < mrr_loss / 0.8, champion * 0.2, champion), shadow


def windows(rng, number, loss=0.0):
    """Verdicts of so many hourly windows, and the hours at which they came."""
    compared, verdicts = Comparison(), []
    champion, shadow = ranks_of(rng, (number, WINDOW), loss)
    for hour in range(number):
        compared = compared.with_events(champion[hour], shadow[hour])
        verdict, _ = judge(compared, ENOUGH)
        if verdict != "open":
            verdicts.append((hour + 1, verdict))
            compared = Comparison()
    return verdicts


def test_an_equal_model_is_rolled_back_less_than_once_a_year():
    years = 6
    verdicts = [v for year in range(years) for _, v in windows(np.random.default_rng(year), YEAR)]
    assert len(verdicts) > 390 * years
    assert verdicts.count("worse") < years


def test_a_model_a_fifth_worse_is_rolled_back_within_a_day():
    for seed in range(200):
        champion, shadow = ranks_of(np.random.default_rng(1000 + seed), (24, WINDOW), 0.2)
        assert 0.15 < 1 - champion.mean() / shadow.mean() < 0.25
        hour, verdict = windows(np.random.default_rng(seed), 24, 0.2)[0]
        assert verdict == "worse" and hour <= 24


def test_models_that_differ_in_their_seed_alone_are_never_worse_on_real_streams():
    with np.load(Path(__file__).with_name("two_seeds.npz")) as file:
        streams = [2 / file[name].astype(np.float64) for name in file]
    only_errors = 0
    for rank in streams:
        for champion, shadow in (rank, rank[::-1]):
            for n, first in ((ENOUGH, ENOUGH), (5000, 0), (10_000, 0)):  # models learn the first events at unlike speed
                for a in range(first, len(champion) - n + 1, n):
                    part = slice(a, a + n)
                    compared = Comparison().with_events(champion[part], shadow[part])
                    error = np.std(champion[part] - shadow[part]) / np.sqrt(n)
                    only_errors += compared.mean < -NUM_SPREADS * error
                    assert judge(compared, ENOUGH)[0] == "proven"
    assert only_errors, "the data no longer shows what the least effect is for"


def test_the_comparison_is_that_of_all_events_at_once():
    rng = np.random.default_rng(0)
    champion, shadow = ranks_of(rng, (1, 3000))
    parts = Comparison()
    for a, b in ((0, 1), (1, 700), (700, 3000)):
        parts = parts.with_events(champion[0, a:b], shadow[0, a:b])
    d = (champion - shadow)[0]
    assert parts.num_events == 3000 and np.isclose(parts.mean, d.mean())
    assert judge(parts, 3001)[0] == "open"
    assert f"{d.mean():+.4f} against {shadow.mean():.4f} over 3000" in judge(parts, 3000)[1]
    assert judge(Comparison(2000, 0.0, 0.0), 2000)[0] == "proven", "two that answer alike are equal"
