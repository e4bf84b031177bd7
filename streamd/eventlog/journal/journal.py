"""The journal has one line per commit; the lines up to `published` define the content of the log.

A line is eight hex digits of CRC32C, a space, and JSON. A file begins with a checkpoint line (the
whole state) and is named by the first commit that may follow. `LogState.restored` and
`LogState.after` are the only code that derives state from lines; `recovery.drop_journals` and
`verify` also read the entries of lines for single files.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from crc32c import crc32c

from streamd.errors import JournalError, LockedError
from streamd.eventlog.layout import segment_path
from streamd.events import Position, Progress, Run, Schema
from streamd.schema_change import check_extends
from streamd.storage import DISK, SCRATCH, Disk

FORMAT = 6
"""Newest format, for a log with learned lines. The number rises when older releases could no longer
read the lines correctly."""
RUNS_FORMAT = 5
"""Format written for a log without such lines that has had runs of events ahead of a position."""
SETS_FORMAT = 4
"""Format written for a log that declares sets or features, as long as it had no such runs."""
PLAIN_FORMAT = 3
"""Format written for any other log, which older releases read too."""
READABLE = (2, 3, 4, 5, 6)
"""Formats that are read. Format 2 has no terms and no sets: the term is 0, the set is the default
one."""
JOURNAL = ".journal"
"""Ending of a journal file's name."""
FILE_LINES = 65_536
"""Commit lines after which a new journal file is begun. A start reads the newest file: so many
lines take about half a second."""
REWRITTEN_BYTES = 1 << 20
"""Bytes of a journal file that a start writes again at a time."""
SETTLED_NS = 2_000_000_000
"""Minimum age of a folder's modification time, nanoseconds, so that a further change is sure to
alter it: file systems record it in steps of up to two seconds."""


@dataclass(frozen=True)
class SegmentState:
    """The committed part of a segment.

    first_edge: event id of its first edge. num_edges, num_labels: committed rows. capacity: rows it
    was allocated for. revision: the commit that last replaced its files, by compacted or larger
    ones, 0 for none; readers map them again when this changes. rows_per_set: committed edges of
    each edge set, if it was begun with several: then it is a folder with a file for each set.
    """

    first_edge: int
    num_edges: int
    num_labels: int
    capacity: int
    revision: int = 0
    rows_per_set: tuple[int, ...] = ()

    @classmethod
    def restored(cls, entry: list[Any]) -> "SegmentState":
        """Decode an entry of the journal. Raises: JournalError."""
        # An entry of format 2 has no rows per edge set: they are the rows of the only set.
        *fields, rows = entry if len(entry) == 6 else [*entry, [entry[1]]]
        if sum(rows) != fields[1]:
            raise JournalError(
                f"The segment at event {fields[0]} has {fields[1]} edges, its sets have {rows}.",
                "restore the data_dir from a backup.",
            )
        state = cls(*fields)
        return replace(state, rows_per_set=tuple(rows)) if len(rows) > 1 else state

    def entry(self) -> list[Any]:
        """Encode the state as an entry of the journal, with its rows per edge set at the end."""
        rows = self.rows_per_set or (self.num_edges,)
        return [*astuple(self)[:-1], list(rows)]

    @property
    def end(self) -> int:
        """One past the event id of its last edge."""
        return self.first_edge + self.num_edges

    @property
    def path(self) -> str:
        """Path in the data directory: of its file, or with several edge sets of its folder."""
        path = segment_path(self.first_edge, len(self.rows_per_set) or 1)
        # A folder cannot replace another at once, so a rewritten one has its own name.
        return f"{path}-{self.revision}" if self.rows_per_set and self.revision else path


@dataclass(frozen=True)
class FileState:
    """The committed part of an append-only file: its bytes and the CRC32C of all of them.

    revision: as a segment's.
    """

    num_bytes: int = 0
    crc: int = 0
    revision: int = 0


NOTHING = FileState()
"""State of a file to which nothing was committed."""
OTHER = "use the streamd that wrote it."
"""The action for an operator of a log that this release cannot read."""


