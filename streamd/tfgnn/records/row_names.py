"""Names of table rows in errors: the file, and the row or record in it."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Location = Callable[[int], str]
"""Row number -> text with its file and row, for errors."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Names the rows of a part of a file. A `Location`.

    word: row, or record. first: number of the part's first row; rows of CSV count from 1 after the
    header, records from 0 as in `TFRecordError`.
    """

    path: Path | str = "the table"
    word: str = "row"
    first: int = 1

    def __call__(self, row: int) -> str:
        return f"{self.path} {self.word} {self.first + row}"


class TableRows:
    """Names the rows of a table of one or more files. A `Location`. Owner: its reader."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[FileRows] = []

    def add(self, first: int, part: FileRows) -> None:
        """Add the next part of the table. first: number of its first row in the table, from 0."""
        self._starts.append(first)
        self._parts.append(part)

    def __call__(self, row: int) -> str:
        at = bisect_right(self._starts, row) - 1
        return self._parts[at](row - self._starts[at])
