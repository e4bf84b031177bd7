"""The options that describe the rows of a file, shared by all commands that read one."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from streamd.errors import SettingsError

if TYPE_CHECKING:
    from streamd.exchange.tables import Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class FileOptions:
    """The values of these options; each field is the option of the same name."""

    published: Annotated[
        str,
        typer.Option(
            "--as",
            help="Format of a public data set: jodie, snap, snap-signed, lastfm, movielens, gdelt "
            "or tgb.",
        ),
    ] = ""
    time_unit: Annotated[
        str,
        typer.Option(
            help="Unit of numeric times: days, s, ms, us, ns, or iso8601 for dates in digits, such "
            "as 20260131; stream.time_unit otherwise. Times of TGUF are microseconds."
        ),
    ] = ""
    src: Annotated[str, typer.Option(help="Column of the source.")] = "src"
    dst: Annotated[str, typer.Option(help="Column of the destination.")] = "dst"
    time: Annotated[
        str, typer.Option(help="Column of the time: numbers of that unit, or ISO 8601.")
    ] = "time"
    features: Annotated[
        str, typer.Option(help="Feature columns, comma separated, or one of lists or mappings.")
    ] = ""
    source: Annotated[
        str,
        typer.Option(help="Topic in `sources` whose mapping reads the rows, instead of columns."),
    ] = ""
    edge_set: Annotated[
        str, typer.Option(help="Edge set of all rows; otherwise a column names that of each.")
    ] = ""
    edge_set_column: Annotated[
        str, typer.Option(help="Column that names the edge set of each row; edge_set otherwise.")
    ] = ""
    own_types: Annotated[
        bool,
        typer.Option(
            "--own-types",
            help="Read NDJSON lines of type node, label or delete as streamd's own events, also if "
            "columns are named.",
        ),
    ] = False
    delimiter: Annotated[
        str,
        typer.Option(
            help="Separator of cells: one or more characters, tab, or blanks for any number of "
            "blanks and tabs; by default a comma, in .tsv a tab."
        ),
    ] = ""
    no_header: Annotated[
        bool,
        typer.Option("--no-header", help="The first row is data; columns are numbered from 1."),
    ] = False
    comment: Annotated[
        str, typer.Option(help="Skip lines that begin with this text, for example '#'.")
    ] = ""
    quoting: Annotated[
        str, typer.Option(help="none: a quotation mark is a character like any other.")
    ] = "minimal"
    strip: Annotated[
        bool, typer.Option("--strip", help="Remove blanks around names and cells.")
    ] = False
    keys: Annotated[
        str,
        typer.Option(help="text: all keys are text. By default, digits in CSV are integer keys."),
    ] = ""
    sort: Annotated[
        bool,
        typer.Option(
            "--sort", help="Sort the rows by time, in bounded memory and a temporary folder."
        ),
    ] = False

    def columns(self) -> "Columns":
        """Convert the options to `Columns`. Raises: SettingsError if they contradict one
        another."""
        from streamd.exchange.tables import Columns
        from streamd.exchange.text_files import text_form
        from streamd.exchange.times import check_unit

        if self.time_unit:
            check_unit(self.time_unit)
        if self.keys not in ("", "text"):
            raise SettingsError(f"--keys is {self.keys}.", "give text, or leave it out.")
        columns = Columns(
            self.src,
            self.dst,
            self.time,
            tuple(name for name in self.features.split(",") if name),
            self.source,
            self.edge_set,
            own_types=self.own_types,
            keys="text" if self.keys else None,
            form=text_form(
                self.delimiter, not self.no_header, self.comment, self.quoting, self.strip
            ),
            sort=self.sort,
            published=self.published,
            edge_set_column=self.edge_set_column or Columns().edge_set_column,
            time_unit=self.time_unit,
        )
        if self.edge_set and self.edge_set_column:
            raise SettingsError(
                "--edge-set and --edge-set-column contradict one another.", "give one of them."
            )
        # A source defines columns and keys; a published form defines all but the edge set.
        of_source = Columns(
            source=self.source, form=columns.form, sort=self.sort, time_unit=self.time_unit
        )
        if self.source and columns != of_source:
            raise SettingsError(
                "--source and options of columns or keys contradict one another.",
                "give one of them.",
            )
        of_published = Columns(edge_set=self.edge_set, sort=self.sort, published=self.published)
        if self.published and columns != of_published:
            raise SettingsError(
                f"--as {self.published} defines columns, cells and keys of the file.",
                "leave out the options for these.",
            )
        return columns


def with_file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command of typer: the options of `FileOptions` replace its parameter `table`, which is
    built from their values."""
    hints = get_type_hints(FileOptions, include_extras=True)
    options = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=hints[one.name],
        )
        for one in fields(FileOptions)
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        table = FileOptions(**{option.name: given.pop(option.name) for option in options})
        command(table=table, **given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        as_option = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += options if parameter.name == "table" else [as_option]
    # typer reads both attributes.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    del run.__wrapped__
    return run
