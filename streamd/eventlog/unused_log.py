"""Removes a log that a failed command created and never committed to."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamd.errors import StreamdError
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.recovery import lock_directory

LOCK = "lock"


@contextmanager
def remove_unused_log(data_dir: Path) -> Iterator[None]:
    """Run a block that opens a log and closes it. If the block created the log, and fails before
    the first commit, nothing of the log is left.

    A refused import could otherwise not be repeated with other widths, which a log never changes.
    """
    if (data_dir / "published").exists():
        yield
        return
    new_folders = [folder for folder in (data_dir, *data_dir.parents) if not folder.exists()]
    others = {path.name for path in data_dir.iterdir()} if data_dir.exists() else set()
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        # Of two errors, the first is the one to show.
        with suppress(OSError, StreamdError):
            if has_failed:
                _remove(data_dir, others)
                for folder in new_folders:
                    folder.rmdir()


def _remove(data_dir: Path, others: set[str]) -> None:
    """Remove the log of a directory if it has no commit, except `others`, which were there before.

    Raises: LockedError if another process writes it by now; OSError.
    """
    if not data_dir.exists():
        return
    lock = lock_directory(data_dir / LOCK)
    try:
        tail = JournalTail.open(data_dir)
        if tail is not None and tail.state.seq:
            return
        # The lock goes last, so that another process that creates a log waits until then.
        names = sorted(path.name for path in data_dir.iterdir() if path.name not in others)
        for name in sorted(names, key=LOCK.__eq__):
            path = data_dir / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        os.close(lock)
