"""The `streamd produce` command: sends a file's events to a topic."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from streamd.cli.file_options import FileOptions, with_file_options
from streamd.cli.options import (
    ConfigOption,
    err,
    out,
    print_warnings,
    settings_of,
)
from streamd.errors import SettingsError
from streamd.number_texts import count_noun
from streamd.telemetry.progress import ProgressLine

FileArgument = Annotated[
    Path,
    typer.Argument(
        help="A .csv, .tsv, .ndjson, .json, .parquet, .arrow or .feather file, a folder of such "
        "files, or a pipe."
    ),
]
TopicOption = Annotated[
    str | None, typer.Option(help="Topic; the first of kafka.topics otherwise.")
]
SpeedOption = Annotated[
    float, typer.Option(min=0, help="Seconds of event time per second; 0: as fast as it goes.")
]


@with_file_options
def produce(
    file: FileArgument,
    topic: TopicOption = None,
    speed: SpeedOption = 0,
    table: FileOptions = FileOptions(),
    config: ConfigOption = None,
) -> None:
    """Send a file's events to a topic."""
    from streamd.clock import SystemClock
    from streamd.exchange.event_checks import check_events
    from streamd.exchange.event_files import EventFile
    from streamd.exchange.produce import check_topic, send_events
    from streamd.exchange.row_form import RowForm
    from streamd.exchange.sourced import events_to_send, resolve_source, rows_to_send
    from streamd.exchange.tables import Columns, read_events, resolved
    from streamd.exchange.times import Times

    # Read lazily: the file may be larger than memory.
    settings = settings_of(config, None)
    target = topic or settings.kafka.topics[0]
    columns = table.columns()
    unit = settings.stream.time_unit
    clock = SystemClock()
    doubts: list[str] = []
    if target in (s.topic for s in settings.sources):
        # The topic is mapped by a source, so the file must contain records of that source.
        if replace(columns, form=None, sort=False) != Columns():
            raise SettingsError(
                f"The source of topic {target} defines the columns.",
                "leave out the names of columns, of the edge set, and of other forms.",
            )
        rows = EventFile(file, columns.form)
        columns = replace(columns, source=target)
        events = rows_to_send(settings, columns, rows, clock, doubts.append)
        # `rows_to_send` gives times in microseconds.
        unit = "us"
    elif columns.source or columns.published:
        settings, columns = resolve_source(settings, columns)
        rows = EventFile(file, columns.form)
        events = events_to_send(settings, columns, rows, clock, doubts.append)
    else:
        times = Times(table.time_unit or unit, unit, settings.ingest.max_ahead_seconds, clock)
        rows = EventFile(file, columns.form)
        columns = resolved(columns, settings)
        of_file = read_events(rows, columns, times, doubts.append)
        form = RowForm.of(settings, rows, columns)
        events = check_events(settings, target, of_file, form, times, clock, doubts.append)

    # Count the rows first, because the progress line shows the share of all.
    with ProgressLine(err, f"to {target}") as line:
        check_topic(settings.kafka, target)
        total = rows.count_rows()
        sent = send_events(
            settings.kafka, target, events, unit, speed, lambda done: line.at(done, total)
        )
    out.print(f"{count_noun(sent, 'event')} acknowledged by {target}")
    print_warnings(doubts)
