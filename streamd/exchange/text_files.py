"""Reads text files row by row: CSV in its many variants, and lines of NDJSON."""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, cast

from streamd.errors import SettingsError
from streamd.exchange.times import Misfit, shown_value
from streamd.settings.sets import nearest_of

BLANKS = "blanks"
"""The delimiter of cells with any number of blanks and tabs between them."""
DELIMITERS = {"tab": "\t", "blanks": BLANKS, "\\t": "\t"}
"""Words for delimiters on the command line."""
GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""
PACKED = {
    b"BZh": "bzcat",
    b"\xfd7zXZ": "xzcat",
    b"\x28\xb5\x2f\xfd": "zstdcat",
    b"PK\3\4": "unzip -p",
}
"""First bytes of other packed files -> the program that unpacks them."""
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""First bytes of text in UTF-16, which spreadsheets call Unicode."""
MAX_CELL = 2**24
"""Maximum characters of a cell: one without an end must not take all memory."""
SEPARATOR = re.compile("sep=(.)", re.IGNORECASE)
"""A line in which Excel names the delimiter of the lines after it."""
TIME = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}($|[T ])")
"""The beginning of a date as digits, with its parts in any order."""
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
NAME_COLUMNS = (
    "name the columns with --src, --dst, --time and --features, or a topic of `sources`, which has "
    "their names, with --source"
)
NO_NAMES = f"{NAME_COLUMNS}; add --no-header if the file has no names"
SIMILAR = 0.6
"""Least likeness of names for a "did you mean": at 0.5, `track` is like `src`."""
Row = dict[str, Any]


class MissingColumn(Misfit):
    """When a table lacks a column that is read; the operator names other columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextForm:
    """The notation of cells in a text file.

    delimiter: one or more characters, or `BLANKS`; "" for a comma, or a tab if the file ends in
    .tsv or .tab. header: whether the first row has the columns' names; columns are numbered from 1
    otherwise. comment: the beginning of lines that are skipped; "" for none. quoting: whether a
    quotation mark begins a cell that may contain delimiters. strip: whether blanks around names and
    cells are removed. columns: names of the first columns instead of the header's or the numbers.
    last_is_list: whether the last column is a list of all further cells. of_first_line: chooses the
    form from the first line that is not a comment.
    """

    delimiter: str = ""
    header: bool = True
    comment: str = ""
    quoting: Literal["minimal", "none"] = "minimal"
    strip: bool = False
    columns: tuple[str, ...] = ()
    last_is_list: bool = False
    of_first_line: "Callable[[str], TextForm] | None" = None


def open_bytes(path: Path) -> BinaryIO:
    """Open a file, which may be gzip under any name; a pipe is read only once, from here on.

    Raises: Misfit if it is packed in another way.
    """
    file = io.BufferedReader(io.FileIO(path), 1 << 16)
    # A pipe may give fewer bytes than requested, but at least one.
    head = file.peek(8)[:8]
    for first, program in PACKED.items():
        if head.startswith(first):
            file.close()
            raise Misfit(
                "it is packed, and not by gzip",
                f"unpack it, or let a pipe do so, as <({program} {path.name}).",
            )
    if head[:2] == GZIP:
        unzipped = gzip.GzipFile(fileobj=file)
        # Closing it closes the file too.
        unzipped.myfileobj = cast(Any, file)
        return cast(BinaryIO, unzipped)
    return cast(BinaryIO, file)


def as_text(file: BinaryIO, newline: str) -> TextIO:
    """Open a file as text without its byte order mark: UTF-16 if the mark is that, else UTF-8."""
    # Damage at the start of a gzip file raises here.
    try:
        is_utf16 = cast(Any, file).peek(2)[:2] in UTF16
    except (OSError, EOFError, zlib.error):
        file.close()
        raise
    return io.TextIOWrapper(file, encoding="utf-16" if is_utf16 else "utf-8-sig", newline=newline)


def csv_rows(
    file: BinaryIO, wanted: Sequence[str], form: TextForm, delimiter: str
) -> Iterator[Row]:
    """Yield the rows of a CSV file, and close it. A file without lines, such as an empty part of a
    folder, has no rows.

    Args: wanted: columns that it must have; delimiter: used if neither the form nor the header has
    another.
    Raises: Misfit, ValueError or csv.Error.
    """
    # The limit is global to the csv module.
    csv.field_size_limit(MAX_CELL)
    with as_text(file, "") as text:
        lines: Iterable[str] = text
        if comment := form.comment:
            lines = (line for line in text if not line.startswith(comment))
        lines = iter(lines)
        # Blank lines may also come before the first row.
        first = next((line for line in lines if not line.isspace()), None)
        if form.of_first_line is not None and first is not None:
            form = form.of_first_line(first.rstrip("\r\n"))
        if form.delimiter:
            delimiter = form.delimiter
        # Excel may name the delimiter on a line of its own.
        elif first is not None and (named := SEPARATOR.fullmatch(first.rstrip("\r\n"))):
            delimiter = named[1]
            first = next(lines, None)
        elif first is not None and form.header and not form.columns:
            delimiter = _delimiter_of(first, delimiter)
        # The first row contains the columns' names or the first data.
        rows = _split(_prepend(first, lines), form, delimiter)
        head = next(rows, None)
        if head is None:
            return
        names = _names(head, form)
        if not form.columns and form.header and not (wanted and {*wanted} <= {*names}):
            _check_header(names)
        check_columns(names, wanted, NO_NAMES if form.header else NAME_COLUMNS)
        if not form.header:
            rows = _prepend(head, rows)
        # A blank line is no row.
        for cells in rows:
            if cells:
                yield _row(cells, names, form)


