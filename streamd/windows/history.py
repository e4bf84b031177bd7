"""The history of scores: one JSON line for each window, written by the trainer and read by the
status page and the demo.

The lines are in the log, or in a local file: see `streamd.eventlog.learned_lines`.
"""

import os
from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
import structlog

from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.learned_lines import LearnedLines
from streamd.storage import append_durably
from streamd.windows.novelty import NoveltyCounts
from streamd.windows.window import MOSTLY

logger = structlog.get_logger()
FILE = "train/windows.jsonl"
"""Path of the local file, in the data directory."""
ONE_DESTINATION = "all events have one destination: nothing to rank"
"""Reason for a window that cannot be scored, because no event has another candidate."""
RULES = ("rule", "edgebank", "popularity")
"""Rules that score each window, as the models do. Records of older releases lack the first one,
which serves until there is a version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetScores:
    """Scores of a window's events of one edge set, or of its labels of one node set.

    num_scored: number of those events or labels. scores: as in `WindowRecord`.
    num_known, novelty, mean_negatives: as in `WindowRecord`; 0, None and None for labels.
    """

    num_scored: int
    scores: dict[str, dict[str, float]]
    num_known: int = 0
    novelty: NoveltyCounts | None = None
    mean_negatives: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowRecord:
    """One finished window, with times in microseconds and `finished_at` in seconds.

    scores: model name -> measure -> value; "live" is the version that served.
    num_known: number of scored events with a known destination.
    version: from which training continued after the window; scored_by: the version or rule that
    served.
    num_late: number of events with a time before the window.
    seconds: phase -> wall time. surprise: as in `Drift.surprise`.
    edge_sets, node_sets: in a log with several such sets, the scores of each edge set with scored
    events and of each node set with labels.
    mean_negatives: mean number of negatives of a scored event; None without any, and in records of
    older releases, which always counted 100.
    novelty: counts of the scored events; None in records of older releases.
    """

    start_us: int
    end_us: int
    first_edge: int
    end_edge: int
    num_scored: int
    version: str
    scored_by: str
    promoted: bool
    reason: str
    scores: dict[str, dict[str, float]]
    loss: float | None
    seconds: dict[str, float]
    finished_at: float
    num_known: int = 0
    num_late: int = 0
    surprise: float | None = None
    edge_sets: dict[str, SetScores] = field(default_factory=dict)
    node_sets: dict[str, SetScores] = field(default_factory=dict)
    mean_negatives: float | None = None
    novelty: NoveltyCounts | None = None

    @property
    def is_mostly_late(self) -> bool:
        """Whether the window was left out: see `windows.is_mostly_late`."""
        return self.num_late > MOSTLY * (self.end_edge - self.first_edge)

    def line(self) -> bytes:
        """Encode the record as a line of the history."""
        # Omit newer fields that are empty, so that records of older releases are encoded as before.
        newer = ("edge_sets", "node_sets", "num_late", "mean_negatives", "novelty")
        fields = {k: v for k, v in asdict(self).items() if k not in newer or v}
        return msgspec.json.encode(fields) + b"\n"


def append_record(data_dir: Path, record: WindowRecord) -> int:
    """Append a window's record durably.

    Returns: the file's new size in bytes, for the trainer's checkpoint.
    """
    path = data_dir / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    return append_durably(path, record.line())


def truncate_records(data_dir: Path, size: int) -> None:
    """Remove the records that a crashed trainer wrote after its last checkpoint.

    The trainer will write them again. size: the file's size in bytes, from the checkpoint.
    """
    path = data_dir / FILE
    # A file that is shorter than the checkpoint knows has lost records, for example by a restore.
    present = path.stat().st_size if path.exists() else 0
    if present > size:
        os.truncate(path, size)
    elif present < size:
        logger.error(
            "history_lost",
            file=str(path),
            num_bytes=size - present,
            meaning="some earlier windows are missing from the status page",
        )


def history_until(data_dir: Path, edge: int) -> int:
    """Total size in bytes of the records with windows that end at or before an event id.

    These records remain valid if training resumes from that event.
    """
    path = data_dir / FILE
    if not path.exists():
        return 0
    size = 0
    with path.open("rb") as file:
        for line in file:
            # Count bytes of the file: another release may have encoded a record differently.
            record = _decode_record(line, path, size) if line.endswith(b"\n") else None
            if not line.endswith(b"\n") or (record is not None and record.end_edge > edge):
                break
            size += len(line)
    return size


def _decode_record(line: bytes, path: Path, at_byte: int) -> WindowRecord | None:
    """Decode a line of the history; a damaged one is logged and gives None."""
    try:
        return msgspec.json.decode(line, type=WindowRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.error("history_line_skipped", file=str(path), at_byte=at_byte, error=str(error))
        return None


class HistoryReader:
    """Follows the history as it grows. Owner: one thread."""

    def __init__(self, data_dir: Path, until: int | None = None) -> None:
        """until: as of `LearnedLines.source`."""
        self._lines = LearnedLines(data_dir, WINDOWS, data_dir / FILE)
        self._until = until
        self._at = self._inode = 0
        self.records: list[WindowRecord] = []

    def refresh(self) -> list[WindowRecord]:
        """Read all records so far; a line that is still being written is left for the next call."""
        # The file may have been truncated, replaced, or moved into the log: then read it from its
        # start.
        source = self._lines.source(self._until)
        try:
            status = source.path.stat()
        except FileNotFoundError:
            return self.records
        if status.st_size < self._at or status.st_ino != self._inode:
            self._inode = status.st_ino
            self._at = 0
            self.records = []

        # Read the new lines; a damaged line is logged and skipped.
        with source.path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not source.has(line):
                    break
                record = _decode_record(line, source.path, self._at)
                self._at += len(line)
                if record is not None:
                    self._take(record)
        return self.records

    def _take(self, record: WindowRecord) -> None:
        """Add a record. It replaces those of windows that it overlaps or precedes, because a
        trainer that lost its checkpoint has repeated them."""
        if self.records and self.records[-1].end_edge > record.first_edge:
            until = bisect_right(self.records, record.first_edge, key=lambda one: one.end_edge)
            # In a new list: callers may hold the old one.
            self.records = self.records[:until]
        self.records.append(record)
