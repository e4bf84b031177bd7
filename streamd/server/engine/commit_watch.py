"""Tells the engine at once that ingest has shown a commit, where the system can (inotify)."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

logger = structlog.get_logger()
MAX_NOTICES = 64 * 1024
"""Bytes of notices read at once: thousands of commits."""


class CommitWatch:
    """Watches the file `published`, which each commit writes. Owner: the engine's event loop.

    It only shortens a wait: the engine looks at the log in any case, since writes of another
    machine to a shared file system give no notice.
    """

    def __init__(self, data_dir: Path, on_commit: Callable[[], None]) -> None:
        """on_commit: called from the running event loop after one commit or several.

        Raises: OSError where the system cannot watch.
        """
        # Of Linux only, and so is the library.
        from inotify_simple import INotify, flags

        self._on_commit = on_commit
        self._notices = INotify(nonblocking=True)
        try:
            self._notices.add_watch(data_dir / "published", flags.MODIFY)
        except OSError:
            self._notices.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._notices.fileno(), self._noticed)

    @classmethod
    def begin(cls, data_dir: Path, on_commit: Callable[[], None]) -> "CommitWatch | None":
        """Watch a log's commits; None, with a reason in the log, where the system cannot."""
        try:
            if sys.platform != "linux":
                raise OSError("there is no inotify here")
            return cls(data_dir, on_commit)
        except OSError as error:
            logger.warning(
                "commits_not_watched",
                error=str(error),
                meaning="an event is seen in answers up to 10 ms later",
            )
            return None

    def close(self) -> None:
        """Stop watching."""
        self._loop.remove_reader(self._notices.fileno())
        self._notices.close()

    def _noticed(self) -> None:
        # What a notice says does not matter, only that there is one.
        os.read(self._notices.fileno(), MAX_NOTICES)
        self._on_commit()
