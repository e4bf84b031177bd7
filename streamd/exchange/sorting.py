"""Sorts the rows of a file by time in bounded memory: sorted runs on disk, which are merged."""

import heapq
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAX_BYTES = 64 * 2**20
"""Bytes of rows that are sorted in memory at a time; as Python objects they take about four times
as much."""
ROW_BYTES = 100
"""Bytes of memory that a row takes in addition to its value."""
MAX_RUNS = 64
"""Maximum number of runs that are merged at a time, which bounds open files and their buffers."""
HEAD = struct.Struct("<qqqI")
"""Head of a row in a run: time, order, number, and size of the value that follows."""


class TimedRow(NamedTuple):
    """A row to be sorted. order: decides among rows of the same time. number: its number in the
    file."""

    time_us: int
    order: int
    number: int
    value: bytes


def sort_rows(rows: Iterable[TimedRow]) -> Iterator[TimedRow]:
    """Sort rows by time, and those of one time by their order.

    All rows are read before the first one is yielded. Runs are in a temporary folder (TMPDIR),
    which takes as much space as the rows.
    """
    with tempfile.TemporaryDirectory(prefix="streamd-sort-") as folder:
        runs: list[Path] = []
        made = 0

        def write(sorted_rows: Iterable[TimedRow]) -> Path:
            nonlocal made
            made += 1
            path = Path(folder) / str(made)
            with path.open("wb") as file:
                for row in sorted_rows:
                    file.write(HEAD.pack(row.time_us, row.order, row.number, len(row.value)))
                    file.write(row.value)
            return path

        # Sort runs of at most MAX_BYTES.
        pending: list[TimedRow] = []
        size = 0
        for row in rows:
            pending.append(row)
            size += len(row.value) + ROW_BYTES
            if size >= MAX_BYTES:
                pending.sort()
                runs.append(write(pending))
                pending.clear()
                size = 0
        pending.sort()

        # Merge runs until few enough are left to be read together.
        while len(runs) > MAX_RUNS:
            part, runs = runs[:MAX_RUNS], runs[MAX_RUNS:]
            runs.append(write(heapq.merge(*map(_read_run, part))))
            for path in part:
                path.unlink()
        yield from heapq.merge(*map(_read_run, runs), pending)


def _read_run(path: Path) -> Iterator[TimedRow]:
    with path.open("rb") as file:
        while row := _read_row(file):
            yield row


def _read_row(file: BinaryIO) -> TimedRow | None:
    head = file.read(HEAD.size)
    if not head:
        return None
    time_us, order, number, length = HEAD.unpack(head)
    return TimedRow(time_us, order, number, file.read(length))
