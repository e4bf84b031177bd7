"""Oddities of the newest keys as the status page shows them."""

import time
from collections.abc import Callable

from streamd.eventlog.odd_keys import odd_keys_in_log
from streamd.eventlog.reader import LogReader

EVERY_SECONDS = 60.0
"""Least time between two looks at the log."""
NEWEST_EDGES = 20_000
"""Edges that are looked at: it takes some ten milliseconds, in which no request is answered."""


class OddKeysOnPage:
    """Looks for odd keys at most once a minute, while a page is open. Owner: the event loop's
    thread, which owns the log's reader too.

    log: the reader of the log, None before there is one. prefixes: of the sources.
    """

    def __init__(self, log: Callable[[], LogReader | None], prefixes: frozenset[str]) -> None:
        self._log = log
        self._prefixes = prefixes
        self._due = 0.0
        self._content: list[str] = []

    def content(self) -> list[str]:
        """The oddities as of the last look, a sentence each."""
        log = self._log()
        if log is not None and time.monotonic() >= self._due:
            found = odd_keys_in_log(log, prefixes=self._prefixes, most=NEWEST_EDGES)
            self._content = found.sentences
            self._due = time.monotonic() + EVERY_SECONDS
        return self._content
