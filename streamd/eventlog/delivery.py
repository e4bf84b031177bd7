"""Waits until the outbox is in the log, and commits it if no process has the log open."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from streamd.errors import LockedError, StreamdError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.commits import Commits
from streamd.eventlog.journal.changelog_position import CHANGELOG
from streamd.eventlog.log_files import LogFiles, nothing
from streamd.events import Schema
from streamd.storage import DISK, Disk

logger = structlog.get_logger()
POLL_SECONDS = 0.005
"""Interval of checks whether ingest has taken the outbox, which takes some milliseconds."""
TRY_SECONDS = 0.25
"""Interval of attempts to open the log: each would refuse another process that opens it just
then."""


def keeps_learned_lines(data_dir: Path) -> bool:
    """Whether learned lines go into the log of this directory: it has a log, and no changelog. With
    a changelog the models topic has them."""
    return (data_dir / "published").exists() and not (data_dir / CHANGELOG).exists()


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for ingest to take the outbox. seconds: at most. on_wait: called meanwhile."""

    seconds: float = 5.0
    on_wait: Callable[[], None] = nothing


WAIT = Wait()


def deliver(data_dir: Path, wait: Wait = WAIT, disk: Disk = DISK) -> bool:
    """Wait until readers see the lines of the outbox. Returns: False if they are still on their way
    after the longest wait."""
    begun = time.monotonic()
    tried = begun - TRY_SECONDS
    error = None
    while not outbox.is_empty(data_dir):
        now = time.monotonic()
        # Without ingest no other process commits: try it at once, and again now and then.
        if now - tried >= TRY_SECONDS:
            tried = now
            found = _try_to_commit(data_dir, disk)
            if found is not None and error is None:
                logger.error("outbox_waits", error=str(found), meaning="it is tried again")
            error = found
        elif now - begun >= wait.seconds:
            return False
        else:
            wait.on_wait()
            time.sleep(POLL_SECONDS)
    return True


def _try_to_commit(data_dir: Path, disk: Disk) -> StreamdError | None:
    """Commit the outbox if no process has the log open. Returns: the error, such as a full disk."""
    try:
        commit_alone(data_dir, disk)
    except StreamdError as error:
        return error
    return None


def commit_alone(data_dir: Path, disk: Disk = DISK) -> bool:
    """Commit the outbox if no process has the log open, and it has no changelog, to which only its
    leader appends. Returns: whether it did. Raises: JournalError, CorruptionError,
    DataDirectoryError, DiskError."""
    if (data_dir / CHANGELOG).exists():
        return False
    try:
        files = LogFiles(data_dir, Schema(), disk, lock_seconds=0.0)
    except LockedError:
        return False
    try:
        outbox.OutboxCommits(files, Commits(files, None)).commit()
    finally:
        files.close()
    return True
