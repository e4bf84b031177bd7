"""The content of a backtest's report, independent of its format.

`streamd.evaluation.report.html` renders it as a page, `streamd.evaluation.report.text` as Markdown
and as JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from streamd.evaluation.backtest import COLUMNS, TITLES, Result, age_text
from streamd.evaluation.compared import means
from streamd.evaluation.grid import COLUMNS as GRID_COLUMNS
from streamd.evaluation.grid import GridResult
from streamd.evaluation.verdict import verdict_of
from streamd.graph.negatives import NUM_SCORED
from streamd.number_texts import count_noun
from streamd.windows.intervals import Difference
from streamd.windows.means import ALL, KNOWN
from streamd.windows.novelty import recurrence

MAX_POINTS = 120
"""The most points of a curve: with more windows, neighboring ones share a point."""
LESS_IS_BETTER = frozenset({"MAE", "RMSE"})
"""Columns with the smallest value as the best; in other columns of scores it is the largest."""
SCORES = frozenset(COLUMNS[1:6]) | {"NDCG@10", "AP", "AUC"} | LESS_IS_BETTER
"""Columns with a marked best value."""
SHORT = {
    "live": "live",
    "no_replay": "live, no\nreplay",
    "nightly": "nightly",
    "nightly_live": "nightly\nweights",
    "frozen": "frozen\nweights",
    "rule": "partners +\npopularity",
    "edgebank": "EdgeBank",
    "popularity": "popularity",
}
"""Names next to the curves on a narrow screen, with line feeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The invocation. command: the command line. settings: (key, value, origin of the value)."""

    command: str = ""
    settings: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """A table of text. best: (row, column) of the best cells."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line of a plot. short: its name for narrow screens. values: one for each point."""

    name: str
    short: str
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Curves over event time. times: Unix seconds, one for each point."""

    title: str
    times: Sequence[float]
    curves: Sequence[Curve]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """A value for each name, in order."""

    title: str
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The parts of a report, in the order of display.

    data: the figures as numbers, for programs.
    """

    title: str
    verdict: str
    about: str
    tables: Sequence[ReportTable]
    plots: Sequence[Plot | Bars] = ()
    asked: Asked
    data: Mapping[str, Any] = field(default_factory=dict)


def report_of(result: Result, title: str, asked: Asked) -> Report:
    """The report of a backtest. title: of the page. asked: the invocation."""
    # Tables: the regimes first, then edge sets and labels if there are any.
    tables = [_table("All events", COLUMNS, result.table(), "Bold: the best of a column.")]
    novelty = result.novelty_table()
    tables.append(_by_novelty(novelty[0], novelty[1:]))
    if sets := result.set_table():
        tables.append(_by_row("Edge sets", sets))
    if labels := result.label_table():
        tables.append(_table("Labels", labels[0], labels[1:]))
    if sets := result.label_set_table():
        tables.append(_by_row("Labels by node set", sets))

    # Curves over windows, and the live model by the age of its facts.
    points = _points(range(len(result.windows)))
    plots: list[Plot | Bars] = [_mrr_plot(result)]
    if len(result.stale) > 1:
        plots.append(_ages(result))
    # Rules need no training, so they have no times.
    learned = [name for name in result.names() if result.seconds(name) is not None]
    plots.append(
        _plot("Seconds a window, to score and learn", result, points, learned, _mean_seconds)
    )

    count = count_noun(len(result.windows), "window")
    about = (
        f"{count_noun(result.num_events, 'event')} in {count}, {_span(result)}, each "
        f"scored before the training on it. MRR and Hits@10 are against {_negatives(result)}, AP "
        "and AUC against one; means are weighted by events. After ± is half the width of a 95 % "
        "interval by a block bootstrap over windows. Known: over events with a destination known "
        "before."
    )
    for note in filter(None, (result.known_note(), result.nightly_note())):
        about += f" {note}"
    return Report(
        title=title,
        verdict=verdict_of(result),
        about=about,
        tables=tables,
        plots=plots,
        asked=asked,
        data=_figures(result),
    )


