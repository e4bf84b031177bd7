"""The byte ranges of files that a commit writes: another machine needs them to make the same
commit."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamd.eventlog.journal.journal import LogState, SegmentState
from streamd.eventlog.layout import LABELS, ORDER
from streamd.eventlog.recovery import replacement
from streamd.eventlog.tguf.format import PAGE, Header, parse_header, sections_of

EDGES = ("src", "dst", "time", "msg")
LABEL_ROWS = ("label_n_id", "label_time", "label_target")
READ_BYTES = 1 << 18
"""Bytes of a new file that are read at a time; pieces of zeros are left out."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes [offset, offset + num_bytes) of a file, by its path in the data directory."""

    path: str
    offset: int
    num_bytes: int


def appended_ranges(
    data_dir: Path, before: LogState, after: LogState, fields: dict[str, Any]
) -> Iterator[FileRange]:
    """Yield the ranges that a commit appended to files, in the same order on all machines.

    before, after: the log's states around the line. fields: the line's. The segment in progress
    must exist, but may lack the rows.
    """
    for change in fields["files"]:
        path = change["path"]
        if change.get("revision") == after.seq:
            continue
        if "bytes" in change:
            first, end = change["bytes"]
            yield FileRange(path, first, end - first)
        else:
            assert after.last is not None and after.last.path == path
            yield from _segment_ranges(data_dir, before.last, after.last, after)


def _segment_ranges(
    data_dir: Path, old: SegmentState | None, new: SegmentState, state: LogState
) -> Iterator[FileRange]:
    """Yield the ranges of the rows that a segment has in its state `new` and not in `old`."""
    if old is None or old.first_edge != new.first_edge or old.revision != new.revision:
        old = SegmentState(new.first_edge, 0, 0, new.capacity, 0, (0,) * len(new.rows_per_set))
    labels = (old.num_labels, new.num_labels)
    if not new.rows_per_set:
        yield from _rows(data_dir, new.path, EDGES, (old.num_edges, new.num_edges))
        yield from _rows(data_dir, new.path, LABEL_ROWS, labels)
        return
    names = state.schema.edge_set_names
    for name, a, b in zip(names, old.rows_per_set, new.rows_per_set, strict=True):
        yield from _rows(data_dir, f"{new.path}/{name}.tguf", EDGES, (a, b))
    yield from _rows(data_dir, f"{new.path}/{LABELS}", LABEL_ROWS, labels)
    if new.num_edges > old.num_edges:
        size = 8 * (new.num_edges - old.num_edges)
        yield FileRange(f"{new.path}/{ORDER}", 8 * old.num_edges, size)


def _rows(
    data_dir: Path, path: str, names: tuple[str, ...], rows: tuple[int, int]
) -> Iterator[FileRange]:
    """Yield the ranges of rows [a, b) in the sections of a TGUF file."""
    a, b = rows
    if a == b:
        return
    header, size = read_header(data_dir / path)
    sections = sections_of(header, size, data_dir / path)
    for name in names:
        section = sections.get(name)
        if section is not None and section.row_bytes:
            start = section.offset + a * section.row_bytes
            yield FileRange(path, start, (b - a) * section.row_bytes)


def read_header(path: Path) -> tuple[Header, int]:
    """The header of a TGUF file, and its size. Raises: TGUFError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return parse_header(file.read(PAGE), size, path), size


def replaced_files(data_dir: Path, after: LogState, fields: dict[str, Any]) -> dict[str, Path]:
    """The new files with which a line replaces others, by path: the path of each until the commit
    is final."""
    files: dict[str, Path] = {}
    folders = {s.path for s in after.segments if s.rows_per_set}
    for change in fields["files"]:
        path = change["path"]
        if change.get("revision") != after.seq:
            continue
        if path in folders:
            # A folder has its final name from the start.
            files |= {f"{path}/{f.name}": f for f in sorted((data_dir / path).iterdir())}
        else:
            files[path] = replacement(data_dir / path, after.seq)
    return files


def written_ranges(path: str, file: Path) -> Iterator[FileRange]:
    """Yield the ranges of a file that contain anything but zeros."""
    with file.open("rb") as opened:
        fd = opened.fileno()
        size = os.fstat(fd).st_size
        at = 0
        while at < size:
            # Skip holes without reading them; the end of a file counts as a hole.
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                return
            end = min(size, os.lseek(fd, at, os.SEEK_HOLE))
            while at < end:
                data = os.pread(fd, min(READ_BYTES, end - at), at)
                if data.count(0) != len(data):
                    yield FileRange(path, at, len(data))
                at += len(data)
