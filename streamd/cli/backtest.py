"""The `streamd backtest` command: scores and trains on recorded events as a live run would."""

import re
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from typer.core import TyperCommand

from streamd.cli.file_options import FileOptions, with_file_options
from streamd.cli.options import (
    ConfigOption,
    DataOption,
    err,
    loaded_settings,
    make_kernels_ready,
    out,
    settings_of,
)
from streamd.cli.table_output import print_table
from streamd.errors import SettingsError, TrackingError
from streamd.settings.loading import Settings, effective
from streamd.settings.notation import as_written
from streamd.storage import write_durably
from streamd.telemetry.progress import ProgressLine

if TYPE_CHECKING:
    from streamd.evaluation.report.content import Report

NO_FILE = "name the file, or leave them out to play the log of data_dir."


class GridCommand(TyperCommand):
    """A command with an option `--grid` that takes several words of the form KEY=VALUE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, with `--grid` repeated before each KEY=VALUE: its options take one
        value."""
        spelled: list[str] = []
        for word in args:
            if spelled[-2:-1] == ["--grid"] and re.match(r"[a-z_.]+=", word):
                spelled.append("--grid")
            spelled.append(word)
        return super().parse_args(ctx, spelled)


FileArgument = Annotated[
    Path | None, typer.Argument(help="A file of events; the log of data_dir otherwise.")
]
ReportOption = Annotated[
    Path | None, typer.Option(help="Write a report here: .html with plots, .md or .json.")
]
FormOption = Annotated[
    str, typer.Option("--format", help="html, md or json; by the name of --report otherwise.")
]
InitialOption = Annotated[
    float,
    typer.Option(
        min=0, max=0.9, help="Share of the events, the first ones, that is not reported on."
    ),
]
InitialEpochsOption = Annotated[
    int,
    typer.Option(
        min=0, help="Epochs of training on that share at once; 0: train window by window."
    ),
]
StaleOption = Annotated[
    str,
    typer.Option(
        help='Also run with facts that lag by so many events, for example "5,50,200,window".'
    ),
]
FromCutOption = Annotated[
    bool, typer.Option(help="Begin a window with the first event reported on.")
]
ListOption = Annotated[bool, typer.Option("--list", help="Only compare past backtests.")]
RunsOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of past backtests; backtests in data_dir otherwise, if data_dir exists."
    ),
]
GridOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Run live under each combination of these settings, and recommend one: "
        "--grid model.name=tgn,pair training.epochs=1,2",
    ),
]


