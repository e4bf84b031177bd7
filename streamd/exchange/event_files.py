"""Reads a file of events, or a folder of such files, as one sequence of rows.

The ending of a file's name, in any case, determines its kind. A pipe has no ending, so its first
bytes do.
"""

import csv
import gzip
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from streamd.decode.wire import fields
from streamd.errors import SettingsError
from streamd.exchange.column_values import OddCell, column_values
from streamd.exchange.text_files import (
    MissingColumn,
    Row,
    TextForm,
    as_text,
    check_columns,
    csv_rows,
    open_bytes,
)
from streamd.exchange.times import Misfit

CSV, NDJSON, PARQUET, ARROW, ARROW_STREAM = "csv", "ndjson", "parquet", "arrow", "arrow stream"
ICEBERG = "iceberg"
METADATA = ".metadata.json"
"""Ending of the file that names the files of a snapshot of an Iceberg table."""
KINDS = {
    ".csv": CSV,
    ".tsv": CSV,
    ".tab": CSV,
    ".ndjson": NDJSON,
    ".json": NDJSON,
    ".jsonl": NDJSON,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".feather": ARROW,
    ".arrows": ARROW_STREAM,
}
"""Kinds of files by the ending of their name, after .gz is removed."""
TEXT_KINDS = (CSV, NDJSON)
MAGIC = {b"PAR1": PARQUET, b"ARRO": ARROW}
"""First bytes of files that are not text."""
AGAIN = "write the file again."
ACTIONS = {
    UnicodeDecodeError: "save it as UTF-8.",
    csv.Error: "correct the row; if a quotation mark is a character like any other, add "
    "--quoting none, and if cells are separated otherwise, --delimiter.",
}
"""Operator actions by the type of the error that a text file raised."""
NO_PYARROW = "pip install 'streamd-gnn[arrow]'."