def check_columns(found: Sequence[str], wanted: Sequence[str], action: str = NAME_COLUMNS) -> None:
    """Refuse a table that lacks a column or has it twice.

    wanted: the columns that are read; empty if any may be. action: of the operator if one lacks.
    Raises: MissingColumn, or Misfit for a name that differs in blanks or is there twice.
    """
    for column in wanted or filter(None, found):
        if column not in found:
            blank = next((name for name in found if name.strip() == column), None)
            if blank is not None:
                raise Misfit(
                    f"no column {column!r}, but {blank!r} with blanks around it",
                    "add --strip, or take the blanks out of the file.",
                )
            head = column.partition(".")[0]
            if head != column and head in found:
                raise MissingColumn(
                    f"no column {column!r}; only --source reads fields inside {head!r}",
                    f"{NAME_COLUMNS}.",
                )
            near = nearest_of(column, found, SIMILAR)
            raise MissingColumn(f"no column {column!r}{near}", f"{action}.")
        if found.count(column) > 1:
            raise Misfit(
                f"{found.count(column)} columns {column!r}", "give each a name of its own."
            )


def _prepend(first: Any, rest: Iterable[Any]) -> Iterator[Any]:
    """Yield `first`, unless it is None, and then the other items."""
    if first is not None:
        yield first
    yield from rest


def _split(lines: Iterator[str], form: TextForm, delimiter: str) -> Iterator[list[str]]:
    """Split each row into cells; a blank line has none. Raises: csv.Error."""
    # The csv module does not support delimiters of several characters.
    if delimiter == BLANKS:
        rows: Iterator[list[str]] = (line.split() for line in lines)
    elif len(delimiter) > 1:
        ended = (line.rstrip("\r\n") for line in lines)
        rows = (line.split(delimiter) if line else [] for line in ended)
    elif form.quoting == "none":
        rows = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    else:
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
    if form.strip:
        return ([cell.strip() for cell in cells] for cells in rows)
    return rows


def _names(head: list[str], form: TextForm) -> list[str]:
    """The names of the columns. head: the cells of the first row."""
    names = head if form.header else [str(number) for number in range(1, len(head) + 1)]
    given = form.columns[: len(names)] if not form.header else form.columns
    names = [*given, *names[len(given) :]]
    return names[: len(form.columns)] if form.last_is_list and form.columns else names


def _delimiter_of(header: str, usual: str) -> str:
    """The delimiter of a header: the usual one, or else another common one that the header
    contains."""
    other = re.search(r"[;\t|]", header)
    return usual if usual in header or other is None else other[0]


def _check_header(names: list[str]) -> None:
    """Refuse a first row that has a time or a number among its cells. Raises: Misfit."""
    numbers = [name for name in names if NUMBER.fullmatch(name.strip())]
    # Programs number columns without names: 0, 1, 2, or only some of them.
    if _count_up(numbers):
        numbers = []
    times = [name for name in names if TIME.match(name.strip())]
    if odd := (*times, *numbers):
        raise Misfit(
            f"row 1 looks like data ({shown_value(odd[0])} is no name): is there a header?",
            "write the columns' names into row 1; `import`, `produce` and `backtest` also number "
            "the columns from 1 by --no-header.",
        )


def _count_up(numbers: list[str]) -> bool:
    """Whether names are 0, 1, 2 and so on, or at least two from 1."""
    first = numbers[0] if numbers else "0"
    is_start = first == "0" or (first == "1" and len(numbers) > 1)
    return is_start and numbers == [str(int(first) + n) for n in range(len(numbers))]


def _row(cells: list[str], names: list[str], form: TextForm) -> Row:
    """A row's cells by name; absent ones are None. Raises: csv.Error if there are too many."""
    # Convert to numbers here: JODIE's rows have 172 of them.
    if form.last_is_list:
        last = len(names) - 1
        row: Row = dict(zip(names, cells[:last], strict=False))
        row[names[last]] = [_number(cell) for cell in cells[last:]]
        return row
    # An unquoted delimiter would shift cells into wrong columns.
    if len(cells) > len(names):
        raise csv.Error(f"the next row has {len(cells)} cells, the header {len(names)}")
    row = dict(zip(names, cells, strict=False))
    for name in names[len(cells) :]:
        row[name] = None
    return row


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def text_form(
    delimiter: str, has_header: bool, comment: str, quoting: str, strip: bool
) -> TextForm | None:
    """The form that a command's options describe; None if none is given. Raises: SettingsError."""
    if quoting not in ("minimal", "none"):
        raise SettingsError(f"--quoting is {quoting}.", "give minimal or none.")
    # Any of these options makes a file of any ending CSV, so the default form is None.
    form = TextForm(
        delimiter=DELIMITERS.get(delimiter, delimiter),
        header=has_header,
        comment=comment,
        quoting=cast(Literal["minimal", "none"], quoting),
        strip=strip,
    )
    return None if form == TextForm() else form
