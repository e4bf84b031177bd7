"""The `streamd sources` commands inspect mapped topics; they write nothing."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from streamd.cli.options import (
    ConfigOption,
    err,
    out,
    print_rounded,
    printable,
    settings_of,
)
from streamd.cli.table_output import print_records
from streamd.schema import DEFAULT_SET
from streamd.settings.loading import Settings
from streamd.telemetry.progress import ProgressLine

if TYPE_CHECKING:
    from streamd.exchange.sample import Sample

sources_app = typer.Typer(help="Topics that a source maps: check, guess.", no_args_is_help=True)
NameArgument = Annotated[
    str, typer.Argument(metavar="TOPIC|FILE", help="A topic, or a file of its records.")
]
RecordsOption = Annotated[int, typer.Option(min=1, max=100_000, help="Number of records to read.")]


def read_with_progress(settings: Settings, name: str, count: int, source: str = "") -> "Sample":
    """Read some records of a topic or a file, showing progress.

    source: topic of the source that maps a file. Raises: SettingsError, KafkaError.
    """
    from streamd.clock import SystemClock
    from streamd.exchange.sample import read_sample

    with ProgressLine(err, f"reading {name}", "records") as line:
        line.begin(f"reading {name}", "records")
        return read_sample(settings, name, count, SystemClock(), source)


@sources_app.command("check")
def sources_check(
    name: NameArgument,
    records: RecordsOption = 100,
    source: Annotated[
        str,
        typer.Option(help="Topic of the source that maps a file; by default the only source's."),
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Show the events that records become. Exit status 1 if one is refused, if no record has a
    field that the source names, or if all times look like another unit."""
    from pathlib import Path

    from streamd.clock import SystemClock
    from streamd.exchange.sample import check_file, check_is_read, first_of_record, judge

    settings = settings_of(config, None)
    if not source and not Path(name).exists():
        check_file(settings, name)
        check_is_read(settings, name)
    sample = read_with_progress(settings, name, records, source)
    verdict = judge(settings, sample, SystemClock())

    # Records come from outside, so control characters in them are escaped.
    rows = []
    for (partition, offset), of_record in groupby(
        verdict.judged, lambda judged: (str(judged.partition), str(judged.offset))
    ):
        shown, num_more = first_of_record(list(of_record))
        for judged in shown:
            index = "" if judged.index < 0 else str(judged.index)
            cells = (judged.what, judged.event or judged.error)
            rows.append((partition, offset, index, *map(printable, cells)))
        if num_more:
            rows.append((partition, offset, "", "", f"... and {num_more:,} more of this record"))
    head = ("partition", "offset", "index", "becomes", "event or reason")
    print_records(out, head, rows, num_long=1)
    out.print(verdict.words, soft_wrap=True, markup=False, highlight=False)
    print_rounded(verdict.rounded.words)
    for sentence in verdict.sentences(sample.doubts):
        err.print(printable(sentence), soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(1 if verdict.refused or verdict.absent or verdict.held else 0)


@sources_app.command("guess")
def sources_guess(
    name: NameArgument,
    records: RecordsOption = 100,
    edge_set: Annotated[
        str, typer.Option(help="Edge set to declare, if there are several.")
    ] = DEFAULT_SET,
    config: ConfigOption = None,
) -> None:
    """Print settings to start from for a topic's records, with doubts about them as comments."""
    from pathlib import Path

    from streamd.clock import SystemClock
    from streamd.exchange.guess import guess
    from streamd.exchange.sample import as_json_rows, check_file

    settings = settings_of(config, None)
    check_file(settings, name)
    sample = read_with_progress(settings, name, records)
    rows, form = as_json_rows(settings, sample)
    # Records of a file need a topic in the settings: take the file's name.
    topic = Path(name).name.split(".")[0] if Path(name).is_file() else name
    guessed = guess(topic, rows, SystemClock().now_us(), edge_set, form=form)

    # Doubts are comments, so that all of the output may become a settings file.
    for doubt in guessed.doubts:
        out.print(f"# {printable(doubt)}", soft_wrap=True, markup=False, highlight=False)
    out.print(guessed.settings, end="", soft_wrap=True, markup=False, highlight=False)
