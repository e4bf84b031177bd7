"""Who made which version champion, when and why: one JSON line per move; aliases are a view of the last one."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from filelock import FileLock

from streamd.storage import write_durably


@dataclass(frozen=True)
class Move:
    """One line. champion: what serves from here on; shadow: the last proven version, kept for a rollback."""

    time: float
    action: str
    champion: str
    shadow: str
    who: str
    why: str


class ModelJournal:
    """`models/journal.jsonl`, appended under a lock by trainer, server and command line alike."""

    def __init__(self, folder: Path) -> None:
        self._path, self._aliases = folder / "journal.jsonl", folder / "aliases.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")

    def moves(self) -> list[Move]:
        """All moves, oldest first; a torn last line does not count."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=Move) for line in lines if line.endswith(b"\n")]

    def last(self) -> Move | None:
        """The newest move, read from the end of the file."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 8192))
                tail = file.read()
        except FileNotFoundError:
            return None
        lines = [line for line in tail.split(b"\n")[:-1] if line]
        return msgspec.json.decode(lines[-1], type=Move) if lines else None

    def move(self, action: str, champion: str, who: str, why: str, shadow: str | None = None) -> Move:
        """Append a move durably; naming what is named already changes nothing. shadow: as it was where None, and the
        champion where there was none."""
        with self._lock:
            last = self.last()
            shadow = shadow or (last.shadow if last else champion)
            if last is not None and (last.champion, last.shadow) == (champion, shadow):
                return last
            move = Move(time.time(), action, champion, shadow, who, why)
            self._drop_torn_line()
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(asdict(move)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            write_durably(self._aliases, msgspec.json.encode({"champion": champion, "shadow": move.shadow}))
            return move

    def _drop_torn_line(self) -> None:
        try:
            content = self._path.read_bytes() if self._path.stat().st_size < 4096 else None
            if content is None:
                with self._path.open("rb") as file:
                    file.seek(-4096, os.SEEK_END)
                    content = file.read()
        except FileNotFoundError:
            return
        torn = len(content) - (content.rfind(b"\n") + 1)
        if torn:
            os.truncate(self._path, self._path.stat().st_size - torn)
