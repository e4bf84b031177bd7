"""Wakes the engine at each commit, by inotify on Linux."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import structlog

logger = structlog.get_logger()
MAX_NOTICES = 64 * 1024
"""Bytes read from inotify at once: notices of thousands of commits."""


@contextmanager
def watch_commits(data_dir: Path, on_commit: Callable[[], None]) -> Iterator[bool]:
    """Watch the file `published`, which each commit writes, in the running event loop.

    A notice only shortens a pause of the engine. The engine polls the log in any case, since writes
    of another machine to a shared file system give no notice.

    on_commit: called after one or more commits. Yields: whether the system gives notices; if not,
    the reason is logged.
    """
    try:
        notices = _open_notices(data_dir / "published")
    except OSError as error:
        logger.warning(
            "commits_not_watched",
            error=str(error),
            meaning="the log is polled instead: answers have an event up to 10 ms later",
        )
        yield False
        return

    def read() -> None:
        # Drain the notices; their content does not matter.
        os.read(notices.fileno(), MAX_NOTICES)
        on_commit()

    loop = asyncio.get_running_loop()
    loop.add_reader(notices.fileno(), read)
    try:
        yield True
    finally:
        loop.remove_reader(notices.fileno())
        notices.close()


def _open_notices(path: Path) -> FileIO:
    """Register for a notice of each change of a file. Returns: the stream of notices, which never
    blocks. Raises: OSError if the system has no inotify or refuses it."""
    if sys.platform != "linux":
        raise OSError("this system has no inotify")
    from inotify_simple import INotify, flags

    notices: FileIO = INotify(nonblocking=True)
    try:
        notices.add_watch(path, flags.MODIFY)  # type: ignore[attr-defined]
    except OSError:
        notices.close()
        raise
    return notices
