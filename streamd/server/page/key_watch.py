"""Suspicious keys among the newest events, for the status page."""

import time
from collections.abc import Callable

from streamd.eventlog.odd_keys import odd_keys_in_log
from streamd.eventlog.reader import LogReader

EVERY_SECONDS = 60.0
"""Minimum interval between two checks of the log."""
NEWEST_EDGES = 20_000
"""Number of newest events that are checked: more would block the event loop, and so all answers,
for longer than some ten milliseconds."""


class OddKeysOnPage:
    """Checks the newest events for suspicious keys at most once a minute, while a page is open.
    Owner: the event loop's thread, which also owns the log's reader.

    log: returns the reader of the log, None before the log exists. prefixes: the key prefixes that
    the sources add.
    """

    def __init__(self, log: Callable[[], LogReader | None], prefixes: frozenset[str]) -> None:
        self._log = log
        self._prefixes = prefixes
        self._due = 0.0
        self._content: list[str] = []

    def content(self) -> list[str]:
        """The findings of the last check, one sentence each."""
        log = self._log()
        if log is not None and time.monotonic() >= self._due:
            found = odd_keys_in_log(log, prefixes=self._prefixes, most=NEWEST_EDGES)
            self._content = found.sentences
            self._due = time.monotonic() + EVERY_SECONDS
        return self._content
