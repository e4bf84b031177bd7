"""Recovery after a crash, under the lock that admits one writer at a time: finds the last good
journal line, finishes replacements and removes stray files."""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import structlog

from streamd.errors import DataDirectoryError, JournalError, LockedError
from streamd.eventlog.journal.changelog_position import read_position
from streamd.eventlog.journal.journal import NOTHING, LogState, journal_files, read_lines
from streamd.eventlog.layout import APPENDED, EDGE_FOLDERS, EDGES
from streamd.events import Schema
from streamd.storage import DISK, SCRATCH, Disk

logger = structlog.get_logger()
AFTER_DAMAGE = (
    "check the disk, and restore the data_dir from a backup; if other machines have the log, start "
    "with an empty data_dir instead."
)
"""The operator's action if committed bytes are damaged or missing."""
REPLACEMENT = ".replacement-"
"""Part of a new file's name until the commit with which it replaces another is durable."""
LOCK_POLL_SECONDS = 0.005
MAX_OWNER_BYTES = 200
"""Bytes of a lock file that are read: the name of the process that has the lock."""


def last_state(data_dir: Path, schema: Schema) -> LogState:
    """Read the state after the last good journal line; that of an empty log if there is none.

    Raises: JournalError if a line before the last one of a file is damaged, or if a commit that
    readers or other machines have is missing.
    """
    # Read the needed commit first: a writer may commit in between, and publishes a commit
    # only after its line is in the journal.
    needed = needed_seq(data_dir)

    # The newest file with a complete first line has the state; a crash may have torn a newer file.
    state = LogState(schema)
    for path in reversed(journal_files(data_dir / "journal")):
        newest = _read(path)
        if newest is not None:
            state = newest
            break

    # If the log lost a commit that others have seen, no other commit may get its number.
    check_has(data_dir, state.seq, needed)
    return state


def check_has(data_dir: Path, newest: int, needed: int) -> None:
    """Check that a journal whose last commit is `newest` has commit `needed`. Raises:
    JournalError."""
    if needed > newest:
        raise JournalError(
            f"The journal of {data_dir} ends at commit {newest}, but readers or the changelog have "
            f"commit {needed}.",
            AFTER_DAMAGE,
        )


def needed_seq(data_dir: Path) -> int:
    """The newest commit that the journal must have: it is published, or before the directory's
    position in the changelog."""
    position = read_position(data_dir)
    return max(published_seq(data_dir), 0 if position is None else position.seq)


def published_seq(data_dir: Path) -> int:
    """The newest commit that is published to readers, 0 if there is none.

    After a power cut it may be an older one: `published` is not synced.
    """
    try:
        return int.from_bytes((data_dir / "published").read_bytes()[:8], "little")
    except FileNotFoundError:
        return 0


def state_at(data_dir: Path, seq: int) -> LogState | None:
    """Read the state after commit `seq`; None if the journal's files do not have it any more, or
    not yet."""
    for path in reversed(journal_files(data_dir / "journal")):
        state: LogState | None = None
        for _, fields in read_lines(path):
            if fields is None:
                break
            state = LogState.restored(fields) if state is None else state.after(fields)
            if state.seq >= seq:
                break
        if state is not None and state.seq <= seq:
            return state if state.seq == seq else None
    return None


def settle(data_dir: Path, state: LogState, disk: Disk = DISK) -> None:
    """Finish or remove what a crash left unfinished. state: according to the journal's durable
    lines."""
    finish_replacements(data_dir, state, disk)
    sweep(data_dir, state, disk)


def _read(path: Path) -> LogState | None:
    """Read the state after the good lines of a journal file, None if not even the first is
    complete."""
    # Only the last line can be torn by a crash; damage before it is not one.
    state: LogState | None = None
    lines = read_lines(path)
    for number, (_, fields) in enumerate(lines, 1):
        if fields is None:
            if next(lines, None) is not None:
                raise JournalError(
                    f"{path} is damaged in line {number}, before its last line.",
                    "restore the data_dir from a backup; do not edit the journal.",
                )
            logger.warning(
                "torn_line_dropped",
                file=path.name,
                line=number,
                meaning="a crash interrupted this commit; its events are read again",
            )
            break
        state = LogState.restored(fields) if state is None else state.after(fields)
    return state


def replacement(path: Path, revision: int) -> Path:
    """The path at which commit `revision` writes the new version of `path`, until its line is
    durable."""
    return path.with_name(f"{path.name}{REPLACEMENT}{revision}")


