import torch

from streamd.models.standardize import MEMORY_ROWS, RunningStandardizer


def test_running_statistics_equal_those_of_all_rows():
    rows = torch.randn(1000, 3, dtype=torch.double) * torch.tensor([1.0, 50.0, 0.0]) + torch.tensor([5.0, -3.0, 2.0])
    stats = RunningStandardizer(3)
    for part in rows.split([1, 9, 490, 500]):
        stats.update(part)
    torch.testing.assert_close(stats.mean, rows.mean(0))
    torch.testing.assert_close(stats.var, rows.var(0, unbiased=False))
    out = stats(rows.float())
    assert out.abs().max() <= 5 and torch.equal(out[:, 2], torch.zeros(1000)), "a column that never varied says nothing"


def test_statistics_outlive_wild_values_and_forget_slowly():
    """1e12 after a million good rows left a spread that erased the feature for the model's life."""
    torch.manual_seed(0)
    stats = RunningStandardizer(2)
    for _ in range(100):
        stats.update(torch.randn(10_000, 2))
    for _ in range(20):
        rows = torch.randn(500, 2)
        rows[7, 0] = 1e12
        stats.update(rows)
    assert stats.var.sqrt()[0] < 1.2 and abs(stats.mean[0]) < 0.05 and stats.count <= MEMORY_ROWS
    kept = stats(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert kept[0, 0] > 0.8 and kept[1, 0] < -0.8, "the feature still says what it said"
    poisoned = RunningStandardizer(1)
    poisoned.update(torch.tensor([[1e4]]))
    for _ in range(800):
        poisoned.update(torch.randn(10_000, 1))
    assert poisoned.var.sqrt() < 1.1, "what came in before anything was known wears off"


def test_a_flag_that_is_rarely_set_keeps_its_spread():
    torch.manual_seed(0)
    stats = RunningStandardizer(1)
    for _ in range(200):
        stats.update((torch.rand(10_000, 1) < 2e-4).float())
    assert 0.8 * 2e-4 < float(stats.var) < 1.2 * 2e-4
