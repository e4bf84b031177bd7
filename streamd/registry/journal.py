"""The registry's journal: one JSON line for each move, which says who made which version champion,
when and why.

`aliases.json` repeats the last move for other tools. Of a log on many machines, `shown.json` has
the newest move that all of them know of, by which servers go.
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
"""Newest moves that the status page lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One line of the journal.

    time: wall time in seconds. action: promote, prove or rollback. champion: the version that
    serves from here on. shadow: the last proven version, kept for a rollback. request: id of the
    request from another machine that it was made for, "" for none.
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
        # A last line without its end was torn by a kill; the next move overwrites it.
        return [move for line in lines if line.endswith(b"\n") and (move := self._decoded(line))]

    def recent(self) -> tuple[list[Move], int]:
        """The newest RECENT moves, oldest first, and the number of all. Only what was appended
        since the last call is read. Owner: one thread."""
        try:
            with self._path.open("rb") as file:
                # Another file was put in place of ours, or ours was cut: then from its beginning.
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
        self,
        action: str,
        champion: str,
        who: str,
        why: str,
        shadow: str | None = None,
        request: str | None = None,
    ) -> Move:
        """Append a move durably, unless champion and shadow are named already.

        shadow: None leaves it as it was; where there was none, it is the champion. request: its id,
        or "", where the move is to be appended in any case.
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
            # The journal decides; a kill before the aliases are written leaves them a move behind.
            append_durably(self._path, move.line(), self._disk)
            self._write_aliases(move)
            return move

    def replace(self, moves: Sequence[Move]) -> None:
        """Put these moves, at least one, in the place of all: a follower's journal is a copy of the
        trainer's."""
        with self.lock:
            text = b"".join(move.line() for move in moves)
            write_durably(self._path, text, self._disk)
            self._write_aliases(moves[-1])

    def show(self, move: Move | None) -> None:
        """Let servers go by a move that all machines know of, None before there is one. It is
        durable afterwards."""
        line = move.line() if move else b""
        try:
            same = self._shown.read_bytes() == line
        except FileNotFoundError:
            same = False
        if not same:
            write_durably(self._shown, line, self._disk)

    def shown(self) -> Move | None:
        """The move by which servers go, None before there is one. Raises: FileNotFoundError where
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