def open_appended(data_dir: Path, state: LogState, disk: Disk) -> dict[str, int]:
    """Open the append-only files, and truncate them to their committed ends. Returns: descriptors
    by path. Raises: DataDirectoryError if one is too short."""
    files: dict[str, int] = {}
    for name in APPENDED:
        committed = state.files.get(name, NOTHING).num_bytes
        fd = disk.open(data_dir / name, os.O_RDWR | os.O_CREAT)
        if os.fstat(fd).st_size < committed:
            disk.close(fd)
            raise DataDirectoryError(
                f"{name} is shorter than the journal says.", "restore it from a backup."
            )
        # Bytes after the committed end are of a commit without a line.
        disk.truncate(fd, committed)
        disk.sync(fd)
        files[name] = fd
        disk.sync_folder((data_dir / name).parent)
    return files


def finish_replacements(data_dir: Path, state: LogState, disk: Disk) -> None:
    """Rename every replacement whose commit is in the journal onto the file it replaces. Recovery
    repeats this, for a crash between line and rename."""
    named = {s.path: s.revision for s in state.segments if not s.rows_per_set} | {
        p: f.revision for p, f in state.files.items()
    }
    for path, revision in named.items():
        scratch = replacement(data_dir / path, revision)
        if revision and scratch.exists():
            disk.replace(scratch, data_dir / path)
            disk.sync_folder(scratch.parent)


def sweep(data_dir: Path, state: LogState, disk: Disk) -> None:
    """Unlink segments that the journal does not name, and replacements without a commit."""
    # Segments, replacements of any file, and journal files without a complete first line.
    named = {s.path for s in state.segments}
    strays = [p for p in (data_dir / EDGES).glob("*.tguf") if f"{EDGES}/{p.name}" not in named]
    for folder in {Path(p).parent for p in (*APPENDED, f"{EDGES}/x")}:
        strays += (data_dir / folder).glob(f"*{REPLACEMENT}*")
    strays += (data_dir / "journal").glob(f"*{SCRATCH}")
    for path in strays:
        disk.unlink(path)
    for path in (data_dir / EDGE_FOLDERS).glob("[0-9]*"):
        if f"{EDGE_FOLDERS}/{path.name}" not in named:
            disk.remove_folder(path)


def drop_journals(data_dir: Path, state: LogState, disk: Disk) -> Iterator[None]:
    """Unlink the oldest journal files, up to the first with rows of an existing segment; one per
    step, because reading a file of FILE_LINES lines takes half a second."""
    # The newest file stays: its checkpoint is the state.
    named = {s.path for s in state.segments}
    for path in journal_files(data_dir / "journal")[:-1]:
        changes = (
            c for _, line in read_lines(path) if line and "seq" in line for c in line["files"]
        )
        if any(c["path"] in named for c in changes):
            return
        disk.unlink(path)
        yield


def lock_directory(
    path: Path,
    action: str = "stop that process or set another data_dir.",
    wait_seconds: float = 0.0,
) -> int:
    """Lock a directory for this process, until the returned descriptor is closed.

    Args: path: the lock file; action: for the operator, if another process has the lock;
    wait_seconds: longest wait for that process. Raises: LockedError naming the owner;
    DataDirectoryError if the volume has no locks.
    """
    fd = _open_lock(path)
    deadline = time.monotonic() + wait_seconds
    try:
        while not _try_to_lock(fd, is_last=time.monotonic() >= deadline):
            time.sleep(LOCK_POLL_SECONDS)
        # The process that had the lock may have removed the file with its log.
        while not _is_at(fd, path):
            os.close(fd)
            fd = _open_lock(path)
            _try_to_lock(fd, is_last=True)
    except BlockingIOError:
        owner = os.pread(fd, MAX_OWNER_BYTES, 0).decode(errors="replace").strip()
        os.close(fd)
        raise LockedError(f"{path.parent} is being written by process {owner}.", action) from None
    except OSError as error:
        os.close(fd)
        raise DataDirectoryError(
            f"{path.parent} is on a volume that gives no locks (flock): {error}.",
            "set a data_dir on a local or block volume.",
        ) from error
    # In containers every process id is 1, so name the owner by host and command too.
    owner = f"{os.getpid()} on {socket.gethostname()} ({_command(sys.argv[1:])})"
    os.ftruncate(fd, 0)
    DISK.write(fd, owner.encode()[:MAX_OWNER_BYTES], 0)
    return fd


def _open_lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file still has this path."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _try_to_lock(fd: int, is_last: bool) -> bool:
    """Lock a file. Returns: False if another process has the lock. Raises: BlockingIOError instead
    at the last attempt; OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if is_last:
            raise
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a directory, or the volume has no locks. path: the lock
    file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    # A shared lock, so that two who ask at once do not find each other.
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _command(words: list[str]) -> str:
    """The subcommand, of `run` with its role, but no argument of a user: the lock file remains, and
    arguments may be keys to erase, paths or passwords."""
    return " ".join(words[:3] if words[:2] == ["run", "--role"] else words[:1])
