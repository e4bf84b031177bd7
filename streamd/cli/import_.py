"""The `streamd import` command, which is also `streamd tguf import`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamd.cli.options import (
    CommentOption,
    ConfigOption,
    DataOption,
    DelimiterOption,
    DstOption,
    EdgeSetOption,
    FeaturesOption,
    KeysOption,
    NoHeaderOption,
    OwnTypesOption,
    QuotingOption,
    SortOption,
    SourceOption,
    SrcOption,
    StripOption,
    columns_of,
    err,
    out,
    print_rounded,
    print_warnings,
)
from streamd.errors import SettingsError
from streamd.settings.loading import load_settings
from streamd.telemetry.progress import ProgressLine

if TYPE_CHECKING:
    from streamd.exchange.tables import Columns
    from streamd.exchange.text_files import TextForm
    from streamd.settings.sources import KeyType

# The options of one command, which also describe how public data sets are written.


FileArgument = Annotated[
    Path,
    typer.Argument(
        help="A .tguf, .csv, .tsv, .ndjson, .jsonl, .parquet, .arrow or .feather file in order "
        "of time, a folder of such files, or a pipe."
    ),
]
PublishedOption = Annotated[
    str,
    typer.Option(
        "--as",
        help="Public data set in whose form the file is: jodie, snap, snap-signed, lastfm, "
        "movielens, gdelt or tgb.",
    ),
]
TimeUnitOption = Annotated[
    str | None,
    typer.Option(
        help="Unit of a table's integer times: s, ms, us; stream.time_unit otherwise. "
        "TGUF has microseconds."
    ),
]
ImportTimeOption = Annotated[
    str, typer.Option(help="Column of the time: integers in that unit, or ISO 8601.")
]


def import_(
    file: FileArgument,
    published: PublishedOption = "",
    time_unit: TimeUnitOption = None,
    src: SrcOption = "src",
    dst: DstOption = "dst",
    time: ImportTimeOption = "time",
    features: FeaturesOption = "",
    source: SourceOption = "",
    edge_set: EdgeSetOption = "",
    own_types: OwnTypesOption = False,
    delimiter: DelimiterOption = "",
    no_header: NoHeaderOption = False,
    comment: CommentOption = "",
    quoting: QuotingOption = "minimal",
    strip: StripOption = False,
    keys: KeysOption = "",
    sort: SortOption = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Append a file's events to the log, while no ingest runs; nodes of a TGUF file become integer
    keys."""
    from streamd.exchange.importing import import_file
    from streamd.exchange.text_files import text_form

    # The unit of a table's times is a setting, which the option overrides.
    if file.suffix.lower() == ".tguf" and time_unit not in (None, "us"):
        raise SettingsError(
            f"--time-unit is {time_unit}, but the times of TGUF files are microseconds.",
            "leave it out.",
        )
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    settings = load_settings(
        config, overrides | ({} if time_unit is None else {"stream.time_unit": time_unit})
    )[0]
    columns = _columns(
        columns_of(src, dst, time, features, source, edge_set, own_types),
        text_form(delimiter, not no_header, comment, quoting, strip),
        keys,
        published,
        sort,
    )

    with ProgressLine(err, f"importing {file}") as line:
        done = import_file(settings, file, columns, line.at)
    out.print(
        f"{done.num_events:,} events appended to {settings.data_dir}: {done.times}",
        soft_wrap=True,
        markup=False,
    )
    print_rounded(done.rounded.words)
    print_warnings((*done.odd_keys.sentences, *done.doubts))


def _columns(
    columns: "Columns", form: "TextForm | None", keys: str, published: str, sort: bool
) -> "Columns":
    """Columns with the other options that describe a file. Raises: SettingsError."""
    if keys not in ("", "text"):
        raise SettingsError(f"--keys is {keys}.", "give text, or leave it out.")
    # A published form names all but the edge set.
    is_named = columns != columns_of(edge_set=columns.edge_set)
    if published and (is_named or form is not None or keys):
        raise SettingsError(
            f"--as {published} says how the file is written.",
            "leave out the options of columns, cells and keys.",
        )
    kind: KeyType | None = "text" if keys else None
    return replace(columns, keys=kind, form=form, sort=sort, published=published)
