"""The registry's journal: one JSON line for each move, with the new champion, the author, the time
and the reason.

`aliases.json` repeats the last move for other tools. If several machines share a log, `shown.json`
has the newest move that all of them know; servers follow that one.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import structlog

from streamd.registry.locks import moves_lock
from streamd.storage import DISK, TAIL_BYTES, Disk, append_durably, write_durably

logger = structlog.get_logger()
RECENT = 20
"""Number of the newest moves on the status page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One line of the journal.

    time: wall time in seconds. action: promote, prove or rollback. champion: the version that
    serves from then on. shadow: the last proven version, kept for a rollback. request: id of the
    request of another machine that caused it, "" for none.
    """

    time: float
    action: str
    champion: str
    shadow: str
    who: str
    why: str
    request: str = ""

    def line(self) -> bytes:
        """Encode the move as a line of the journal."""
        fields = {k: v for k, v in asdict(self).items() if k != "request" or v}
        return msgspec.json.encode(fields) + b"\n"


class ModelJournal:
    """Reads and appends `models/journal.jsonl`, under a lock that trainer, server and command line
    share."""

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self._path = folder / "journal.jsonl"
        self._aliases = folder / "aliases.json"
        self._shown = folder / "shown.json"
        self._disk = disk
        self.passed_over: dict[bytes, str] = {}
        """Lines that were read and are no moves -> why; each is logged once."""
        self._recent: deque[Move] = deque(maxlen=RECENT)
        self._at = self._num_moves = self._inode = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = moves_lock(folder)

    def moves(self) -> list[Move]:
        """Read all moves, oldest first, without a torn last line and lines that are no moves."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        # A kill left a torn last line; the next move overwrites it.
        return [move for line in lines if line.endswith(b"\n") and (move := self._decoded(line))]

    def recent(self) -> tuple[list[Move], int]:
        """The newest RECENT moves, oldest first, and the number of all. It reads only the lines
        since the last call. Owner: one thread."""
        try:
            with self._path.open("rb") as file:
                # The file was replaced or cut: read it from its beginning.
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._at:
                    self._inode = status.st_ino
                    self._at = self._num_moves = 0
                    self._recent.clear()
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    if move := self._decoded(line):
                        self._recent.append(move)
                        self._num_moves += 1
        except FileNotFoundError:
            pass
        return list(self._recent), self._num_moves

    def last(self) -> Move | None:
        """Read the newest move, None if there is none yet."""
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
        """Decode a line as a move; None if it is none, which is logged once."""
        line = line.strip()
        if not line:
            return None
        try:
            return msgspec.json.decode(line, type=Move)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Each read meets the same line: log it once.
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
        self,
        action: str,
        champion: str,
        who: str,
        why: str,
        shadow: str | None = None,
        request: str | None = None,
    ) -> Move:
        """Append a move durably, unless champion and shadow are the same already.

        shadow: None keeps the present one; if there is none, the champion becomes it. request: its
        id; then the move is always appended. "" for none.
        """
        with self.lock:
            last = self.last()
            shadow = shadow or (last.shadow if last else champion)
            named = last is not None and (last.champion, last.shadow) == (champion, shadow)
            if last is not None and named and request is None:
                return last
            move = Move(
                time=time.time(),
                action=action,
                champion=champion,
                shadow=shadow,
                who=who,
                why=why,
                request=request or "",
            )
            # The journal is authoritative; after a kill here the aliases lack its last move.
            append_durably(self._path, move.line(), self._disk)
            self._write_aliases(move)
            return move

    def replace(self, moves: Sequence[Move]) -> None:
        """Replace all moves by these, at least one: a follower's journal is a copy of the
        trainer's."""
        with self.lock:
            text = b"".join(move.line() for move in moves)
            write_durably(self._path, text, self._disk)
            self._write_aliases(moves[-1])

    def show(self, move: Move | None) -> None:
        """Let servers follow a move that all machines know, None if there is none yet. It is
        durable afterwards."""
        line = move.line() if move else b""
        try:
            same = self._shown.read_bytes() == line
        except FileNotFoundError:
            same = False
        if not same:
            write_durably(self._shown, line, self._disk)

    def shown(self) -> Move | None:
        """The move that servers follow, None if there is none yet. Raises: FileNotFoundError if
        `show` was never called here."""
        return self._decoded(self._shown.read_bytes())

    def _write_aliases(self, move: Move) -> None:
        aliases = msgspec.json.encode({"champion": move.champion, "shadow": move.shadow})
        write_durably(self._aliases, aliases, self._disk)


def decoded_moves(data: bytes) -> list[Move]:
    """The moves of a journal's bytes, without a torn last line and lines that are no moves."""
    moves = []
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n") and line.strip():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                moves.append(msgspec.json.decode(line, type=Move))
    return moves
