"""The demo's final table: compares the live model with the alternatives, by day and in total."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.table import Table

from streamd.evaluation.backtest import NIGHTLY
from streamd.evaluation.regimes import DAY_US, RegimeWindow, best_half_life
from streamd.training.measures import Measures
from streamd.windows.history import WindowRecord

COLUMNS = {
    "live": "live",
    "nightly": "nightly",
    "nightly_live": "nightly weights,\nlive state",
    "frozen": "frozen weights,\nlive state",
    "rule": "partners +\npopularity",
    "edgebank": "EdgeBank",
    "popularity": "popularity",
}
"""Heading of each regime's column."""
WIDE = 130
"""Terminal width that fits MRR and AP of all regimes in one table, in characters."""
LABEL_WIDTH = 9
"""Width of a row's label in narrower terminals, in characters."""
MARK = "*"
"""Marks a nightly model's score that is the rule's in a part of the windows."""


class Part(NamedTuple):
    """The scores of a window by regime. num_known: number of scored events with a known
    destination. nightly_learned: as in `RegimeWindow`."""

    first_edge: int
    num_scored: int
    num_known: int
    scores: dict[str, Measures]
    nightly_learned: bool


@dataclass(frozen=True)
class Row:
    """Event-weighted means over windows, by regime: (MRR, AP), with AP None if only known
    destinations count.

    has_rule: whether the nightly models have the rule's scores in some windows: those before the
    first night.
    """

    label: str
    num_events: int
    means: dict[str, tuple[float, float | None]]
    has_rule: bool = False


def rows(
    records: Sequence[WindowRecord], windows: Sequence[RegimeWindow], cut: int, num_events: int
) -> list[Row]:
    """One row for each day of event time, and two for the windows from event `cut` on.

    The first of the two covers all events of these windows, the second those with a known
    destination.
    """
    # Join the live scores of each window with those of the baselines.
    half_life = best_half_life(windows, int(0.2 * num_events), cut)
    baselines = {w.window.first_edge: w for w in windows}
    days: dict[int, list[Part]] = {}
    for record in records:
        baseline = baselines.get(record.first_edge)
        if not record.num_scored or baseline is None:
            continue
        scores = {
            "live": record.scores["live"],
            "popularity": baseline.scores[f"popularity_{half_life}"],
            **baseline.scores,
        }
        part = Part(
            record.first_edge, record.num_scored, record.num_known, scores, baseline.nightly_learned
        )
        days.setdefault(record.start_us // DAY_US, []).append(part)

    # A row per day, then the totals.
    first = min(days, default=0)
    out = [_row(f"day {day - first + 1}", parts) for day, parts in sorted(days.items())]
    late = [part for parts in days.values() for part in parts if part.first_edge >= cut]
    if late:
        out.append(_row(f"after {cut:,} events", late))
    if known := [part for part in late if part.num_known]:
        weight = [part.num_known for part in known]
        out.append(
            Row(
                "known before",
                sum(weight),
                {r: (_mean(known, weight, r, "mrr_known"), None) for r in COLUMNS},
                _has_rule(known),
            )
        )
    return out


def _row(label: str, parts: Sequence[Part]) -> Row:
    """The means over some windows."""
    weight = [part.num_scored for part in parts]
    return Row(
        label,
        sum(weight),
        {r: (_mean(parts, weight, r, "mrr"), _mean(parts, weight, r, "ap")) for r in COLUMNS},
        _has_rule(parts),
    )


def _has_rule(parts: Sequence[Part]) -> bool:
    return not all(part.nightly_learned for part in parts)


def _mean(parts: Sequence[Part], weight: Sequence[int], regime: str, measure: str) -> float:
    """The weighted mean of one measure of a regime."""
    return float(np.average([part.scores[regime][measure] for part in parts], weights=weight))


def render(table_rows: Sequence[Row], title: str, width: int = WIDE) -> list[Table]:
    """Render the rows as a table of MRR / AP, with the best MRR of each row in bold. If width is
    below `WIDE`, render one table of MRR and one of AP, which fit 80 characters."""
    end = "of every event before it was learned, against the same negatives"
    marked = any(row.has_rule for row in table_rows)
    note = f"; {MARK} with windows before the first night, which the rule scores"
    known = "; last row: MRR where the destination was known before, by which they compare"
    if width >= WIDE:
        caption = f"MRR / AP {end}{known}{note if marked else ''}"
        return [_table(table_rows, title, caption, _both)]
    with_ap = [row for row in table_rows if all(ap is not None for _, ap in row.means.values())]
    return [
        _table(table_rows, title, f"MRR {end}{known}{note if marked else ''}", _mrr, narrow=True),
        _table(with_ap, title, f"AP {end}", _ap, narrow=True),
    ]


def _table(
    table_rows: Sequence[Row],
    title: str,
    caption: str,
    text: Callable[[float, float | None], str],
    narrow: bool = False,
) -> Table:
    """A table with a row for each of `table_rows`. text: makes a cell's text of MRR and AP."""
    if narrow:
        table = Table(title=title, caption=caption, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    else:
        table = Table(title=title, caption=caption)
    table.add_column("", max_width=LABEL_WIDTH if narrow else None)
    table.add_column("events", justify="right", no_wrap=True)
    for name in COLUMNS.values():
        heading = name.replace(" ", "\n") if narrow and "partners" not in name else name
        table.add_column(heading, justify="right")

    # A line separates the days from the totals.
    last_day = [row for row in table_rows if row.label.startswith("day")][-1:]
    for row in table_rows:
        best = max(mrr for mrr, _ in row.means.values())
        cells = []
        for regime in COLUMNS:
            cell = text(*row.means[regime])
            is_best = row.means[regime][0] == best
            mark = MARK if row.has_rule and regime in NIGHTLY else ""
            cells.append((f"[bold]{cell}[/bold]" if is_best else cell) + mark)
        table.add_row(row.label, f"{row.num_events:,}", *cells, end_section=row in last_day)
    return table


def _both(mrr: float, ap: float | None) -> str:
    # The row of known destinations has no AP.
    return _short(mrr) if ap is None else f"{_short(mrr)} / {_short(ap)}"


def _mrr(mrr: float, ap: float | None) -> str:
    return _short(mrr)


def _ap(mrr: float, ap: float | None) -> str:
    return "" if ap is None else _short(ap)


def _short(value: float) -> str:
    """Three digits without the leading zero."""
    return f"{value:.3f}".removeprefix("0") if value < 1 else "1.00"
