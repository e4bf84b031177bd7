"""A report as Markdown, to paste into an issue or a page, and as JSON, for programs."""

import json
import math
from collections.abc import Sequence
from typing import Any

from streamd import __version__
from streamd.evaluation.report.content import Bars, Report, ReportTable
from streamd.windows.intervals import score_text

FORMAT = 1
"""Number of the JSON's form. It rises where a field gets another meaning or goes."""


def as_markdown(report: Report) -> str:
    """Returns: the report as Markdown. Of curves it has none: their figures are in the JSON."""
    parts = [f"# {_plain(report.title)}", f"**{_plain(report.verdict)}**", _plain(report.about)]
    for table in report.tables:
        parts += [f"## {_plain(table.title)}", _table(table)]
        parts += [_plain(table.note)] if table.note else []
    for bars in report.plots:
        if isinstance(bars, Bars):
            rows = [[name, score_text(value, 4)] for name, value in bars.values.items()]
            parts += [f"## {_plain(bars.title)}", _rows(["", "MRR"], rows)]

    # What was run: settings by default are left to `streamd config`, which lists them.
    parts += ["## What was run", f"streamd {__version__}"]
    if report.asked.command:
        parts.append(f"```\n{report.asked.command}\n```")
    given = [row for row in report.asked.settings if row[2] != "default"]
    if given:
        parts.append(_rows(["setting", "value", "from"], given))
    parts.append("All other settings are the default.")
    return "\n\n".join(parts) + "\n"


def as_json(report: Report) -> str:
    """Returns: the report as JSON: verdict, figures as numbers, command, and every setting. What
    cannot be told, such as an interval of too few windows, is null."""
    content = {
        "format": FORMAT,
        "streamd": __version__,
        "title": report.title,
        "verdict": report.verdict,
        **report.data,
        "command": report.asked.command,
        "settings": {key: {"value": value, "from": by} for key, value, by in report.asked.settings},
    }
    return json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"


def _table(table: ReportTable) -> str:
    """A table whose best cells are bold."""
    rows = [
        [
            f"**{_cell(cell)}**" if (number, column) in table.best else _cell(cell)
            for column, cell in enumerate(row)
        ]
        for number, row in enumerate(table.rows)
    ]
    return _lines([_cell(name) for name in table.head], rows)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return _lines(head, [[_cell(cell) for cell in row] for row in rows])


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _cell(text: str) -> str:
    """Text for a cell of a table, which a line feed or a bar would break."""
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text whose marks Markdown does not take for its own."""
    text = " ".join(text.split())
    for mark in "\\`*_[]<>#":
        text = text.replace(mark, f"\\{mark}")
    return text


def _finite(value: Any) -> Any:
    """A value with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
