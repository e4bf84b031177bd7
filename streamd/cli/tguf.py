"""The `streamd tguf` commands inspect, verify, export and import files in the TGUF format."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from streamd.cli.import_ import import_
from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.cli.table_output import print_table
from streamd.errors import StreamdError
from streamd.number_texts import count_noun
from streamd.telemetry.progress import ProgressLine

tguf_app = typer.Typer(help="TGUF files: inspect, verify, export, import.", no_args_is_help=True)


@tguf_app.command("inspect")
def tguf_inspect(file: Annotated[Path, typer.Argument(help="A TGUF file.")]) -> None:
    """Print a file's header, sections, fill and time range."""
    from streamd.eventlog.tguf.describe import describe

    # Header fields first, then the sections, one a row.
    header, sections = describe(file)
    table = Table("", "", box=None, show_header=False)
    for name, value in header:
        table.add_row(name, value)
    print_table(out, table)
    table = Table("section", "offset", "rows", "room for", "a row", box=None)
    for row in sections:
        table.add_row(*row)
    print_table(out, table)


@tguf_app.command("verify")
def tguf_verify(
    file: Annotated[Path, typer.Argument(help="A TGUF file, such as a log's segment.")],
) -> None:
    """Check a file's header and every row, and the checksums of a file that is a log's segment."""
    from streamd.eventlog.tguf.reader import open_tguf
    from streamd.eventlog.upkeep.verify import data_dir_of, verify_log

    # Rows are checked in any file; checksums only if the file is a log's segment.
    opened = open_tguf(file)
    data_dir = data_dir_of(file)
    damage = []
    if data_dir is not None:
        damage = verify_log(data_dir, only=str(file.resolve().relative_to(data_dir)))[1]
    for d in damage:
        err.print(f"damaged: {d.path} {d.extent} (commit {d.seq})", markup=False, soft_wrap=True)
    held = "checksums of its journal" if data_dir else "no journal next to it"
    out.print(
        f"{count_noun(opened.num_edges, 'edge')}, {count_noun(opened.num_labels, 'label')} checked "
        f"({held}), "
        f"{len(damage)} damaged"
    )
    raise typer.Exit(1 if damage else 0)


@tguf_app.command("export")
def tguf_export(
    file: Annotated[Path, typer.Argument(help="The TGUF file to write.")],
    start: Annotated[
        str | None, typer.Option(help="First event time, ISO 8601; the log's first otherwise.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="Event time to end before, ISO 8601; all otherwise.")
    ] = None,
    val_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the edges for validation.")
    ] = 0.15,
    test_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the edges for the test, the last.")
    ] = 0.15,
    negatives: Annotated[
        int, typer.Option(min=0, help="Wrong destinations drawn per validation and test edge.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the negatives.")] = 0,
    keys: Annotated[
        Path | None, typer.Option(help="Also write the keys of the node ids, as CSV.")
    ] = None,
    edge_set: Annotated[
        str | None, typer.Option(help="Write the edges of this set only, with its own features.")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Write a range of the log, without deleted rows, as one TGUF file for other tools."""
    from streamd.cli.maintenance import open_log
    from streamd.clock import parse_time_us
    from streamd.exchange.export import ExportOptions, export_range, write_keys
    from streamd.settings.sets import nearest_of

    # Without a start or an end the range is open: times of events are below 2**62 microseconds.
    log = open_log(settings_of(config, data_dir).data_dir)
    names = log.state.schema.edge_set_names
    if edge_set is not None and edge_set not in names:
        near = nearest_of(edge_set, names)
        raise StreamdError(f"The log has no edge set {edge_set!r}{near}.", "name one of them.")
    options = ExportOptions(
        edge_set=None if edge_set is None else names.index(edge_set),
        start_us=0 if start is None else parse_time_us(start, "--start"),
        end_us=2**62 if end is None else parse_time_us(end, "--end"),
        val_share=val_share,
        test_share=test_share,
        negatives=negatives,
        seed=seed,
    )

    with ProgressLine(err, f"to {file}", "edges") as line:
        # Each edge is read twice.
        done = export_range(log, file, options, lambda at, of: line.at(at // 2, of // 2))
    if keys is not None:
        write_keys(log, keys)
    out.print(
        f"{count_noun(done.num_edges, 'edge')}, {count_noun(done.num_labels, 'label')}, "
        f"validation from row {done.val_start:,}, test from row {done.test_start:,}",
        soft_wrap=True,
    )


tguf_app.command("import")(import_)
