"""A report as one HTML page: the verdict, tables, plots, and what was run. It loads nothing else,
and reads on a phone as on a desktop, in light as in dark."""

from html import escape

from streamd import __version__
from streamd.evaluation.report.content import Bars, Plot, Report, ReportTable
from streamd.evaluation.report.plots import NARROW, WIDE, draw

# Colours of curves on a light and on a dark page, in their order: as many as there are regimes and
# rules. Each has a contrast of at least 3 to the page behind it.
COLORS = (
    ("#1d4ed8", "#7aa2ff"),
    ("#c026d3", "#f0abfc"),
    ("#b45309", "#fbbf24"),
    ("#047857", "#34d399"),
    ("#dc2626", "#f87171"),
    ("#6d28d9", "#c4b5fd"),
    ("#57606a", "#a9b1ba"),
    ("#0e7490", "#67e8f9"),
)
STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --mark: #1d4ed8; --bar: #bfd0fb; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --text: #e6e9ee; --soft: #a9b1ba;
  --line: #3a414a; --mark: #7aa2ff; --bar: #2d4480; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--page); color: var(--text); overflow-wrap: anywhere; }
h1 { font-size: 1.1rem; font-weight: 600; color: var(--soft); margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p.verdict { font-size: 1.5rem; line-height: 1.35; font-weight: 600; margin: 0 0 1rem;
  text-wrap: pretty; }
p.soft, caption { color: var(--soft); font-size: .875rem; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9375rem; }
td, th { padding: .3rem .7rem; text-align: right; vertical-align: bottom; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); white-space: pre; }
td:first-child, th:first-child { text-align: left; padding-left: 0; }
td b { font-weight: 700; }
table.settings td { text-align: left; white-space: normal; font-family: ui-monospace, monospace;
  font-size: .8125rem; }
table.settings td:last-child, table.settings td:first-child { white-space: nowrap; }
table.bars { width: 100%; } table.bars td { border: 0; }
table.bars td:nth-child(2) { width: 60%; padding: .3rem 0; }
table.bars i { display: block; height: 1rem; background: var(--bar); border-radius: 2px; }
pre { white-space: pre-wrap; padding: .7rem .9rem; border: 1px solid var(--line);
  border-radius: 6px; font: .8125rem/1.5 ui-monospace, monospace; margin: 0; }
svg { width: 100%; height: auto; display: block; } svg.narrow { display: none; }
svg text { font-size: 12px; } svg .scale { fill: var(--soft); } svg .grid { stroke: var(--line); }
svg polyline { fill: none; stroke-width: 1.5; } svg polyline.c0 { stroke-width: 2.6; }
svg polyline.lead { stroke-width: 1; opacity: .6; } svg .n0 { font-weight: 700; }
@media (max-width: 640px) { body { margin: 1rem auto; } p.verdict { font-size: 1.2rem; }
  svg.wide { display: none; } svg.narrow { display: block; }
  td, th { padding: .3rem .45rem; } div.scroll td:first-child, div.scroll th:first-child {
  position: sticky; left: 0; background: var(--page); white-space: normal; min-width: 7rem; } }
@media print { svg.narrow { display: none; } svg.wide { display: block; } }
"""


def as_html(report: Report) -> str:
    """Returns: the page."""
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        # A figure stays in one line with its interval.
        f"<p class=verdict>{escape(report.verdict).replace(' ± ', '&nbsp;±&nbsp;')}</p>",
        f"<p class=soft>{escape(report.about)}</p>",
    ]
    parts += [_table(table) for table in report.tables]
    parts += [_bars(plot) if isinstance(plot, Bars) else _plot(plot) for plot in report.plots]
    parts.append(_asked(report))
    title = escape(report.title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{_colors()}</style></head><body><main>{''.join(parts)}</main></body></html>"
    )


def _colors() -> str:
    """The rules of style for curves and their names."""

    def rules(which: int) -> str:
        return "".join(
            f"svg polyline.c{number} {{ stroke: {pair[which]}; }}"
            f"svg .n{number} {{ fill: {pair[which]}; }}"
            for number, pair in enumerate(COLORS)
        )

    return f"{rules(0)}@media (prefers-color-scheme: dark) {{ {rules(1)} }}"


def _table(table: ReportTable) -> str:
    rows = []
    for number, row in enumerate(table.rows):
        cells = [
            f"<td><b>{escape(cell)}</b></td>"
            if (number, column) in table.best
            else f"<td>{escape(cell)}</td>"
            for column, cell in enumerate(row)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in table.head)
    note = f"<p class=soft>{escape(table.note)}</p>" if table.note else ""
    return (
        f"<h2>{escape(table.title)}</h2><div class=scroll tabindex=0><table><thead><tr>{head}</tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>{note}"
    )


def _plot(plot: Plot) -> str:
    return f"<h2>{escape(plot.title)}</h2>{draw(plot, WIDE)}{draw(plot, NARROW)}"


def _bars(bars: Bars) -> str:
    """Bars from 0, each with its name before and its value behind it."""
    top = max(bars.values.values(), default=0.0) or 1.0
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        f'<td><i style="width: {100 * max(value, 0) / top:.1f}%"></i></td>'
        f"<td>{value:.4f}</td></tr>"
        for name, value in bars.values.items()
    )
    return f"<h2>{escape(bars.title)}</h2><table class=bars>{rows}</table>"


def _asked(report: Report) -> str:
    """The command and the settings, those that are not the default first."""
    given = [row for row in report.asked.settings if row[2] != "default"]
    rest = [row for row in report.asked.settings if row[2] == "default"]
    out = [f"<h2>What was run</h2><p class=soft>streamd {escape(__version__)}</p>"]
    if report.asked.command:
        out.append(f"<pre>{escape(report.asked.command)}</pre>")
    for title, rows in (
        (f"{len(given)} settings that were given", given),
        (f"{len(rest)} settings by default", rest),
    ):
        if rows:
            shown = "".join(
                f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
            )
            is_open = " open" if rows is given else ""
            out.append(
                f"<details{is_open}><summary>{title}</summary><div class=scroll>"
                f"<table class=settings>{shown}</table></div></details>"
            )
    return "".join(out)
