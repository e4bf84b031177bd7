"""The outbox of a data directory: lines that other processes want to have in the log.

Only the log's writer commits. Trainer, server and commands put *entries* into the folder `outbox`:
lines for the files of `layout.LINES`. The writer takes them into its next commit, which names the
newest entry taken, and removes them once that commit is published. An entry has the term of the
writer that is to take it, 0 without a changelog, and a number that begins at 1 in each term.

A file `<term>-<number>.entry` is one line as of the journal: CRC32C and JSON.
"""

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from streamd.eventlog.journal.journal import NOTHING, LogState, decode_line, encode_line
from streamd.eventlog.layout import LINES, MOVES
from streamd.eventlog.learned_log import LearnedLog
from streamd.storage import DISK, NO_LINKS, SCRATCH, Disk, write_durably

logger = structlog.get_logger()
FOLDER = "outbox"
TERM = "term"
"""File in the folder: the term of the log's writer, which takes entries of that term only."""
NAME = re.compile(r"(\d{10})-(\d{20})\.entry")
"""Name of an entry: term and number, padded with zeros, so that names sort as numbers do."""
MAX_TAKEN_BYTES = 1 << 20
"""Bytes of lines after which a commit takes no further entry, so that events wait only briefly."""
Lines = Sequence[tuple[str, bytes]]
"""Path of a file of `layout.LINES`, and a line for it with its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """Lines that one commit is to append, all or none.

    follows: bytes of the file of moves, with those of waiting entries, when the entry was checked.
    If another move has come since, the writer refuses the entry; None if it depends on no move.
    """

    term: int
    number: int
    lines: Lines
    follows: int | None = None

    @property
    def name(self) -> str:
        return f"{self.term:010d}-{self.number:020d}.entry"

    def encode(self) -> bytes:
        """Encode the content of its file."""
        lines = [[path, line.decode()] for path, line in self.lines]
        return encode_line({"lines": lines, "follows": self.follows})

    @classmethod
    def read(cls, folder: Path, term: int, number: int) -> "LogEntry | None":
        """Read an entry; None if it is damaged. Raises: FileNotFoundError."""
        at = folder / cls(term=term, number=number, lines=()).name
        try:
            fields = decode_line(at.read_bytes())
        except ValueError:
            fields = None
        try:
            assert fields is not None
            lines = tuple((path, line.encode()) for path, line in fields["lines"])
            follows = fields["follows"]
            assert follows is None or isinstance(follows, int)
            assert all(p in LINES and x.count(b"\n") == 1 and x[-1:] == b"\n" for p, x in lines)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
            return None
        return cls(term=term, number=number, lines=lines, follows=follows)


@dataclass(frozen=True, slots=True)
class PendingLines:
    """The log's state after its newest published commit, and the entries that come next, in their
    order, without damaged ones."""

    state: LogState
    waiting: list[LogEntry]

    def num_bytes(self, path: str) -> int:
        """Bytes of a file of lines, with those of the waiting entries."""
        return self.state.files.get(path, NOTHING).num_bytes + sum(map(len, self.lines(path)))

    def lines(self, path: str) -> list[bytes]:
        """The lines that waiting entries have for a file, with their ends."""
        return [line for entry in self.waiting for place, line in entry.lines if place == path]


class EntryOutbox:
    """Puts entries. Owner: one thread of a process that holds the lock of moves while it looks and
    puts."""

    def __init__(self, learned: LearnedLog, disk: Disk = DISK) -> None:
        self._learned = learned
        self._folder = learned.data_dir / FOLDER
        self._disk = disk

    def look(self) -> "PendingLines":
        """The log and the entries that it does not have yet, as of one moment. Raises: OSError,
        JournalError."""
        term = self._term()
        found = []
        for number in numbers_in(self._folder).get(term, ()):
            # One that is gone is in the log, or was refused.
            with contextlib.suppress(FileNotFoundError):
                entry = LogEntry.read(self._folder, term, number)
                found += [entry] if entry is not None else []
        # The log is read after the folder: an entry that is removed meanwhile is in it.
        state = self._learned.state()
        return PendingLines(
            state, [one for one in found if one.number > _number_of(state.taken, term)]
        )

    def put(self, lines: Lines, follows: int | None = None) -> LogEntry:
        """Put an entry durably:

        1. Write it under a scratch name, and sync it.
        2. Link it to its number, which fails if that is taken. An entry is complete from its first
           moment on.
        3. Sync the folder: a caller relies on the entry.

        follows: as in `LogEntry`. Raises: OSError, JournalError.
        """
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.glob(f".*{SCRATCH}"):
            self._disk.unlink(path)
        # The folder before the log, as in `look`: no number is given twice.
        term = self._term()
        numbers = numbers_in(self._folder).get(term, ())
        number = max([_number_of(self._learned.state().taken, term), *numbers]) + 1
        entry = LogEntry(term=term, number=number, lines=tuple(lines), follows=follows)

        # 1. to 3. Volumes without links get a rename, which is as good under the lock of moves.
        scratch = self._folder / f".{entry.name}{SCRATCH}"
        fd = self._disk.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.write(fd, entry.encode(), 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        try:
            self._disk.link(scratch, self._folder / entry.name)
            self._disk.unlink(scratch)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._disk.replace(scratch, self._folder / entry.name)
        self._disk.sync_folder(self._folder)
        return entry

    def is_in_log(self, entry: LogEntry) -> bool:
        """Whether the log has an entry, or has refused it. Raises: JournalError."""
        return _number_of(self._learned.state().taken, entry.term) >= entry.number

    def _term(self) -> int:
        """The term of the log's writer, 0 if none has run here yet."""
        try:
            return int((self._folder / TERM).read_text())
        except FileNotFoundError:
            return 0