@dataclass(frozen=True)
class LogState:
    """The committed state of the log after commit `seq`. files: append-only files by path. term: of
    the leader that made the commit, 0 if no other machine follows the log.

    sealed: the segments before the last, in order of event ids. States share this tuple until a
    segment is sealed, replaced or dropped, so the cost of a commit does not grow with their number.
    last: the segment in progress, None if there is none. has_runs: whether a line has ever named a
    run of events ahead of a position. outbox: id of the newest batch of the outbox in the log, ""
    for none.
    """

    schema: Schema
    seq: int = 0
    sealed: tuple[SegmentState, ...] = ()
    last: SegmentState | None = None
    num_nodes: int = 0
    watermark: int = 0
    files: dict[str, FileState] = field(default_factory=dict)
    progress: Progress = Progress()
    term: int = 0
    has_runs: bool = False
    outbox: str = ""

    @property
    def segments(self) -> tuple[SegmentState, ...]:
        """All segments in order of event ids."""
        return self.sealed if self.last is None else (*self.sealed, self.last)

    @property
    def num_edges(self) -> int:
        """One past the newest event id."""
        return 0 if self.last is None else self.last.end

    def check_takes(self, schema: Schema) -> None:
        """Check that the log can continue with a schema. A log that never had a node, even if
        records were refused, accepts any; others only one that extends theirs. Raises:
        SchemaError."""
        if not self.is_blank:
            check_extends(self.schema, schema)

    @property
    def is_blank(self) -> bool:
        """Whether the log never had a node, and so no row of any width."""
        return self.last is None and not self.num_nodes

    @property
    def first_edge(self) -> int:
        """Event id of the oldest edge still in the log."""
        first = self.sealed[0] if self.sealed else self.last
        return 0 if first is None else first.first_edge

    def after(self, line: dict[str, Any]) -> "LogState":
        """Apply one more commit line. Raises: JournalError if it does not follow."""
        # Refuse a line that does not follow.
        if line["seq"] != self.seq + 1:
            raise JournalError(
                f"The journal jumps from commit {self.seq} to {line['seq']}.",
                "restore the data_dir from a backup.",
            )

        # Segments appear, grow, are replaced or are dropped; the last one is never dropped.
        sealed = self.sealed
        last = self.last
        for entry in line["segments"]:
            changed = SegmentState.restored(entry)
            if last is None or changed.first_edge == last.first_edge:
                last = changed
            elif changed.first_edge > last.first_edge:
                sealed = (*sealed, last)
                last = changed
            else:
                at = bisect_left(sealed, changed.first_edge, key=attrgetter("first_edge"))
                sealed = (*sealed[:at], changed, *sealed[at + 1 :])
        if dropped := set(line.get("dropped", ())):
            sealed = tuple(s for s in sealed if s.first_edge not in dropped)

        # Append-only files grow or are replaced. Entries without `bytes` are about rows of
        # segments, which `segments` has covered.
        files = self.files
        for change in line["files"]:
            if "bytes" in change:
                revision = change.get("revision", files.get(change["path"], NOTHING).revision)
                grown = FileState(change["bytes"][1], change["total"], revision)
                files = files | {change["path"]: grown}
        return LogState(
            schema=Schema.restored(line["schema"]) if "schema" in line else self.schema,
            seq=line["seq"],
            sealed=sealed,
            last=last,
            num_nodes=line["nodes"],
            watermark=line["watermark"],
            files=files,
            progress=_merge(self.progress, line["progress"]),
            term=line.get("term", self.term),
            has_runs=self.has_runs or _names_runs(line["progress"]),
            outbox=line.get("outbox", self.outbox),
        )

    @property
    def format(self) -> int:
        """The oldest format that can express the log."""
        if self.outbox:
            return FORMAT
        if self.has_runs:
            return RUNS_FORMAT
        return SETS_FORMAT if self.schema.is_declared else PLAIN_FORMAT

    def outgrows(self, before: "LogState") -> bool:
        """Whether a commit after the state `before` has made the log one that older releases cannot
        read. An extended schema, which begins a journal file anyway, does not count."""
        return self.format > max(before.format, SETS_FORMAT)

    def checkpoint(self) -> dict[str, Any]:
        """Encode the state as the fields of a journal file's first line."""
        s = self.schema
        # Older formats know runs by their number, and have no outbox.
        newest = {"outbox": self.outbox, "runs": self.has_runs} if self.outbox else {}
        return {
            "format": self.format,
            "checkpoint": self.seq,
            "term": self.term,
            "schema": s.fields(),
            "sets": [{"name": name} for name in s.edge_set_names],
            "segments": [s.entry() for s in self.segments],
            "nodes": self.num_nodes,
            "watermark": self.watermark,
            "files": {p: list(astuple(f)) for p, f in self.files.items()},
            "progress": progress_fields(self.progress),
            **newest,
        }

    @classmethod
    def restored(cls, line: dict[str, Any]) -> "LogState":
        """Decode a checkpoint line. Raises: JournalError if this release cannot read the log."""
        if line.get("format") not in READABLE:
            raise JournalError(
                f"The journal has format {line.get('format')}, this streamd reads up to {FORMAT}.",
                OTHER,
            )

        # Format 2 has neither sets nor terms: the defaults apply.
        segments = tuple(SegmentState.restored(s) for s in line["segments"])
        return cls(
            schema=Schema.restored(line["schema"]),
            seq=line["checkpoint"],
            sealed=segments[:-1],
            last=segments[-1] if segments else None,
            num_nodes=line["nodes"],
            watermark=line["watermark"],
            files={p: FileState(*f) for p, f in line["files"].items()},
            progress=_merge(Progress(), line["progress"]),
            term=line.get("term", 0),
            has_runs=line.get("runs", line["format"] == RUNS_FORMAT),
            outbox=line.get("outbox", ""),
        )


