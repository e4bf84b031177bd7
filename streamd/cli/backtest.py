"""The `streamd backtest` command: what a recorded stream would have brought."""

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
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
from streamd.errors import SettingsError
from streamd.settings.loading import effective
from streamd.storage import write_durably
from streamd.telemetry.progress import ProgressLine

NO_FILE = "name the file, or leave them out to play the log of data_dir."


class GridCommand(TyperCommand):
    """A command with the option `--grid`, which takes all words after it that set something."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, with `--grid` written before each word: its options take one."""
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
    float, typer.Option(min=0, max=0.9, help="Share of the events before what is reported on.")
]
InitialEpochsOption = Annotated[
    int, typer.Option(min=0, help="Learn that share at once, so often; 0: window by window.")
]
StaleOption = Annotated[
    str,
    typer.Option(help='Also run with facts so many events old, for example "5,50,200,window".'),
]
FromCutOption = Annotated[
    bool, typer.Option(help="Begin a window with the first event reported on.")
]
GridOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Run live under each combination of these settings, and say which to take: "
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
    from streamd.evaluation.report.forms import form_of, report_text

    form = form_of(form, report)
    if file is None and table != FileOptions():
        raise SettingsError("Options of a table need a file, and none is given.", NO_FILE)
    settings, origin = loaded_settings(config, data_dir)
    runs = combinations(grid or [], lambda values: settings_of(config, data_dir, values))
    if grid and stale:
        raise SettingsError("--grid runs live with fresh facts alone.", "leave out --stale.")
    columns = table.columns()
    ages = ages_of_facts(stale, settings.model.memory_chunk)
    plan = Plan(initial, initial_epochs, ages, from_cut)

    # The report says what was run, with every setting; secrets are masked there.
    asked = Asked(
        command=shlex.join(["streamd", *sys.argv[1:]]),
        settings=[(key, str(value), origin[key]) for key, value in effective(settings).items()],
    )

    # Compile before the progress line begins, which compiling would hold up.
    make_kernels_ready()
    with ProgressLine(err, "opening the log") as line:
        if grid:
            shown, found = backtest_grid(runs, file, columns, plan, line.of, asked)
        else:
            shown, found = backtest_file(settings, file, columns, plan, line.of, asked)

    # Without a file the report itself is the answer.
    if form and report is None:
        out.file.write(report_text(found, form))
        return
    for part in shown:
        # A sentence is not wrapped, so that it can be searched for.
        out.print(part, soft_wrap=isinstance(part, str), markup=False, highlight=False)
    if report is not None:
        write_durably(report, report_text(found, form).encode())
        out.print(f"report: {report}", soft_wrap=True)
