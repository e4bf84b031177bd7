"""The `streamd import` command, which is also `streamd tguf import`."""

from pathlib import Path
from typing import Annotated

import typer

from streamd.cli.file_options import FileOptions, with_file_options
from streamd.cli.options import (
    ConfigOption,
    DataOption,
    err,
    out,
    print_rounded,
    print_warnings,
    settings_of,
)
from streamd.errors import SettingsError
from streamd.telemetry.progress import ProgressLine

FileArgument = Annotated[
    Path,
    typer.Argument(
        help="A .tguf, .csv, .tsv, .ndjson, .json, .parquet, .arrow or .feather file in order "
        "of time, a folder of such files, or a pipe."
    ),
]


@with_file_options
def import_(
    file: FileArgument,
    table: FileOptions = FileOptions(),
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Append a file's events to the log, while no ingest runs; nodes of a TGUF file become integer
    keys."""
    from streamd.exchange.importing import import_file
    from streamd.exchange.key_cells import all_doubts

    # The unit of a TGUF file is fixed.
    if file.suffix.lower() == ".tguf" and table.time_unit not in ("", "us"):
        raise SettingsError(
            f"--time-unit is {table.time_unit}, but the times of TGUF files are microseconds.",
            "leave it out.",
        )
    settings = settings_of(config, data_dir)
    columns = table.columns()

    with ProgressLine(err, f"importing {file}") as line:
        done = import_file(settings, file, columns, line.at)
    out.print(
        f"{done.num_events:,} events appended to {settings.data_dir}: {done.times}",
        soft_wrap=True,
        markup=False,
    )
    print_rounded(done.rounded.words)
    print_warnings(all_doubts(done.odd_keys, done.doubts))
