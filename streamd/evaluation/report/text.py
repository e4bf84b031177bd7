"""A report as Markdown, to paste into an issue or a page, and as JSON, for programs."""

import json
import math
from collections.abc import Sequence
from typing import Any

from streamd import __version__
from streamd.evaluation.report.content import Bars, Report, ReportTable
from streamd.windows.intervals import score_text

FORMAT = 1
"""Version of the JSON format. It rises when a field changes its meaning or is removed."""


def as_markdown(report: Report) -> str:
    """Returns: the report as Markdown, without curves; the JSON has their figures."""
    parts = [f"# {_plain(report.title)}", f"**{_plain(report.verdict)}**", _plain(report.about)]
    for table in report.tables:
        parts += [f"## {_plain(table.title)}", _table(table)]
        parts += [_plain(table.note)] if table.note else []
    for bars in report.plots:
        if isinstance(bars, Bars):
            rows = [[name, score_text(value, 4)] for name, value in bars.values.items()]
            parts += [f"## {_plain(bars.title)}", _rows(["", "MRR"], rows)]

    # Command and settings, without defaults, which `streamd config` lists.
    parts += ["## What was run", f"streamd {__version__}"]
    if report.asked.command:
        parts.append(f"```\n{report.asked.command}\n```")
    given = [row for row in report.asked.settings if row[2] != "default"]
    if given:
        parts.append(_rows(["setting", "value", "from"], given))
    parts.append("All other settings are the default.")
    return "\n\n".join(parts) + "\n"


def as_json(report: Report) -> str:
    """Returns: the report as JSON: verdict, figures as numbers, command, and every setting.
    Undefined figures, such as the interval over too few windows, are null."""
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
    """A table with its best cells in bold."""
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
    """Escape text for a cell of a table."""
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Escape characters with a meaning in Markdown."""
    text = " ".join(text.split())
    for mark in "\\`*_[]<>#":
        text = text.replace(mark, f"\\{mark}")
    return text


def _finite(value: Any) -> Any:
    """Replace non-finite numbers, which JSON lacks, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