def progress_fields(progress: Progress) -> dict[str, Any]:
    """Encode progress as JSON fields: {"cluster", "topics": {name: id}, "positions": {name: {"0":
    [offset, index, [ahead], epoch]}}}.

    A run ahead is [offset, index, offset, index] of its first and last event, or [offset, index] of
    a single event, the only form in older logs. The oldest logs have no epoch.
    """
    return {
        "cluster": progress.cluster_id,
        "topics": progress.topic_ids,
        "positions": {
            t: {
                str(p): [x.offset, x.index, [_run_entry(a) for a in x.ahead], x.epoch]
                for p, x in parts.items()
            }
            for t, parts in progress.positions.items()
        },
    }


def _run_entry(run: Run) -> list[int]:
    return [*run.first] if run.first == run.last else [*run.first, *run.last]


def _run(entry: list[int]) -> Run:
    """Decode an entry of `_run_entry`. Raises: ValueError."""
    offset, index, *last = entry
    if len(last) not in (0, 2):
        raise ValueError(f"events ahead {entry}")
    return Run((offset, index), (last[0], last[1]) if last else (offset, index))


def _names_runs(fields: dict[str, Any]) -> bool:
    """Whether encoded progress has a run of several events ahead of a position."""
    return any(
        len(entry) > 2
        for parts in fields["positions"].values()
        for _, _, ahead, *_ in parts.values()
        for entry in ahead
    )


def changed_progress(old: Progress, new: Progress) -> dict[str, Any]:
    """Encode the part of the progress `new` that a commit line must hold."""
    known = _still_valid(old, new.topic_ids)
    moved = {
        t: {p: x for p, x in parts.items() if known.get(t, {}).get(p) != x}
        for t, parts in new.positions.items()
    }
    return progress_fields(
        replace(new, positions={t: parts for t, parts in moved.items() if parts})
    )


def _still_valid(old: Progress, topic_ids: dict[str, str]) -> dict[str, dict[int, Position]]:
    """The positions in topics that were not created again since. Positions in a topic of another id
    are void, even in partitions that the new topic does not have yet."""
    anew = {t for t, now in topic_ids.items() if now and old.topic_ids.get(t, "") not in ("", now)}
    if anew.isdisjoint(old.positions):
        return old.positions
    return {t: parts for t, parts in old.positions.items() if t not in anew}


def _merge(old: Progress, fields: dict[str, Any]) -> Progress:
    """The progress after the fields of a line; partitions of other topics are shared with `old`."""
    positions = _still_valid(old, fields["topics"])
    for topic, parts in fields["positions"].items():
        # Older logs have no epoch: the position then has its default.
        moved = {
            int(partition): Position(offset, index, tuple(map(_run, ahead)), *epoch)
            for partition, (offset, index, ahead, *epoch) in parts.items()
        }
        positions = positions | {topic: positions.get(topic, {}) | moved}
    return Progress(
        fields["cluster"] or old.cluster_id, old.topic_ids | fields["topics"], positions
    )


