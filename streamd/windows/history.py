"""What each window scored, one JSON line per window: written by the trainer, read by the status page and the demo."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

FILE = "train/windows.jsonl"


@dataclass(frozen=True)
class WindowRecord:
    """One finished window. scores: model name -> measure -> value; "live" is the version that served. Times in us."""

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


def append_record(data_dir: Path, record: WindowRecord) -> int:
    """Add a line. Returns: the file's size behind it, which the trainer's checkpoint remembers."""
    path = data_dir / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(asdict(record)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def truncate_records(data_dir: Path, size: int) -> None:
    """Drop what a crashed trainer wrote behind its last checkpoint; those windows will be written again."""
    path = data_dir / FILE
    if path.exists():
        os.truncate(path, size)


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
            self._at, self.records = 0, []
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                self.records.append(msgspec.json.decode(line, type=WindowRecord))
        return self.records
