"""Divides the time of the server's loop between following the log and answering.

Following comes first but is limited to a share, so that neither starves the other: answers stay
fresh under overload, and stay fast while the server catches up after a stall.
"""

import asyncio
import time

TURN_SECONDS = 0.01
"""Time of one slice of work, following or answering: a health check waits for a few of them, and
should be answered within 0.1 s."""
BACKLOG_SECONDS = 0.03
"""Time of a following slice while there is a backlog of events."""
BACKLOG_SHARE = 2 / 3
"""Share of the loop's time for following while there is a backlog. In the remaining time the server
answers from its present graph, facts and memory; each answer reports their positions."""
STARTING_SECONDS = 0.1
"""Time of one slice while only health checks are answered."""
HTTP_TURNS = 3
"""Turns of the event loop for HTTP between two slices of the engine's work: about as many as a new
request needs to reach the queue, or a health check to be answered."""


class Pace:
    """Measures the loop's turns. Owner: the engine."""

    def __init__(self) -> None:
        self._ended = time.monotonic()
        self._has_backlog = False

    def begin(self, answering: bool) -> float:
        """Start to follow the log. answering: whether requests are answered already.

        Returns: monotonic time in seconds at which this turn should switch to answering.
        """
        now = time.monotonic()
        if not answering:
            return now + STARTING_SECONDS
        if not self._has_backlog:
            return now + TURN_SECONDS
        share = (now - self._ended) * BACKLOG_SHARE / (1 - BACKLOG_SHARE)
        return now + min(max(share, TURN_SECONDS), BACKLOG_SECONDS)

    def end(self, has_backlog: bool) -> None:
        """Record the end of this turn's following. has_backlog: whether the next turn should
        follow the log again at once."""
        self._ended = time.monotonic()
        self._has_backlog = has_backlog


async def let_http_run() -> None:
    """Give HTTP some turns of the event loop to receive, parse and write."""
    for _ in range(HTTP_TURNS):
        await asyncio.sleep(0)
