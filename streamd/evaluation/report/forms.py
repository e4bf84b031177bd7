"""The formats of a report: `html`, `md` and `json`."""

from collections.abc import Callable
from pathlib import Path

from streamd.errors import SettingsError
from streamd.evaluation.report.content import Report
from streamd.evaluation.report.html import as_html
from streamd.evaluation.report.text import as_json, as_markdown

FORMS: dict[str, Callable[[Report], str]] = {
    "html": as_html,
    "md": as_markdown,
    "json": as_json,
}


def form_of(asked: str, path: Path | None) -> str:
    """The format of a report: as requested, or by its file's name; empty if no report is to be
    written.

    asked: the value of `--format`, empty if it is not given. path: the report's file, None for
    stdout.

    Raises: SettingsError for an unknown format or ending, or for a page on stdout.
    """
    if asked and asked not in FORMS:
        raise SettingsError(f"--format {asked!r} is unknown.", f"choose one of {', '.join(FORMS)}.")
    if path is None:
        if asked == "html":
            raise SettingsError(
                "--format html needs a file for the page.", "add --report backtest.html."
            )
        return asked
    # `--format` overrides the file's name.
    by_name = path.suffix.removeprefix(".") or "html"
    if not asked and by_name not in FORMS:
        raise SettingsError(
            f"--report {path} has an ending of no format.",
            f"end it with .{', .'.join(FORMS)}, or add --format.",
        )
    return asked or by_name


def report_text(report: Report, form: str) -> str:
    """The report in one of the formats FORMS."""
    return FORMS[form](report)