@with_file_options
def backtest(
    file: FileArgument = None,
    report: ReportOption = None,
    form: FormOption = "",
    initial: InitialOption = 0.3,
    initial_epochs: InitialEpochsOption = 0,
    stale: StaleOption = "",
    from_cut: FromCutOption = False,
    grid: GridOption = None,
    runs: RunsOption = None,
    list_: ListOption = False,
    table: FileOptions = FileOptions(),
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Play a recorded log or file through scoring and learning, compared with nightly and frozen
    models and plain rules."""
    from streamd.cli.maintenance import ages_of_facts, backtest_file, backtest_grid
    from streamd.evaluation.backtest import Plan
    from streamd.evaluation.grid import combinations
    from streamd.evaluation.report.content import Asked
    from streamd.evaluation.report.forms import form_of

    if list_:
        _print_past(runs or settings_of(config, data_dir).data_dir / "backtests")
        return
    form = form_of(form, report)
    # The log has no columns that options could name.
    if file is None and table != FileOptions():
        raise SettingsError("Options of a table need a file, and none is given.", NO_FILE)
    settings, origin = loaded_settings(config, data_dir)
    combined = combinations(grid or [], lambda values: settings_of(config, data_dir, values))
    if grid and stale:
        raise SettingsError("--grid runs live with fresh facts alone.", "leave out --stale.")
    columns = table.columns()
    ages = ages_of_facts(stale, settings.model.memory_chunk)
    plan = Plan(initial, initial_epochs, ages, from_cut)

    # The report contains the command and every setting; `effective` masks secrets.
    asked = Asked(
        command=shlex.join(["streamd", *sys.argv[1:]]),
        settings=[
            (key, as_written(value), origin[key]) for key, value in effective(settings).items()
        ],
    )

    # Compile before the progress line starts, because compilation would block it.
    make_kernels_ready()
    with ProgressLine(err, "opening the log") as line:
        if grid:
            shown, found = backtest_grid(combined, file, columns, plan, line.of, asked)
        else:
            shown, found = backtest_file(settings, file, columns, plan, line.of, asked)

    # Store the report before it is printed: a broken pipe must not lose it.
    _keep(settings, found, runs, [one.settings for one in combined] if grid else [])

    _print_results(shown, found, form, report)


def _print_results(
    shown: Sequence[Table | str], found: "Report", form: str, file: Path | None
) -> None:
    """Print the tables, and write the report to a file.

    form: html, md or json; "" for no report. file: None to print the report instead of the tables.
    """
    from streamd.evaluation.report.forms import report_text

    # Without a file the report itself is the answer.
    if form and file is None:
        out.file.write(report_text(found, form))
        return
    for part in shown:
        # A sentence is not wrapped, so that it can be searched for.
        if isinstance(part, Table):
            print_table(out, part)
        else:
            out.print(part, soft_wrap=True, markup=False, highlight=False)
    if file is not None:
        write_durably(file, report_text(found, form).encode())
        out.print(f"report: {file}", soft_wrap=True)


def _keep(
    settings: Settings, report: "Report", runs: Path | None, grid: Sequence[Settings]
) -> None:
    """Store a report among past ones, and log it to MLflow if `mlflow.tracking_uri` is set. A
    failure is printed and not raised, because hours of work may be in the report.

    runs: folder of past backtests; None for that of data_dir, if data_dir exists. grid: settings of
    each combination.
    """
    from streamd.evaluation.mlflow.backtest_run import log_backtest
    from streamd.evaluation.report.past import FOLDER

    folder = runs or settings.data_dir / FOLDER
    if runs is None and not settings.data_dir.exists():
        why = f"{settings.data_dir} does not exist; give --runs a folder to compare backtests"
    else:
        why = _error_of_keeping(folder, report)
    if why:
        err.print(f"not kept in {folder}: {why}", markup=False, soft_wrap=True)
    if settings.mlflow.tracking_uri:
        try:
            log_backtest(settings, report, grid)
        except TrackingError as error:
            err.print(f"not logged: {error}", markup=False, soft_wrap=True)


def _error_of_keeping(folder: Path, report: "Report") -> str:
    """Store a report in a folder. Returns: the error's text, "" for none."""
    from streamd.evaluation.report.past import keep_report

    try:
        keep_report(folder, report, datetime.now(UTC))
    except OSError as error:
        return str(error)
    return ""


def _print_past(folder: Path) -> None:
    """Print two tables of past backtests. Raises: SettingsError if there is none."""
    from streamd.evaluation.report.past import (
        COLUMNS,
        NOVELTY_COLUMNS,
        comparison,
        comparison_by_novelty,
        past_runs,
    )

    # Times, names and settings may wrap; numbers may not.
    runs = past_runs(folder)
    wrapped = (COLUMNS[0], COLUMNS[1], COLUMNS[-1])
    tables = (
        (f"past backtests in {folder}", COLUMNS, comparison(runs)),
        ("the same by novelty", NOVELTY_COLUMNS, comparison_by_novelty(runs)),
    )
    for caption, head, rows in tables:
        table = Table(caption=caption, box=None)
        for name in head:
            is_number = name not in wrapped
            justify: Literal["left", "right"] = "right" if is_number else "left"
            table.add_column(name, justify=justify, no_wrap=is_number, overflow="fold")
        for row in rows:
            table.add_row(*row)
        print_table(out, table)
