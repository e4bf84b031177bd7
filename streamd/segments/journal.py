"""The journal: one line per commit, each with its CRC32C; what it says up to `published` is what
the log holds.

A line is eight hex digits of CRC32C, a space, and JSON. A file begins with a checkpoint line (the
whole state) and is named by the first commit that may follow. `LogState.after` is the only code
that interprets lines, for all readers.
"""

import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from crc32c import crc32c

from streamd.errors import JournalError, LockedError
from streamd.events import EDGE_SETS, Position, Progress, Schema
from streamd.storage import DISK, SCRATCH, Disk

FORMAT = 3
READABLE = (2, 3)
"""Formats that are read. Format 2 has no terms and no sets: the term is 0, the set is the default
one."""


@dataclass(frozen=True)
class SegmentState:
    """A segment as far as it is committed: global id of its first edge, rows in it, rows it was
    allocated for.

    revision: the commit that put a compacted file in its place, 0 for none; readers map it anew
    when this changes.
    """

    first_edge: int
    num_edges: int
    num_labels: int
    capacity: int
    revision: int = 0

    @classmethod
    def restored(cls, entry: list[Any]) -> "SegmentState":
        """The state of a journal's entry. Raises: JournalError."""
        *fields, rows_per_set = entry if len(entry) == 6 else [*entry, [entry[1]]]
        if rows_per_set != [fields[1]]:
            raise JournalError(
                f"The segment at event {fields[0]} has rows {rows_per_set} of several edge sets.",
                OTHER,
            )
        return cls(*fields)

    def entry(self) -> list[Any]:
        """The state as a journal's entry, with its rows per edge set at the end."""
        return [*astuple(self), [self.num_edges]]

    @property
    def path(self) -> str:
        return f"edges/default/{self.first_edge:020d}.tguf"


@dataclass(frozen=True)
class FileState:
    """An append-only file: its committed bytes and the CRC32C of all of them. revision: as a
    segment's."""

    num_bytes: int = 0
    crc: int = 0
    revision: int = 0


NOTHING = FileState()
OTHER = "use the streamd that wrote it."


@dataclass(frozen=True)
class LogState:
    """What is committed after commit `seq`. files: append-only files by path. term: number of the
    leader's reign; 0 where one machine writes the log for itself."""

    schema: Schema
    seq: int = 0
    segments: tuple[SegmentState, ...] = ()
    num_nodes: int = 0
    watermark: int = 0
    files: dict[str, FileState] = field(default_factory=dict)
    progress: Progress = Progress()
    term: int = 0

    @property
    def num_edges(self) -> int:
        """One past the newest global edge id."""
        return self.segments[-1].first_edge + self.segments[-1].num_edges if self.segments else 0

    @property
    def first_edge(self) -> int:
        """Global id of the oldest edge still in the log."""
        return self.segments[0].first_edge if self.segments else 0

    def after(self, line: dict[str, Any]) -> "LogState":
        """The state after one more commit line. Raises: JournalError."""
        if "schema" in line:
            raise JournalError(
                f"Commit {line['seq']} changes the schema, which this streamd does not know.", OTHER
            )
        if line["seq"] != self.seq + 1:
            raise JournalError(
                f"The journal jumps from commit {self.seq} to {line['seq']}.",
                "restore the data_dir.",
            )
        segments = {s.first_edge: s for s in self.segments}
        for changed in line["segments"]:
            segments[changed[0]] = SegmentState.restored(changed)
        for dropped in line.get("dropped", ()):
            del segments[dropped]
        files = dict(self.files)
        for change in line["files"]:
            if "bytes" in change:
                revision = change.get("revision", files.get(change["path"], NOTHING).revision)
                files[change["path"]] = FileState(change["bytes"][1], change["total"], revision)
        return LogState(
            schema=self.schema,
            seq=line["seq"],
            segments=tuple(segments.values()),
            num_nodes=line["nodes"],
            watermark=line["watermark"],
            files=files,
            progress=_merge(self.progress, line["progress"]),
            term=line.get("term", self.term),
        )

    def checkpoint(self) -> dict[str, Any]:
        """The state as the first line of a journal file."""
        return {
            "format": FORMAT,
            "checkpoint": self.seq,
            "term": self.term,
            "schema": msgspec.to_builtins(self.schema),
            "sets": [{"name": name} for name in EDGE_SETS],
            "segments": [s.entry() for s in self.segments],
            "nodes": self.num_nodes,
            "watermark": self.watermark,
            "files": {p: list(astuple(f)) for p, f in self.files.items()},
            "progress": progress_fields(self.progress),
        }

    @classmethod
    def restored(cls, line: dict[str, Any]) -> "LogState":
        """The state of a checkpoint line. Raises: JournalError."""
        if line.get("format") not in READABLE:
            raise JournalError(
                f"The journal has format {line.get('format')}, this streamd reads up to {FORMAT}.",
                OTHER,
            )
        sets = tuple(s["name"] for s in line["sets"]) if "sets" in line else EDGE_SETS
        if sets != EDGE_SETS:
            raise JournalError(
                f"The log has edge sets {', '.join(sets)}; this streamd knows {EDGE_SETS[0]} only.",
                OTHER,
            )
        return cls(
            schema=Schema(**line["schema"]),
            seq=line["checkpoint"],
            segments=tuple(SegmentState.restored(s) for s in line["segments"]),
            num_nodes=line["nodes"],
            watermark=line["watermark"],
            files={p: FileState(*f) for p, f in line["files"].items()},
            progress=_merge(Progress(), line["progress"]),
            term=line.get("term", 0),
        )