def encode_line(fields: dict[str, Any]) -> bytes:
    """Encode fields as one line: CRC32C, a space, JSON, a line end."""
    text = msgspec.json.encode(fields)
    return b"%08x %s\n" % (crc32c(text), text)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Decode the fields of a line, None if it is torn or damaged."""
    # Eight hex digits, a space and a line end are ten bytes.
    if len(line) < 10 or line[-1:] != b"\n" or line[8:9] != b" ":
        return None
    text = line[9:-1]
    if b"%08x" % crc32c(text) != line[:8]:
        return None
    fields: dict[str, Any] = msgspec.json.decode(text)
    return fields


def journal_files(folder: Path) -> list[Path]:
    """List the journal files of a folder, oldest first."""
    return sorted(folder.glob(f"*{JOURNAL}"))


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (byte offset after the line, fields or None if damaged) for each line of a file, with
    one line in memory at a time."""
    at = 0
    with path.open("rb") as file:
        for line in file:
            at += len(line)
            yield at, decode_line(line)


class JournalWriter:
    """Appends lines to the newest journal file. Owner: the log writer. path: of that file."""

    def __init__(self, folder: Path, state: LogState, disk: Disk = DISK) -> None:
        """Begin a new file with `state` as its checkpoint.

        1. Write the newest file again and sync it, for readers of its lines: after a failed sync
           the page cache may show a line that is not on the disk.
        2. Begin the new file, and never continue the old one. Its checkpoint makes the state
           durable.
        """
        self.folder = folder
        self._disk = disk
        self._seen_at = 0
        # Of the newest file; `_begin` sets them.
        self.path = folder
        self._fd = -1
        self._size = 0
        self._num_commits = -1
        self._write_newest_again()
        self._begin(state)

    def _write_newest_again(self) -> None:
        """Write the newest file again with the bytes that it shows, and sync it.

        Its last writer may have ended before a sync, or at one that failed. Without this, a later
        power cut could remove published lines, even from between others.
        """
        files = journal_files(self.folder)
        if not files:
            return
        fd = self._disk.open(files[-1], os.O_RDWR)
        try:
            with files[-1].open("rb") as file:
                at = 0
                while piece := file.read(REWRITTEN_BYTES):
                    self._disk.write(fd, piece, at)
                    at += len(piece)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _begin(self, state: LogState) -> None:
        """Begin the journal file that follows `state`, by an atomic rename.

        It replaces a file of that name completely: on the disk that file may be shorter than it
        seems.
        """
        self.path = self.folder / f"{state.seq + 1:020d}{JOURNAL}"
        scratch = self.path.with_suffix(SCRATCH)
        self._fd = self._disk.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._size = 0
        # The first line, a checkpoint, is appended below and is no commit.
        self._num_commits = -1

        # The checkpoint is durable before the file gets its name, so no file is ever without one.
        self.append(encode_line(state.checkpoint()))
        self._disk.replace(scratch, self.path)
        self._disk.sync_folder(self.folder)

    def append(self, lines: bytes, number: int = 1) -> None:
        """Write one line, or `number` of them, and make them durable; once this returns, no crash
        can undo it."""
        self._disk.write(self._fd, lines, self._size)
        self._disk.sync(self._fd)
        self._size += len(lines)
        self._num_commits += number

    @property
    def num_free(self) -> int:
        """Commits that the file has room for."""
        return FILE_LINES - self._num_commits

    @property
    def is_full(self) -> bool:
        """Whether the file holds so many commits that the next one belongs in a new file."""
        return self._num_commits >= FILE_LINES

    def check_alone(self) -> None:
        """Check that no other process writes the journal. Raises: LockedError if one has begun a
        file.

        On some shared volumes the lock of the directory does not exclude other processes. The
        folder is listed only if it may have changed, because its number of files grows.
        """
        changed_at = self.folder.stat().st_mtime_ns
        if changed_at == self._seen_at:
            return
        # Another process may have begun a file of the same name: only the inode differs.
        newest = self.folder / max(p.name for p in self.folder.iterdir() if p.suffix == JOURNAL)
        if newest != self.path or not os.path.samestat(newest.stat(), os.fstat(self._fd)):
            raise LockedError(
                f"Another process has begun to write {self.folder.parent}, in spite of the lock.",
                "run one ingest per data_dir; the lock (flock) does not work on this volume.",
            )
        # A second change within one tick of the clock would not show, so a folder that has just
        # changed is listed again next time.
        self._seen_at = changed_at if time.time_ns() - changed_at > SETTLED_NS else 0

    def roll(self, state: LogState) -> None:
        """Begin a new file, because a segment was sealed or this file is full."""
        old = self._fd
        self._begin(state)
        self._disk.close(old)

    def close(self) -> None:
        self._disk.close(self._fd)