class EventFile:
    """A file of events, or a folder of such files in the order of their names.

    Args: path: the file, folder or pipe; form: how CSV is written, None for the usual way. If it is
    given, a file of any ending is read as CSV.
    Raises: SettingsError if there is no such file, or if its kind is unknown.
    """

    def __init__(self, path: Path, form: TextForm | None = None) -> None:
        self._path = path
        self._form = form or TextForm()
        self._any_ending = form is not None
        self._first: list[int] = []
        """Number of the first row of each part that was begun; rows are counted through all parts
        from 1."""
        self.parts = [path]
        if path.is_dir():
            self.parts = _parts_of(path)
        elif not path.exists():
            raise SettingsError(f"{path} is not a file.", "check the path.")
        self._kinds = [self._kind_of(part) for part in self.parts]
        self.kind = self._kinds[0]
        """The kind of the first part; CSV or NDJSON for a pipe until it is read."""
        self.columns: tuple[str, ...] = ()
        """The names in the first row or line of the part that is read; () before."""

    def _kind_of(self, part: Path) -> str:
        """The kind of a file by its name; "" if its first bytes decide. Raises: SettingsError."""
        endings = [ending.lower() for ending in part.suffixes]
        if part.name.endswith(METADATA):
            return ICEBERG
        # The ending before .gz determines the kind.
        if endings and endings[-1] == ".gz":
            endings.pop()
        kind = KINDS.get(endings[-1], "") if endings else ""
        if not kind and self._any_ending:
            return CSV
        if not kind and part.is_file() and not self._path.is_dir():
            # A packed file is better named by its first bytes than by its ending.
            try:
                open_bytes(part).close()
            except Misfit as misfit:
                raise misfit.at(str(part)) from None
            raise SettingsError(
                f"{part} is neither .csv, .tsv, .ndjson, .json, .parquet, .arrow nor .feather.",
                "give it the ending of its format, or describe it: --delimiter.",
            )
        return kind

    @property
    def is_pipe(self) -> bool:
        """Whether rows may arrive while they are read."""
        return not self._path.is_file() and not self._path.is_dir()

    def position(self, number: int) -> str:
        """The position of a row for errors: file, and row or line. number: counted through all
        parts from 1."""
        at = max(0, bisect_right(self._first, number) - 1)
        word = "line" if self._kinds[at] == NDJSON else "row"
        first = self._first[at] if self._first else 1
        return f"{self.parts[at]} {word} {number - first + 1}"

    def count_rows(self) -> int:
        """Estimate the number of events from the lines, or from Parquet's metadata; 0 for a pipe or
        Arrow."""
        return sum(
            _count_rows(part, kind, self._form.header)
            for part, kind in zip(self.parts, self._kinds, strict=True)
        )

    def rows(
        self, wanted: Sequence[str], missing_action: str = ""
    ) -> Iterator[tuple[int, Row | str]]:
        """Read the rows of tables and the lines of NDJSON, with their numbers from 1.

        wanted: columns that tables must have. missing_action: of the operator if one is missing; by
        default to name columns with options. Raises: SettingsError naming the file and the last
        row before the one that cannot be read.
        """
        number = 0
        for at, part in enumerate(self.parts):
            self._first.append(number + 1)
            before = number
            try:
                for row in self._part_rows(at, part, wanted):
                    if number == before:
                        self.columns = tuple(fields(row.encode()) if isinstance(row, str) else row)
                    number += 1
                    yield number, row
            except OddCell as odd:
                # A batch is converted before its first row is yielded, so count from the last row
                # yielded.
                raise odd.at(f"{part} row {number - before + odd.row + 1}") from None
            except Misfit as misfit:
                if missing_action and isinstance(misfit, MissingColumn):
                    misfit = Misfit(str(misfit), missing_action)
                raise misfit.at(f"{part}") from None
            except (OSError, ValueError, EOFError, OverflowError, csv.Error, zlib.error) as error:
                word = "line" if self._kinds[at] == NDJSON else "row"
                where = f"after {word} {number - before}" if number > before else "from its start"
                action = next((a for kind, a in ACTIONS.items() if isinstance(error, kind)), AGAIN)
                raise SettingsError(f"{part} cannot be read {where}: {error}.", action) from None

    def _part_rows(self, at: int, part: Path, wanted: Sequence[str]) -> Iterator[Row | str]:
        kind = self._kinds[at]
        if kind == PARQUET:
            yield from _parquet_rows(part, wanted)
            return
        if kind in (ARROW, ARROW_STREAM):
            yield from _arrow_rows(part, kind, wanted)
            return
        if kind == ICEBERG:
            yield from _iceberg_rows(part, wanted)
            return
        # Text is opened once, because a pipe cannot be read twice.
        file = open_bytes(part)
        if not kind:
            kind = self._kinds[at] = _kind_of_bytes(file)
            self.kind = self._kinds[0]
        if kind == NDJSON:
            with as_text(file, "\n") as lines:
                for number, line in enumerate(lines):
                    if not number:
                        _check_first_line(line, part)
                    yield line
        elif kind == CSV:
            endings = [ending.lower() for ending in part.suffixes]
            delimiter = "\t" if {".tsv", ".tab"} & set(endings) else ","
            yield from csv_rows(file, wanted, self._form, delimiter)
        elif part.is_file():
            file.close()
            yield from self._part_rows(at, part, wanted)
        else:
            file.close()
            raise Misfit(f"{kind} cannot be read from a pipe", "write it to a file.")


def _check_first_line(line: str, part: Path) -> None:
    """Refuse JSON if its first value continues on the next line. Raises: Misfit."""
    text = line.strip()
    if line.endswith("\n") and text[:1] in ("[", "{") and text[-1] in "[{,:":
        value, every = ("array", ".[]") if text[0] == "[" else ("object", ".")
        raise Misfit(
            f"it begins with a JSON {value} of several lines, and is read as one value a line",
            f"write an object a line: jq -c '{every}' {part.name} > {part.stem}-lines.ndjson",
        )


def is_named_as_file(path: Path) -> bool:
    """Whether a name has the ending of a file of events."""
    return any(ending.lower() in KINDS for ending in path.suffixes[-2:])


def siblings_of(path: Path) -> list[Path]:
    """The files of events in the folder of a path, in order of name."""
    try:
        return sorted(one for one in path.parent.iterdir() if is_named_as_file(one))
    except OSError:
        return []


