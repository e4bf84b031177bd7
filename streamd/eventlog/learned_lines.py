"""Learned lines of one kind, such as moves of the champion: in the log, or in a local file.

A local file has them in a directory without a log, if several machines share the log, and in a
directory of an older release. As long as it exists it has all lines: `bring_local` puts those that
the log lacks into the log, and then removes the file. `copy_to_local` is the way back, for a log
that gets other machines.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from streamd.errors import UntakenError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.delivery import WAIT, Wait, deliver, keeps_learned_lines
from streamd.eventlog.line_outbox import COMMIT, commit_of
from streamd.eventlog.recovery import published_seq
from streamd.storage import DISK, Disk, append_durably, write_durably

logger = structlog.get_logger()


class LineSource(NamedTuple):
    """The file that has the lines. published: the newest commit of which they count."""

    path: Path
    published: int

    def has(self, line: bytes) -> bool:
        """Whether a line is complete and counts. If it does not, no later one does."""
        return line.endswith(b"\n") and commit_of(line) <= self.published

    def lines(self) -> list[bytes]:
        """Read all lines that count, oldest first."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return [line for line in content.splitlines(keepends=True) if self.has(line)]


class LearnedLines:
    """Reads and appends lines. Callers of `append` hold `models/.lock` and have called `settle`."""

    def __init__(
        self, log: Path | None, name: str, local: Path, disk: Disk = DISK, wait: Wait = WAIT
    ) -> None:
        """log: directory of the log that takes the lines, None if it never does. name: path of
        their file there. local: the file outside the log."""
        self._log = log
        self.name = name
        self._local = local
        self._disk = disk
        self.wait = wait
        self._at = self._inode = 0
        self._logged: list[bytes] = []

    @property
    def in_log(self) -> Path | None:
        """Directory of the log that takes new lines, None if the local file does."""
        return self._log if self._log is not None and keeps_learned_lines(self._log) else None

    def source(self, until: int | None = None) -> LineSource:
        """The file that has the lines now. until: the last commit of which they count; a local
        file has no commits, so all its lines count."""
        # Also if this machine only follows the log, and its lines come from the leader.
        log = self._log
        if log is None or self._local.exists() or not (log / "published").exists():
            return LineSource(self._local, 0)
        source = self._in(log)
        return source if until is None else source._replace(published=min(until, source.published))

    def _in(self, log: Path) -> LineSource:
        """The published lines of a log."""
        # The commit first: the file then has all its lines.
        published = published_seq(log)
        return LineSource(log / self.name, published)

    def settle(self) -> None:
        """Wait until the log has all lines so far, also of other kinds, and those of the local
        file. Raises: UntakenError."""
        log = self.in_log
        if log is None:
            return
        # A process that was killed, or did not wait, may have left a batch.
        if not outbox.is_empty(log):
            self._deliver(log, "")
        if self._local.exists():
            self._bring_local(log)

    def append(
        self,
        lines: Sequence[bytes],
        request: str = "",
        others: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Append lines durably, and wait until readers see them.

        request: id of the move among them, for the error. others: lines of other kinds for the same
        commit, by path; none outside a log. Raises: UntakenError, OSError.
        """
        log = self.in_log
        # Outside a log each line is durable by itself.
        if log is None:
            for line in lines:
                append_durably(self._local, line, self._disk)
            return
        # In a log they wait in the outbox until a commit takes them.
        outbox.put(log, [*others, *((self.name, line) for line in lines)], self._disk)
        self._deliver(log, request)

    def append_soon(self, lines: Sequence[bytes]) -> None:
        """Append lines durably to the log, in a commit that soon follows; on a machine that does
        not lead, once it does. Raises: OSError."""
        assert self._log is not None
        outbox.put(self._log, [(self.name, line) for line in lines], self._disk)
        # Without ingest this commits them; else the next `settle` waits for ingest.
        deliver(self._log, Wait(0), self._disk)

    def logged(self) -> list[bytes]:
        """The lines in the log, oldest first, as they were before the log added the commit. It
        reads only the lines since the last call. Owner: one thread."""
        assert self._log is not None
        source = self._in(self._log)
        with contextlib.suppress(FileNotFoundError), source.path.open("rb") as file:
            # The log was replaced by another: read it from its beginning.
            if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                self._inode, self._at, self._logged = inode, 0, []
            file.seek(self._at)
            for line in file:
                if not source.has(line):
                    break
                self._at += len(line)
                self._logged.append(_text_of(line))
        return self._logged

    def missing(self, lines: Sequence[bytes]) -> list[bytes]:
        """Those of the lines that the log lacks."""
        known = set(self.logged())
        return [line for line in lines if line.rstrip() not in known]

    def _bring_local(self, log: Path) -> None:
        """Put the lines of the local file that the log lacks into the log, then remove the file. A
        kill in between repeats this, which then finds all lines."""
        local = LineSource(self._local, 0).lines()
        if strange := [line for line in local if not _is_object(line)]:
            logger.error("lines_left_out", file=str(self._local), number=len(strange))
        # Again if the outbox was damaged, which is set aside without an error.
        while lines := self.missing([line for line in local if _is_object(line)]):
            outbox.put(log, [(self.name, line) for line in lines], self._disk)
            self._deliver(log, "")
        self._disk.unlink(self._local)

    def copy_to_local(self, log: Path) -> None:
        """Copy the lines of a log to the local file, if that is missing."""
        lines = self._in(log).lines()
        if lines and not self._local.exists():
            text = b"".join(_text_of(line) + b"\n" for line in lines)
            self._local.parent.mkdir(exist_ok=True)
            write_durably(self._local, text, self._disk)

    def _deliver(self, log: Path, request: str) -> None:
        if not deliver(log, self.wait, self._disk):
            which = "the move" if request else "earlier lines"
            raise UntakenError(
                f"Ingest has not taken {which} into the log in {log} yet.",
                "find the reason in the log of ingest; it takes them with its next commit.",
                request,
            )


def _is_object(line: bytes) -> bool:
    """Whether a line is a JSON object with a field, as the log's lines are."""
    try:
        return bool(msgspec.json.decode(line, type=dict[str, Any]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _text_of(line: bytes) -> bytes:
    """A line as it was before the log added the commit."""
    line = line.rstrip()
    return b"{" + line[line.find(b",") + 1 :] if line.startswith(COMMIT) else line
