"""Running mean and spread (standard deviation) of inputs, stored with the weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from streamd.models.inference.standard_values import CLIP, LEAST_SPREAD
from streamd.models.schema_inputs import SchemaInput
from streamd.ranks import ALONE, Ranks

WARM_UP_ROWS = 1_000
"""Rows before clipping starts: from fewer, the spread is too uncertain to detect outliers."""
MAX_SPREADS = 100.0
"""Rows are clipped to this many spreads around the mean before they enter the statistics. One
outlier then moves the spread of a million rows by half a percent, and a flag that is set once in
ten thousand rows still counts in full."""
MEMORY_ROWS = 1_000_000
"""Bound of `count`, the weight of past rows, so that the statistics follow a stream that
changes."""


class RunningStandardizer(nn.Module):
    """(x - mean) / std over recent rows, clipped to +-5.

    mean, var: float64[dim]; count: float64, at most MEMORY_ROWS. shift, scale: float32[dim],
    derived from them when they change.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(dim), persistent=False)
        self.register_buffer("scale", torch.ones(dim), persistent=False)
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, _: module._derive()
        )

    def schema_inputs(self) -> dict[str, SchemaInput]:
        # Mean and variance of a column that was 0 in all rows so far are 0.
        return {name: SchemaInput("set_features") for name in ("mean", "var")}

    @torch.no_grad()
    def update(self, rows: Tensor, ranks: Ranks = ALONE) -> None:
        """Add rows [..., dim], of any device, to the statistics (Chan, Golub and LeVeque 1979:
        pairwise merge of means and variances). ranks: each has a share of the rows."""
        if not rows.numel() and (ranks.size == 1 or not len(self.mean)):
            return
        rows = rows.reshape(-1, len(self.mean)).to(self.mean)

        # Clip outliers to the bound.
        bounded = (self.var > 0) & (self.count >= WARM_UP_ROWS)
        bound = torch.where(bounded, MAX_SPREADS * self.var.sqrt(), torch.inf)
        rows = rows.clamp(self.mean - bound, self.mean + bound)

        # Merge the statistics of these rows with those before.
        n, mean, var = _moments(rows, ranks)
        if not n:
            return
        total = self.count + n
        delta = mean - self.mean
        old = self.var * self.count  # 0 before the first rows
        self.var.copy_((old + var * n + delta**2 * (self.count * n / total)) / total)
        self.mean += delta * (n / total)
        self.count.copy_(total.clamp_max(MEMORY_ROWS))
        self._derive()

    def _derive(self) -> None:
        std = self.var.sqrt()
        inverse = 1.0 / std.clamp_min(LEAST_SPREAD)
        self.shift.copy_(self.mean)
        self.scale.copy_(torch.where(std > LEAST_SPREAD, inverse, torch.zeros_like(std)))

    def forward(self, rows: Tensor) -> Tensor:
        """float32 rows [..., dim], standardised; a column that never varied stays at zero."""
        return (rows - self.shift).mul_(self.scale).clamp_(-CLIP, CLIP)


def _moments(rows: Tensor, ranks: Ranks) -> tuple[int, Tensor, Tensor]:
    """Number, mean and variance of the rows of all ranks: float64[dim] each."""
    if ranks.size == 1:
        return len(rows), rows.mean(0), rows.var(0, unbiased=False)
    # The mean first: squared differences from it give the variance without cancellation.
    num, *sums = ranks.total([len(rows), *rows.sum(0).tolist()])
    mean = rows.new_tensor(sums) / max(num, 1)
    var = rows.new_tensor(ranks.total(((rows - mean) ** 2).sum(0).tolist())) / max(num, 1)
    return int(num), mean, var


class SetStandardizer(nn.Module):
    """`RunningStandardizer` for rows of several sets: each set's features by statistics of its own
    rows. The one-hot of the set, and the zeros of other sets, stay as they are.

    set_of: int64[dim], the set of each column.
    """

    shift: Tensor
    scale: Tensor
    set_of: Tensor

    def __init__(self, columns: Sequence[slice]) -> None:
        """columns: of the features of each set in a row; the one-hot of the sets comes before
        them."""
        super().__init__()
        self.sets = nn.ModuleList(RunningStandardizer(c.stop - c.start) for c in columns)
        self._columns = tuple(columns)
        dim = columns[-1].stop
        set_of = torch.arange(dim)
        for number, own in enumerate(columns):
            set_of[own] = number
        self.register_buffer("set_of", set_of, persistent=False)
        self.register_buffer("shift", torch.zeros(dim), persistent=False)
        self.register_buffer("scale", torch.ones(dim), persistent=False)
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, _: module._derive()
        )

    @torch.no_grad()
    def update(self, rows: Tensor, ranks: Ranks = ALONE) -> None:
        """Add rows [..., dim] to the statistics. ranks: each has a share of them."""
        rows = rows.reshape(-1, len(self.set_of))
        for number, (own, stats) in enumerate(zip(self._columns, self.sets, strict=True)):
            stats.update(rows[rows[:, number] > 0][:, own], ranks)  # type: ignore[operator]
        self._derive()

    def _derive(self) -> None:
        for own, stats in zip(self._columns, self.sets, strict=True):
            self.shift[own] = stats.shift  # type: ignore[assignment]
            self.scale[own] = stats.scale  # type: ignore[assignment]

    def forward(self, rows: Tensor) -> Tensor:
        """float32 rows [..., dim], standardised."""
        out = (rows - self.shift).mul_(self.scale).clamp_(-CLIP, CLIP)
        return out.mul_(rows[..., self.set_of])


def standardizer(dim: int, columns: Sequence[slice]) -> RunningStandardizer | SetStandardizer:
    """The standardizer for rows of features. columns: of the features of each set; one slice if
    there is one set."""
    return RunningStandardizer(dim) if len(columns) == 1 else SetStandardizer(columns)