def grid_report_of(result: GridResult, title: str, asked: Asked) -> Report:
    """The report of a grid. asked: the settings in force, which are run first."""
    windows = count_noun(len(result.runs[0].windows), "window")
    about = f"The live regime under each setting, on the same {windows}."
    first = result.runs[0]
    runs = [
        {
            "settings": run.name,
            "means": run.mean,
            "seconds_per_window": run.seconds,
            "mrr_better_than_first": None
            if run is first
            else _difference(run.better_than(first, ALL)),
            "mrr_known_better_than_first": None
            if run is first
            else _difference(run.better_than(first)),
        }
        for run in result.runs
    ]
    return Report(
        title=title,
        verdict=result.advice(),
        about=about,
        tables=[_table("Settings", GRID_COLUMNS, result.table(), "Bold: the best of a column.")],
        asked=asked,
        data={"windows": len(result.runs[0].windows), "runs": runs},
    )


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> ReportTable:
    """A table with measures as columns; the best cells of each are marked, all of them if equal."""
    best: set[tuple[int, int]] = set()
    for column, name in enumerate(head):
        if name in SCORES:
            cells = [(row[column], number) for number, row in enumerate(rows) if row[column]]
            best |= {(number, column) for number in _best(cells, name in LESS_IS_BETTER)}
    return ReportTable(title=title, head=head, rows=rows, best=frozenset(best), note=note)


def _by_novelty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> ReportTable:
    """The table by novelty; its first row has numbers of events, which have no best."""
    best: set[tuple[int, int]] = set()
    for column in range(1, len(head)):
        cells = [(row[column], number) for number, row in enumerate(rows) if number]
        best |= {(number, column) for number in _best(cells, less=False)}
    note = (
        "Bold: the best of a column. A pair was seen if an event went from this source to this "
        "destination before; destinations and sources are new before their first event."
    )
    return ReportTable(title="By novelty", head=head, rows=rows, best=frozenset(best), note=note)


def _by_row(title: str, table: Sequence[Sequence[str]]) -> ReportTable:
    """A table with regimes as columns, after the first two: the best cells of each row are marked.
    The first row is the head."""
    less = any(table[0][0].startswith(name) for name in LESS_IS_BETTER)
    best: set[tuple[int, int]] = set()
    for number, row in enumerate(table[1:]):
        cells = [(cell, column) for column, cell in enumerate(row) if column > 1 and cell]
        best |= {(number, column) for column in _best(cells, less)}
    return ReportTable(
        title=title,
        head=table[0],
        rows=table[1:],
        best=frozenset(best),
        note="Bold: the best of a row.",
    )


def _best(cells: Sequence[tuple[str, int]], less: bool) -> list[int]:
    """The indices of the best of (text of a number, index) pairs, as displayed; none if all are
    "-"."""
    values = [(float(text), index) for text, index in cells if text != "-"]
    if not values:
        return []
    top = (min if less else max)(value for value, _ in values)
    return [index for value, index in values if value == top]


def _points(windows: Sequence[int]) -> list[list[int]]:
    """Split windows into the points of a plot. windows: numbers of the windows to draw."""
    count = min(MAX_POINTS, len(windows))
    return [part.tolist() for part in np.array_split(np.asarray(windows), count)]


def _mrr_plot(result: Result) -> Plot:
    """MRR by the measure that compares regimes and rules, over the windows that have it."""
    is_known = result.measure == KNOWN
    drawn = [i for i, w in enumerate(result.windows) if w.num_known or not is_known]
    title = "MRR over time" + (", destinations known before" if is_known else "")
    return _plot(title, result, _points(drawn), result.names(), _mean_mrr)


