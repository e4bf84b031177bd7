"""The moves of the champion: one JSON line for each, with the new champion, the author, the time
and the reason.

They are lines of the log, in `learned/moves.jsonl`. In a directory without a log, and if several
machines share the log, they are in `models/journal.jsonl`; `shown.json` then has the newest move
that all machines know, which servers follow. `aliases.json` repeats the last move for other tools.
"""

import contextlib
import math
import os
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import structlog
from filelock import Timeout

from streamd.errors import UntakenError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.delivery import WAIT, Wait
from streamd.eventlog.layout import MOVES
from streamd.eventlog.learned_lines import LearnedLines
from streamd.registry.locks import moves_lock
from streamd.storage import DISK, TAIL_BYTES, Disk, write_durably

logger = structlog.get_logger()
TRAINER = "trainer"
"""Author of the moves that the trainer makes by itself."""
RECENT = 20
"""Number of the newest moves on the status page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One line of the journal.

    time: wall time in seconds. action: promote, prove or rollback. champion: the version that
    serves from then on. shadow: the last proven version, kept for a rollback. request: id of the
    request that caused it, of another machine or by hand; "" for none.
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
    """Reads and appends the moves, under a lock that trainer, server and command line share."""

    def __init__(
        self,
        folder: Path,
        disk: Disk = DISK,
        log: Path | None = None,
        wait: Wait = WAIT,
    ) -> None:
        """folder: of the versions. log: directory of the log that takes the moves, None if they
        stay outside it."""
        self._local = folder / "journal.jsonl"
        self._log = log
        self._lines = LearnedLines(log, MOVES, self._local, disk, wait)
        self._aliases = folder / "aliases.json"
        self._shown = folder / "shown.json"
        self._disk = disk
        self.passed_over: dict[bytes, str] = {}
        """Lines that were read and are no moves -> why; each is logged once."""
        self._recent: deque[Move] = deque(maxlen=RECENT)
        self._at = self._num_moves = self._inode = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.file_lock = moves_lock(folder)

    @property
    def wait(self) -> Wait:
        """The wait for ingest to take a move."""
        return self._lines.wait

    @wait.setter
    def wait(self, wait: Wait) -> None:
        self._lines.wait = wait

    def lines_of(self, name: str, local: Path) -> LearnedLines:
        """Learned lines of another kind, in the log if it has the moves. Take `lock` to append
        some. name: path of their file in the log. local: their file outside it."""
        return LearnedLines(self._log, name, local, self._disk, self.wait)

    @property
    def lock(self) -> AbstractContextManager[None]:
        """The lock of moves; a thread that has it may take it again. It is given once all
        moves so far are made. Raises: UntakenError."""
        return self._changing()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        # The trainer has the lock while it waits for ingest: others must not wait as long.
        seconds = self.wait.seconds if self._lines.in_log is not None else math.inf
        try:
            acquired = self.file_lock.acquire(None if math.isinf(seconds) else seconds)
        except Timeout:
            raise UntakenError(
                "Another process holds models/.lock: it moves the champion, or waits for ingest.",
                "try again; if that lasts, find the reason in the log of ingest.",
            ) from None
        with acquired:
            self._lines.settle()
            yield

    def moves(self, until: int | None = None) -> list[Move]:
        """Read all moves, oldest first, without a torn last line and lines that are no moves.
        until: the last commit of which they count, in a log that has them."""
        lines = self._lines.source(until).lines()
        return [move for line in lines if (move := self._decoded(line))]

    def recent(self) -> tuple[list[Move], int]:
        """The newest RECENT moves, oldest first, and the number of all. It reads only the lines
        since the last call. Owner: one thread."""
        source = self._lines.source()
        try:
            with source.path.open("rb") as file:
                # The file was replaced or cut: read it from its beginning.
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._at:
                    self._inode = status.st_ino
                    self._at = self._num_moves = 0
                    self._recent.clear()
                file.seek(self._at)
                for line in file:
                    if not source.has(line):
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
        source = self._lines.source()
        # It is nearly always in the last few KiB.
        try:
            with source.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return None

        # The first line of the tail may have lost its beginning.
        for line in reversed(lines[1:] if size > TAIL_BYTES else lines):
            if source.has(line) and (move := self._decoded(line)):
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
                    file=str(self._lines.source().path),
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
        others: Sequence[tuple[str, bytes]] = (),
    ) -> Move:
        """Append a move durably, unless champion and shadow are the same already.

        shadow: None keeps the present one; if there is none, the champion becomes it. request: its
        id; then the move is always appended. "" for none. others: as of `LearnedLines.append`; they
        need a move. Raises: UntakenError if the log takes the move only later.
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
                request=request or ("" if who == TRAINER else uuid.uuid4().hex),
            )
            # The journal is authoritative; after a kill here the aliases lack its last move.
            self._append(move, others)
            self._write_aliases(move)
            return move

    def _append(self, move: Move, others: Sequence[tuple[str, bytes]]) -> None:
        self._lines.append([move.line()], move.request, others)
        # A damaged or outdated outbox is set aside without an error.
        if self._lines.in_log is not None and self.last() != move:
            raise UntakenError(
                "The move is not in the log: it was damaged, or another machine led meanwhile.",
                "look at the champion, and repeat the move.",
            )

    def is_on_its_way(self, request: str) -> bool:
        """Whether the move of this id waits for ingest."""
        # The id is a string in the move's JSON.
        log = self._lines.in_log
        batch = None if log is None else outbox.read(log, self._disk)
        id_field = msgspec.json.encode(request)
        return batch is not None and any(id_field in bytes(line) for _, line in batch.lines)

    def replace(self, moves: Sequence[Move]) -> None:
        """Replace all moves by these, at least one: a follower's journal is a copy of the
        trainer's."""
        with self.lock:
            text = b"".join(move.line() for move in moves)
            write_durably(self._local, text, self._disk)
            self._write_aliases(moves[-1])

    def copy_from(self, log: Path) -> None:
        """Copy the moves of a log to the local file, which is missing if this machine had the log
        alone until now."""
        with self.file_lock:
            self._lines.copy_to_local(log)

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