def _parts_of(folder: Path) -> list[Path]:
    """The files of a folder in the order of their names, without marks such as _SUCCESS, and those
    in partitions such as `day=2026-01-31`. Raises: SettingsError."""
    parts = []
    for one in sorted(folder.iterdir()):
        if one.name[0] in "._":
            continue
        if not one.is_dir():
            parts.append(one)
        elif "=" in one.name:
            parts += _parts_of(one)
        else:
            raise SettingsError(
                f"{folder} has folders in it, such as {one.name}, which are no partitions.",
                "name one of them.",
            )
    # A folder that is still being written may contain only its mark.
    if not parts:
        raise SettingsError(f"{folder} is a folder without files.", "check the path.")
    return parts


def _kind_of_bytes(file: BinaryIO) -> str:
    """The kind of an open file by its first bytes, which are not consumed."""
    head = cast(Any, file).peek(64)[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    return MAGIC.get(head[:4], NDJSON if head[:1] == b"{" else CSV)


def _count_rows(part: Path, kind: str, header: bool) -> int:
    if not part.is_file():
        return 0
    if kind == PARQUET:
        with _parquet_file(part) as table:
            return int(table.metadata.num_rows)
    if kind in (ARROW, ARROW_STREAM, ICEBERG):
        return 0
    # Lines end with either character. The header of a table is not an event.
    lines = 0
    end = b""
    try:
        with open_bytes(part) as file:
            while piece := file.read(1 << 20):
                lines += max(piece.count(b"\n"), piece.count(b"\r"))
                # UTF-16 adds a zero byte.
                end = piece[-2:].rstrip(b"\0")[-1:]
    except (OSError, EOFError, zlib.error, gzip.BadGzipFile):
        # The error is raised when the rows are read.
        return lines
    # The last line may lack its end.
    lines += end not in (b"", b"\n", b"\r")
    return max(0, lines - (kind == CSV and header))


def _parquet_file(path: Path) -> Any:
    """Open a Parquet file. Raises: SettingsError without pyarrow, ValueError."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise SettingsError("Parquet needs pyarrow.", NO_PYARROW) from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _parquet_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises: Misfit, SettingsError or ValueError."""
    file = _parquet_file(path)
    import pyarrow as pa

    try:
        with file:
            check_columns(file.schema_arrow.names, wanted)
            for batch in file.iter_batches():
                yield from _batch_rows(batch, wanted)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def _arrow_rows(path: Path, kind: str, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of an Arrow IPC file or stream. Raises: as `_parquet_rows`."""
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError:
        raise SettingsError("Arrow files need pyarrow.", NO_PYARROW) from None
    try:
        with pa.memory_map(str(path)) as source:
            if kind == ARROW_STREAM:
                reader = pa.ipc.open_stream(source)
                check_columns(reader.schema.names, wanted)
                for batch in reader:
                    yield from _batch_rows(batch, wanted)
                return
            file = pa.ipc.open_file(source)
            check_columns(file.schema.names, wanted)
            for number in range(file.num_record_batches):
                yield from _batch_rows(file.get_batch(number), wanted)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def _iceberg_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of an Iceberg table as of a metadata file, file by file. Raises: as
    `_parquet_rows`."""
    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise SettingsError(
            "Iceberg tables need pyiceberg.", "pip install 'streamd-gnn[iceberg]'."
        ) from None
    import pyarrow as pa

    try:
        table = StaticTable.from_metadata(str(path))
        check_columns(table.schema().column_names, wanted)
        for batch in table.scan(selected_fields=tuple(wanted) or ("*",)).to_arrow_batch_reader():
            yield from _batch_rows(batch, wanted)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def _batch_rows(batch: Any, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of one batch, as plain values.

    wanted: columns that are read, empty if any may be. A column that is not wanted and cannot be
    represented becomes None. Raises: Misfit or ArrowException.
    """
    # Buffers of a damaged file may point beyond its bytes.
    batch.validate(full=True)
    names = batch.schema.names
    columns: list[Sequence[Any]] = []
    for at, name in enumerate(names):
        try:
            columns.append(column_values(batch.column(at), name))
        except OddCell:
            # Only a column that is read may fail the file.
            if not wanted or name in wanted:
                raise
            columns.append([None] * len(batch))
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))
