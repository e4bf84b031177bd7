"""Describes a TGUF file in words and numbers, for `streamd tguf inspect`."""

import datetime
from pathlib import Path

import numpy as np

from streamd.eventlog.tguf.format import FIELDS, NO_LIMIT
from streamd.eventlog.tguf.reader import open_tguf
from streamd.events import Int64

Lines = list[tuple[str, ...]]
"""Rows of a table, one cell a string."""


def describe(path: Path) -> tuple[Lines, Lines]:
    """Describe a file as header lines (name, value) and section lines (name, byte offset, rows,
    capacity, bytes a row).

    Raises: TGUFError if it is not a TGUF file, or contradicts itself.
    """
    file = open_tguf(path, check_rows=False)
    h = file.header

    # The offsets in the header are shown with their sections instead.
    header: Lines = [("file", f"{path}, {file.file_bytes:,} bytes")]
    header += [
        (name, f"{getattr(h, name):,}") for name in FIELDS[1:] if not name.endswith("_offset")
    ]
    header += [("edge times", _range(file.time)), ("label times", _range(file.label_time))]
    header += [(f"{name} rows", f"[{a:,}, {b:,})") for name, (a, b) in file.splits.items()]

    # A section with rows of no bytes, as in a log without features, has room for any number.
    sections: Lines = []
    for name, section in file.sections.items():
        rows = len(getattr(file, name))
        capacity = f"{section.capacity:,}" if section.capacity < NO_LIMIT else "any number"
        sections.append(
            (name, f"{section.offset:,}", f"{rows:,}", capacity, f"{section.row_bytes} B")
        )
    return header, sections


def _range(time: Int64) -> str:
    if not len(time):
        return "none"
    first, last = int(time[0]), int(time[-1])
    return f"{first} to {last} (as microseconds {_date(first)} to {_date(last)})"


def _date(time_us: int) -> str:
    try:
        return str(np.datetime64(time_us, "us").astype(datetime.datetime))
    except (ValueError, OverflowError):
        return "out of the calendar"
