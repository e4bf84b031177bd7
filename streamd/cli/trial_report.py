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
    from streamd.trials.figures import ArmFigures, TrialFigures

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
    from streamd.trials.figures import look
    from streamd.trials.trial_state import read_sums, state_path

    settings = settings_of(config, data_dir)
    name = name or settings.trials.name
    if not name:
        raise SettingsError("No trial is set.", "name one by --name, or set trials.name.")
    # The state may be written meanwhile: it is read as of one moment.
    sums = read_sums(state_path(settings.data_dir, name))
    if sums is None:
        raise SettingsError(
            f"The trial {name!r} has no state in {settings.data_dir}.",
            "run the role trial on this directory first.",
        )
    figures, _ = look(sums)
    if as_json:
        out.print_json(data=asdict(figures))
    else:
        _print(figures)
    sys.exit(int(figures.mismatch))


def _print(figures: "TrialFigures") -> None:
    """Print the figures as a table, and below it the sample ratio and the reasons."""
    columns = "arm", "share", "units", "answers", "pending", "outcomes a unit", "value a unit"
    table = Table(*columns, "difference from the champion", box=None)
    # The champion comes first.
    for arm in figures.arms:
        table.add_row(
            arm.arm,
            f"{arm.share:g}",
            f"{arm.units:,}",
            f"{arm.impressions:,}",
            f"{arm.pending:,}",
            f"{arm.outcomes_a_unit:.4g}",
            f"{arm.value_a_unit:.4g}",
            _difference(arm),
        )
    print_table(out, table)
    if figures.mismatch:
        out.print(
            "The numbers of units contradict the shares: units are lost in an arm, and the "
            "differences mean nothing."
        )
    # Without this line, all records count.
    if figures.reasons:
        listed = ", ".join(f"{number:,} {reason}" for reason, number in figures.reasons.items())
        out.print(f"Not counted: {listed}.")


def _difference(arm: "ArmFigures") -> str:
    """The difference of an arm from the champion, in words."""
    if arm.difference is None:
        return "-" if arm.is_champion else "too early"
    sure = "" if arm.difference.is_sure else ", not shown to differ"
    return f"{arm.difference.mean:+.4g} ± {arm.difference.radius:.2g}{sure}"
