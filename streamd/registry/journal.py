"""The registry's journal: one JSON line for each move, which says who made which version champion,
when and why.

`aliases.json` repeats the last move for other tools.
"""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import structlog
from filelock import FileLock

from streamd.storage import DISK, TAIL_BYTES, Disk, append_durably, write_durably

logger = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One line of the journal.

    time: wall time in seconds. action: promote, prove or rollback. champion: the version that
    serves from here on. shadow: the last proven version, kept for a rollback.
    """

    time: float
    action: str
    champion: str
    shadow: str
    who: str
    why: str


class ModelJournal:
    """Reads and appends `models/journal.jsonl`, under a lock that trainer, server and command line
    share."""

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self._path = folder / "journal.jsonl"
        self._aliases = folder / "aliases.json"
        self._disk = disk
        self.passed_over: dict[bytes, str] = {}
        """Lines that were read and are no moves -> why; each is logged once."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")

    def moves(self) -> list[Move]:
        """Read all moves, oldest first, without a torn last line and lines that are no moves."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        # A last line without its end was torn by a kill; the next move overwrites it.
        return [move for line in lines if line.endswith(b"\n") and (move := self._decoded(line))]

    def last(self) -> Move | None:
        """Read the newest move, None before there is one."""
        # It is nearly always in the last few KiB.
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return None

        # The first line of the tail may have lost its beginning.
        for line in reversed(lines[1:] if size > TAIL_BYTES else lines):
            if move := self._decoded(line):
                return move

        # No move in the tail: it holds bad lines only, or a part of a very long one.
        return next(iter(reversed(self.moves())), None) if size > TAIL_BYTES else None

    def _decoded(self, line: bytes) -> Move | None:
        """Decode a line as a move; None where it is none, which is logged once."""
        line = line.strip()
        if not line:
            return None
        try:
            return msgspec.json.decode(line, type=Move)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # The journal is read again and again, so the same line would fill the log.
            if line not in self.passed_over:
                self.passed_over[line] = str(error)
                logger.error(
                    "move_passed_over",
                    file=str(self._path),
                    error=str(error),
                    line=line[:200].decode(errors="replace"),
                )
            return None

    def move(
        self, action: str, champion: str, who: str, why: str, shadow: str | None = None
    ) -> Move:
        """Append a move durably, unless champion and shadow are named already.

        shadow: None leaves it as it was; where there was none, it is the champion.
        """
        with self._lock:
            last = self.last()
            shadow = shadow or (last.shadow if last else champion)
            if last is not None and (last.champion, last.shadow) == (champion, shadow):
                return last
            move = Move(
                time=time.time(), action=action, champion=champion, shadow=shadow, who=who, why=why
            )
            # The journal decides; a kill before the aliases are written leaves them a move behind.
            append_durably(self._path, msgspec.json.encode(asdict(move)) + b"\n", self._disk)
            aliases = msgspec.json.encode({"champion": champion, "shadow": move.shadow})
            write_durably(self._aliases, aliases, self._disk)
            return move
