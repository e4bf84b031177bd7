"""The command `streamd export`."""

import signal
import sys
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.errors import SettingsError, StreamdError
from streamd.number_texts import count_noun
from streamd.telemetry.progress import ProgressLine

if TYPE_CHECKING:
    from streamd.table.export.export_commit import ExportTables
    from streamd.table.export.exporter import Exporter

Format = Literal["parquet", "iceberg"]
POLL_SECONDS = 1.0
"""Pause between two reads of the log while it has too few new events."""


def export(
    to: Annotated[
        str, typer.Option(help="Folder of the table, or a URL such as s3://bucket/folder.")
    ],
    format_: Annotated[Format, typer.Option("--format", help="parquet or iceberg.")] = "parquet",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Continue with whole days, or --rows events, until a signal.",
        ),
    ] = False,
    rows: Annotated[
        int, typer.Option(min=1, help="Most events of a file; they are in memory at once.")
    ] = 1_000_000,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Append the log's new events to a table in Parquet or Iceberg, each exactly once, and its
    deletes to a table of their own. The same command continues."""
    settings = settings_of(config, data_dir)
    # Fail before anything is written.
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise StreamdError("Exports need pyarrow.", "pip install 'streamd-gnn[arrow]'.") from None
    from streamd.table.export.exporter import Exporter
    from streamd.table.export.registered import locked_export, register

    to = _target(to, settings.data_dir)
    with locked_export(settings.data_dir, to):
        # From here on retention keeps the events that are not exported yet.
        exporter = Exporter(settings.data_dir, _tables(to, format_), rows)
        register(settings.data_dir, to, format_)
        # A signal ends the lease too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            with ProgressLine(err, f"exporting to {to}", "events") as line:
                text = _export(exporter, follow, line)
        except KeyboardInterrupt:
            # Nothing but a signal ends --follow.
            raise typer.Exit(0 if follow else 1) from None
        finally:
            exporter.close()
    out.print(text, markup=False, soft_wrap=True)


def _tables(to: str, format_: Format) -> "ExportTables":
    """The tables at a path or URL. Raises: StreamdError."""
    from streamd.store.objects import Store
    from streamd.table.export.iceberg_tables import IcebergTables
    from streamd.table.export.parquet_tables import ParquetTables

    if format_ == "parquet":
        return ParquetTables(Store(to))
    if "://" in to:
        raise SettingsError(
            f"--to is {to}, but the catalog of Iceberg tables is a local file.", "name a folder."
        )
    # No other export writes here, so only old files of killed ones are unnamed.
    tables = IcebergTables(Path(to))
    tables.sweep()
    return tables


def _target(to: str, data_dir: Path) -> str:
    """The absolute path of a folder, or a URL as it is. Raises: SettingsError."""
    if "://" in to:
        return to
    path = Path(to).absolute()
    if path.is_file():
        raise SettingsError(f"--to is {path}, which is a file.", "name a folder.")
    # A proof of erasure would search the table as part of the log.
    if path.resolve().is_relative_to(data_dir.resolve()):
        raise SettingsError(f"--to is {path}, a folder in the data_dir.", "name one outside.")
    return str(path)


def _export(exporter: "Exporter", follow: bool, line: ProgressLine) -> str:
    """Append commits to the log's end, or until a signal. Returns: a text for the user."""
    num_events = num_deletes = commits = 0
    begun = exporter.position.next_event
    # Each step is one commit.
    while True:
        done = exporter.step(whole=follow)
        if done is not None:
            commits += 1
            num_events += done.num_rows
            num_deletes += done.deletes.num_rows
            at = done.end_event - begun
            line.at(at, at + exporter.num_left)
        elif not follow:
            break
        else:
            # Wait for more events or deletes.
            sleep(POLL_SECONDS)
            exporter.refresh()
    position = exporter.position
    return (
        f"{count_noun(num_events, 'event')} and {count_noun(num_deletes, 'delete')} exported in "
        f"{count_noun(commits, 'commit')}, to event {position.next_event:,} as of commit "
        f"{position.commit:,}"
    )