@dataclass(frozen=True, slots=True)
class TakenLines:
    """Entries for one commit. lines: bytes to append by path. newest: term and number of the newest
    entry, those refused included; None if none waits."""

    newest: tuple[int, int] | None = None
    lines: dict[str, bytes] = field(default_factory=dict)


class EntryIntake:
    """Takes entries for the log's commits, and removes them after. Owner: the log's writer."""

    def __init__(
        self, data_dir: Path, term: int, taken: tuple[int, int], disk: Disk = DISK
    ) -> None:
        """Remove the entries of other terms, and those that the log has. Its commits must all be
        published.

        term: of the writer, 0 without a changelog. taken: `LogState.taken`. Raises: OSError.
        """
        self._folder = data_dir / FOLDER
        self._term = term
        self._disk = disk
        self._committed: deque[tuple[int, list[int]]] = deque()
        """Commits that are not published, each with the numbers of its entries."""
        self._handled = _number_of(taken, term)
        """Number of the newest entry that a commit has named."""
        self._folder.mkdir(exist_ok=True)

        # The term first: entries that are put from here on have it.
        text = f"{term}\n".encode()
        if not (self._folder / TERM).exists() or (self._folder / TERM).read_bytes() != text:
            write_durably(self._folder / TERM, text, disk)
        for other, numbers in numbers_in(self._folder).items():
            for number in numbers:
                if other != term:
                    logger.warning(
                        "entry_dropped",
                        term=other,
                        number=number,
                        meaning="it was for the log's writer of another term",
                    )
                if other != term or number <= self._handled:
                    self._remove(other, [number])

    def take(self, state: LogState) -> TakenLines:
        """The entries for the commit after `state`. Raises: OSError."""
        numbers = self._next_numbers()
        if not numbers:
            return TakenLines()
        sizes = {path: state.files.get(path, NOTHING).num_bytes for path in LINES}
        lines: dict[str, bytes] = {}
        done = []
        for number in numbers:
            if sum(map(len, lines.values())) >= MAX_TAKEN_BYTES:
                break
            entry = None
            with contextlib.suppress(FileNotFoundError):
                entry = LogEntry.read(self._folder, self._term, number)
            moves = sizes[MOVES] + len(lines.get(MOVES, b""))
            done.append(number)
            if entry is None or entry.follows not in (None, moves):
                why = "it is damaged" if entry is None else "another move has come since"
                logger.error("entry_refused", number=number, reason=why)
                continue
            for path, line in entry.lines:
                lines[path] = lines.get(path, b"") + line
        self._handled = done[-1]
        self._committed.append((state.seq + 1, done))
        return TakenLines((self._term, done[-1]), lines)

    def has_waiting(self) -> bool:
        """Whether an entry waits. Raises: OSError."""
        return bool(self._next_numbers())

    def _next_numbers(self) -> list[int]:
        """Numbers of the waiting entries, without a gap to those before."""

        def list_numbers() -> list[int]:
            return [n for n in numbers_in(self._folder).get(self._term, ()) if n > self._handled]

        found = list_numbers()
        if not found or found[-1] - self._handled == len(found):
            return found
        # The list of a folder may lack an entry that was put while it was read, and have the one
        # put after it. All that came before that one are in the next list.
        return [n for n in list_numbers() if n <= found[-1]]

    def remove_until(self, seq: int) -> None:
        """Remove the entries of the commits up to `seq`, which are published. Before that, a crash
        of this machine could take the commits back."""
        while self._committed and self._committed[0][0] <= seq:
            self._remove(self._term, self._committed[0][1])
            self._committed.popleft()

    def _remove(self, term: int, numbers: Iterable[int]) -> None:
        """Remove entries. A start removes them again, so nothing is synced."""
        for number in numbers:
            entry = LogEntry(term=term, number=number, lines=())
            self._disk.unlink(self._folder / entry.name)


def has_entries(data_dir: Path) -> bool:
    """Whether a directory's outbox has an entry, perhaps one that the log has already."""
    return bool(numbers_in(data_dir / FOLDER))


def _number_of(taken: tuple[int, int], term: int) -> int:
    """Number of the newest entry of a term that a log with `LogState.taken` has, 0 for none."""
    return taken[1] if taken[0] == term else 0


def numbers_in(folder: Path) -> dict[int, list[int]]:
    """Numbers of the entries of a folder by term, ascending; empty if it does not exist."""
    found: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(folder.iterdir()):
            if match := NAME.fullmatch(path.name):
                found.setdefault(int(match[1]), []).append(int(match[2]))
    return found