def progress_fields(progress: Progress) -> dict[str, Any]:
    """Progress as JSON: {"cluster", "topics": {name: id}, "positions": {name: {"0": [offset, index,
    [ahead], epoch]}}}.

    Before 2026-11-23 there was no epoch."""
    return {
        "cluster": progress.cluster_id,
        "topics": progress.topic_ids,
        "positions": {
            t: {
                str(p): [x.offset, x.index, [list(a) for a in x.ahead], x.epoch]
                for p, x in parts.items()
            }
            for t, parts in progress.positions.items()
        },
    }


def changed_progress(old: Progress, new: Progress) -> dict[str, Any]:
    """The part of `new` that a commit line must hold."""
    moved = {
        t: {p: x for p, x in parts.items() if old.positions.get(t, {}).get(p) != x}
        for t, parts in new.positions.items()
    }
    return progress_fields(
        replace(new, positions={t: parts for t, parts in moved.items() if parts})
    )


def _merge(old: Progress, fields: dict[str, Any]) -> Progress:
    positions = {t: dict(parts) for t, parts in old.positions.items()}
    for topic, parts in fields["positions"].items():
        for partition, (offset, index, ahead, *epoch) in parts.items():
            positions.setdefault(topic, {})[int(partition)] = Position(
                offset, index, tuple((a, b) for a, b in ahead), *epoch
            )
    return Progress(
        fields["cluster"] or old.cluster_id, old.topic_ids | fields["topics"], positions
    )


def encode_line(fields: dict[str, Any]) -> bytes:
    text = msgspec.json.encode(fields)
    return b"%08x %s\n" % (crc32c(text), text)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The fields of a line, None where it is torn or damaged."""
    if len(line) < 10 or line[-1:] != b"\n" or line[8:9] != b" ":
        return None
    text = line[9:-1]
    if b"%08x" % crc32c(text) != line[:8]:
        return None
    fields: dict[str, Any] = msgspec.json.decode(text)
    return fields


def journal_files(folder: Path) -> list[Path]:
    """Journal files, oldest first."""
    return sorted(folder.glob("*.journal"))


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(byte offset behind the line, fields or None where damaged) for each line of a file."""
    at = 0
    with path.open("rb") as file:
        for line in file:
            at += len(line)
            yield at, decode_line(line)


class JournalWriter:
    """Appends lines to the newest journal file. Owner: the log writer."""

    def __init__(self, folder: Path, state: LogState, disk: Disk = DISK) -> None:
        """Begin a new file with `state` as its checkpoint.

        It never goes on with an old one: a line whose sync failed may be shown by the page cache
        and yet never have reached the disk. The checkpoint makes durable what the old file was
        believed to say.
        """
        self.folder = folder
        self._disk = disk
        self._begin(state)

    def _begin(self, state: LogState) -> None:
        """Take the place of a file of this name at once: the one before it may end earlier on the
        disk."""
        self._path = self.folder / f"{state.seq + 1:020d}.journal"
        scratch = self._path.with_suffix(SCRATCH)
        self._fd = self._disk.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._size = 0
        self.append(encode_line(state.checkpoint()))
        self._disk.replace(scratch, self._path)
        self._disk.sync_folder(self.folder)

    def append(self, line: bytes) -> None:
        """Write one line and make it durable; once this returns, the commit stands."""
        self._disk.write(self._fd, line, self._size)
        self._disk.sync(self._fd)
        self._size += len(line)

    def check_alone(self) -> None:
        """Raises: LockedError where another process has begun a file of its own.

        On some shared volumes the lock of the directory holds nobody back.
        """
        newest = journal_files(self.folder)[-1]
        if newest != self._path or not os.path.samestat(newest.stat(), os.fstat(self._fd)):
            raise LockedError(
                f"Another process has begun to write {self.folder.parent}, in spite of the lock.",
                "run one ingest per data_dir; the lock (flock) does not work on this volume.",
            )

    def roll(self, state: LogState) -> None:
        """Start a new file, because a segment was sealed."""
        old = self._fd
        self._begin(state)
        self._disk.close(old)

    def close(self) -> None:
        self._disk.close(self._fd)
