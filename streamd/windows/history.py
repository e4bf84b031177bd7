"""What each window scored, one JSON line per window: written by the trainer, read by the status
page and the demo."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import structlog

from streamd.storage import append_durably

logger = structlog.get_logger()
FILE = "train/windows.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowRecord:
    """One finished window. scores: model name -> measure -> value; "live" is the version that
    served. num_known: scored events whose destination was one before. Times in us."""

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


def append_record(data_dir: Path, record: WindowRecord) -> int:
    """Add a line. Returns: the file's size behind it, which the trainer's checkpoint remembers."""
    path = data_dir / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    return append_durably(path, msgspec.json.encode(asdict(record)) + b"\n")


def truncate_records(data_dir: Path, size: int) -> None:
    """Drop what a crashed trainer wrote behind its last checkpoint; those windows will be written
    again."""
    path = data_dir / FILE
    found = path.stat().st_size if path.exists() else 0
    if found > size:
        os.truncate(path, size)
    elif found < size:
        logger.error(
            "history_lost",
            file=str(path),
            num_bytes=size - found,
            meaning="windows before are not shown any more",
        )


def history_until(data_dir: Path, edge: int) -> int:
    """Size of the file's part that speaks of windows up to an edge: what stays where learning goes
    back to it."""
    reader = HistoryReader(data_dir)
    size = 0
    for record in reader.refresh():
        if record.end_edge > edge:
            break
        size += len(msgspec.json.encode(asdict(record))) + 1
    return size


class HistoryReader:
    """Tails the file. Owner: one thread."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE
        self._at = 0
        self.records: list[WindowRecord] = []

    def refresh(self) -> list[WindowRecord]:
        """All records so far; a line still being written waits for the next call."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return self.records
        if size < self._at:
            self._at = 0
            self.records = []
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                try:
                    self.records.append(msgspec.json.decode(line, type=WindowRecord))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    logger.error(
                        "history_line_passed_over",
                        file=str(self._path),
                        at_byte=self._at,
                        error=str(error),
                    )
        return self.records
