"""`streamd trials report`: the figures of a trial."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from streamd.cli.options import ConfigOption, DataOption, out, settings_of
from streamd.cli.table_output import print_table
from streamd.errors import SettingsError

if TYPE_CHECKING:
    from streamd.trials.figures import TrialFigures

trials_app = typer.Typer(help="Trials: report.", no_args_is_help=True)


@trials_app.command("report")
def trials_report(
    name: Annotated[
        str, typer.Option(help="The trial; by default the one that the settings name.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Print the figures of a trial: per arm units, outcomes and value, and the difference from the
    champion. Exit status 1 if the arms' numbers of units contradict their shares."""
    from streamd.trials.report import read_figures

    settings = settings_of(config, data_dir)
    name = name or settings.trials.name
    if not name:
        raise SettingsError("No trial is set.", "name one by --name, or set trials.name.")
    figures = read_figures(settings.data_dir, name)
    if figures is None:
        raise SettingsError(
            f"The trial {name!r} has no state in {settings.data_dir}.",
            "run the role trial on this directory first.",
        )
    if as_json:
        out.print_json(data=asdict(figures))
    else:
        _print(figures)
    sys.exit(int(figures.mismatch))


def _print(figures: "TrialFigures") -> None:
    """Print the figures as a table, and below it the sample ratio and the reasons."""
    from streamd.trials.report import COLUMNS, notes, rows

    table = Table(*COLUMNS, box=None)
    for row in rows(figures):
        table.add_row(*row)
    print_table(out, table)
    for note in notes(figures):
        out.print(note)
