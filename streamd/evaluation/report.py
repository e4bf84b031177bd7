"""The report of a backtest is one HTML file with a table and plots. It loads nothing else."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

import numpy as np

from streamd.evaluation.backtest import COLUMNS, TITLES, Result, age_text
from streamd.evaluation.grid import COLUMNS as GRID_COLUMNS
from streamd.evaluation.grid import GridResult

# Colours of the lines of a plot, in their order: eight, as many as TITLES has names.
COLORS = (
    "#2563eb",
    "#db2777",
    "#d97706",
    "#059669",
    "#dc2626",
    "#7c3aed",
    "#6b7280",
    "#0891b2",
)
# Pixels of a plot and of its margins; MAX_POINTS keeps about seven pixels between two points.
WIDTH = 860
HEIGHT = 280
LEFT = 56
TOP = 12
MAX_POINTS = 120
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
p.small { opacity: .7; font-size: 13px; } p.verdict { font-size: 17px; }
"""


def write_report(result: Result, title: str, settings: dict[str, str]) -> str:
    """Returns: the page as HTML. settings: name -> value, shown at the end."""
    # What is plotted.
    names = result.names()
    points = _points(result)
    scores = {TITLES[n]: [_mean(result, n, part) for part in points] for n in names}
    learned = [n for n in names if result.seconds(n) is not None]
    seconds = {
        TITLES[n]: [float(np.mean([result.windows[i].seconds[n] for i in part])) for part in points]
        for n in learned
    }
    times = [result.windows[part[0]].window.start_us / 1e6 for part in points]

    # The page, from top to bottom.
    parts = [
        f"<p class=verdict>{escape(result.verdict())}</p>",
        _table(COLUMNS, result.table()),
        f"<p class=small>{result.num_events:,} events in {len(result.windows):,} windows, "
        "each scored before it was learned: MRR and Hits@10 against 100 negatives, "
        "AP and AUC against one; means weighted by events. Behind ± is half the width of a 95 % "
        "interval by a block bootstrap over windows.</p>",
    ]
    if sets := result.set_table():
        parts += ["<h2>Edge sets</h2>", _table(sets[0], sets[1:])]
    if labels := result.label_table():
        parts += ["<h2>Labels</h2>", _table(labels[0], labels[1:])]
    if sets := result.label_set_table():
        parts += [_table(sets[0], sets[1:])]
    parts += [
        "<h2>MRR over time</h2>",
        _plot(times, scores),
    ]
    if len(result.stale) > 1:
        parts += ["<h2>How old facts may be</h2>", _stale(result)]
    parts += [
        "<h2>Seconds a window, to score and learn</h2>",
        _plot(times, seconds),
        *_settings(settings),
    ]
    return _page(title, parts)


def write_grid_report(result: GridResult, title: str, settings: dict[str, str]) -> str:
    """Returns: the page of a grid as HTML. settings: those in force, shown at the end."""
    parts = [
        f"<p class=verdict>{escape(result.advice())}</p>",
        _table(GRID_COLUMNS, result.table()),
        "<p class=small>The live regime under each setting, on the same "
        f"{len(result.runs[0].windows):,} windows.</p>",
        *_settings(settings),
    ]
    return _page(title, parts)


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>"
    )


def _settings(settings: dict[str, str]) -> list[str]:
    return [
        "<h2>Settings</h2><table>",
        *(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in settings.items()),
        "</table>",
    ]


def _points(result: Result) -> list[list[int]]:
    """Numbers of the windows of each point of a plot. Neighbours share a point where there are
    many."""
    count = min(MAX_POINTS, len(result.windows))
    return [part.tolist() for part in np.array_split(np.arange(len(result.windows)), count)]


def _mean(result: Result, name: str, part: Sequence[int]) -> float:
    windows = [result.windows[i] for i in part]
    scores = [w.scores[result.name_of(name)]["mrr"] for w in windows]
    return float(np.average(scores, weights=[w.num_scored for w in windows]))


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rows = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells]
    return (
        f"<table><tr>{''.join(f'<th>{escape(m)}</th>' for m in head)}</tr>{''.join(rows)}</table>"
    )


def _stale(result: Result) -> str:
    """Plot MRR by staleness: facts of each age, then the nightly and the frozen model."""
    mrr_by_age = {
        "fresh" if age == 0 else age_text(age): m["mrr"] for age, m in result.stale.items()
    }
    mrr_by_age |= {
        TITLES[n]: result.mean(n)["mrr"] for n in ("nightly", "frozen") if n in result.names()
    }
    return _plot(list(range(len(mrr_by_age))), {"MRR": list(mrr_by_age.values())}, list(mrr_by_age))


def _plot(
    xs: Sequence[float], lines: dict[str, list[float]], labels: list[str] | None = None
) -> str:
    """Plot lines over `xs` as SVG. `xs` are seconds of event time unless labels are given."""
    top = max((v for line in lines.values() for v in line), default=1.0) or 1.0
    low, high = min(xs), max(xs)

    def at_pixel(x: float, y: float) -> str:
        across = (WIDTH - LEFT - 10) * ((x - low) / (high - low or 1))
        return f"{LEFT + across:.1f},{TOP + HEIGHT * (1 - y / top):.1f}"

    # Horizontal lines with the scale.
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 40}" role="img">']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = TOP + HEIGHT * (1 - share)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}" stroke="#8884"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share * top:.3g}</text>'
        )

    # First, middle and last time, or every label.
    for at in sorted({0, len(xs) // 2, len(xs) - 1}) if labels is None else range(len(labels)):
        label = (
            labels[at] if labels else datetime.fromtimestamp(xs[at], UTC).strftime("%Y-%m-%d %H:%M")
        )
        x = at_pixel(xs[at], 0).split(",")[0]
        out.append(
            f'<text x="{x}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{escape(label)}</text>'
        )

    # The lines, and the key of their colours.
    keys = []
    for (name, values), color in zip(lines.items(), COLORS, strict=False):
        points = " ".join(at_pixel(x, y) for x, y in zip(xs, values, strict=True))
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        keys.append(f'<span class="key" style="background:{color}"></span>{escape(name)}')
    return "".join([*out, "</svg><p>", *keys, "</p>"])
