"""The demo's last word: per day and in all, the live model beside what a user would have otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from streamd.training.regimes import DAY_US, RegimeWindow, best_half_life
from streamd.training.scores import Measures
from streamd.windows.history import WindowRecord

COLUMNS = {"live": "live", "nightly": "nightly", "nightly_live": "nightly weights,\nlive state",
           "frozen": "frozen weights,\nlive state", "edgebank": "EdgeBank", "popularity": "popularity"}


@dataclass(frozen=True)
class Row:
    """Event-weighted means over some windows: regime -> (MRR, AP)."""

    label: str
    num_events: int
    means: dict[str, tuple[float, float]]


def rows(records: Sequence[WindowRecord], windows: Sequence[RegimeWindow], cut: int, num_events: int) -> list[Row]:
    """One row per event-time day, then the total over the windows after the first 30% of the events."""
    half_life = best_half_life(windows, int(0.2 * num_events), cut)
    twins = {w.window.first_edge: w for w in windows}
    days: dict[int, list[tuple[int, int, dict[str, Measures]]]] = {}
    for record in records:
        twin = twins.get(record.first_edge)
        if not record.num_scored or twin is None:
            continue
        scores = {"live": record.scores["live"], "popularity": twin.scores[f"popularity_{half_life}"], **twin.scores}
        days.setdefault(record.start_us // DAY_US, []).append((record.first_edge, record.num_scored, scores))
    first = min(days, default=0)
    out = [_row(f"day {day - first + 1}", parts) for day, parts in sorted(days.items())]
    late = [part for parts in days.values() for part in parts if part[0] >= cut]
    if late:
        out.append(_row("after 30%", late))
    return out


def _row(label: str, parts: Sequence[tuple[int, int, dict[str, Measures]]]) -> Row:
    weight = [n for _, n, _ in parts]

    def mean(regime: str, measure: str) -> float:
        return float(np.average([s[regime][measure] for _, _, s in parts], weights=weight))

    return Row(label, sum(weight), {r: (mean(r, "mrr"), mean(r, "ap")) for r in COLUMNS})


def render(table_rows: Sequence[Row], title: str) -> Table:
    """The rows as a table, MRR / AP, the best MRR of each row in bold."""
    table = Table(title=title, caption="MRR / AP of every event before it was learned, against the same negatives")
    table.add_column("")
    table.add_column("events", justify="right")
    for name in COLUMNS.values():
        table.add_column(name, justify="right")
    for row in table_rows:
        best = max(mrr for mrr, _ in row.means.values())
        cells = [_cell(*row.means[r], bold=row.means[r][0] == best) for r in COLUMNS]
        table.add_row(row.label, f"{row.num_events:,}", *cells, end_section=row is table_rows[-2:][0])
    return table


def _cell(mrr: float, ap: float, bold: bool) -> str:
    text = f"{_short(mrr)} / {_short(ap)}"
    return f"[bold]{text}[/bold]" if bold else text


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value < 1 else "1.00"


