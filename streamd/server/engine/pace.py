"""Divides the time of the server's loop between following the log and answering.

Following the log comes first and has a limited share of the time. So answers stay fresh under
overload, and stay fast while the server catches up after a stall.
"""

import asyncio
import time

TURN_SECONDS = 0.01
"""Time of one slice of work. A health check waits for a few slices, and should be answered within
0.1 s."""
BACKLOG_SECONDS = 0.03
"""Time of a following slice while there is a backlog of events."""
BACKLOG_SHARE = 2 / 3
"""Share of the loop's time for the log while there is a backlog. In the remaining time the server
answers from its present graph, facts and memory; each answer reports their position."""
STARTING_SECONDS = 0.1
"""Time of one slice while only health checks are answered."""
HTTP_TURNS = 3
"""Turns of the event loop for HTTP between two slices of the engine's work: about as many as a new
request needs to reach the queue, or a health check to be answered."""


class Pace:
    """Measures the turns of the loop: in each, the engine follows the log and then answers. Owner:
    the engine."""

    def __init__(self) -> None:
        self._ended = time.monotonic()
        self._has_backlog = False

    def begin(self, answering: bool) -> float:
        """Begin a turn, which first follows the log. answering: whether the server is ready.

        Returns: monotonic seconds at which this turn must switch to answering.
        """
        now = time.monotonic()
        if not answering:
            return now + STARTING_SECONDS
        if not self._has_backlog:
            return now + TURN_SECONDS
        share = (now - self._ended) * BACKLOG_SHARE / (1 - BACKLOG_SHARE)
        return now + min(max(share, TURN_SECONDS), BACKLOG_SECONDS)

    def end(self, has_backlog: bool) -> None:
        """Record that this turn has followed the log. has_backlog: whether the log has more."""
        self._ended = time.monotonic()
        self._has_backlog = has_backlog


async def let_http_run() -> None:
    """Yield to the event loop, so that HTTP can receive, parse and write."""
    for _ in range(HTTP_TURNS):
        await asyncio.sleep(0)