def _plot(
    title: str,
    result: Result,
    points: Sequence[Sequence[int]],
    names: Sequence[str],
    value: Callable[[Result, str, Sequence[int]], float],
) -> Plot:
    times = [result.windows[part[0]].window.start_us / 1e6 for part in points]
    curves = [
        Curve(
            name=TITLES[name],
            short=SHORT[name],
            values=[value(result, name, part) for part in points],
        )
        for name in names
    ]
    return Plot(title=title, times=times, curves=curves)


def _mean_mrr(result: Result, name: str, part: Sequence[int]) -> float:
    return means([result.windows[i] for i in part], result.name_of(name))[result.measure]


def _negatives(result: Result) -> str:
    """The number of negatives of an event, in words."""
    mean = result.mean_negatives
    return f"{NUM_SCORED} negatives" if mean >= NUM_SCORED else f"{mean:,.1f} negatives on average"


def _mean_seconds(result: Result, name: str, part: Sequence[int]) -> float:
    return float(np.mean([result.windows[i].seconds[name] for i in part]))


def _ages(result: Result) -> Bars:
    """MRR of live with facts of each age, then of the nightly and the frozen model, by
    `Result.measure`.

    Over known destinations only, the comparison is fair: models with older facts have no rate of
    new destinations.
    """
    values = {
        "live, fresh facts" if age == 0 else f"live, facts {age_text(age)} old": m[result.measure]
        for age, m in result.stale.items()
    }
    values |= {
        TITLES[name]: result.mean(name)[result.measure]
        for name in ("nightly", "frozen")
        if name in result.names()
    }
    return Bars(title="MRR by how old facts are", values=values)


def _span(result: Result) -> str:
    """The windows' event time in words."""
    first, last = result.windows[0].window, result.windows[-1].window
    return f"{_time(first.start_us)} to {_time(last.end_us)}"


def _time(time_us: int) -> str:
    """An event time as "2026-11-22 10:00 UTC", or as its number if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return f"{time_us} us"


def _figures(result: Result) -> dict[str, Any]:
    """The figures of a backtest as numbers."""
    names = result.names()
    return {
        "events": result.num_events,
        "windows": len(result.windows),
        "start": _time(result.windows[0].window.start_us),
        "end": _time(result.windows[-1].window.end_us),
        "mean_negatives": result.mean_negatives,
        "mean_negatives_by_edge_set": result.mean_negatives_of_sets(),
        "recurrence": recurrence(w.novelty.counts for w in result.windows),
        "events_by_novelty": result.novelty_counts(),
        "events_known": result.num_known_destinations,
        "means": {name: dict(result.mean(name)) for name in names},
        "seconds_per_window": {
            name: result.seconds(name) for name in names if result.seconds(name) is not None
        },
        "live_better_by_mrr": _differences(result, ALL),
        "live_better_by_mrr_known": _differences(result, None),
        "facts_age": {
            "fresh" if age == 0 else age_text(age): dict(means)
            for age, means in result.stale.items()
        },
        "tables": {
            "edge_sets": result.set_table(),
            "labels": result.label_table(),
            "labels_by_node_set": result.label_set_table(),
        },
        "by_window": [
            {
                "start_us": w.window.start_us,
                "end_us": w.window.end_us,
                "events": w.num_scored,
                "events_known": w.num_known,
                **{
                    measure: {name: w.scores[result.name_of(name)].get(measure) for name in names}
                    for measure in (ALL, KNOWN)
                },
                "seconds": dict(w.seconds),
            }
            for w in result.windows
        ],
    }


def _differences(result: Result, measure: str | None) -> dict[str, dict[str, float | int]]:
    """By how much live is above each other regime and rule. measure: as in `Result.difference`."""
    return {
        name: _difference(result.difference("live", name, measure))
        for name in result.names()
        if name != "live"
    }


def _difference(of: Difference) -> dict[str, float | int]:
    return {"mean": of.mean, "radius": of.radius, "windows": of.num_windows}
