"""The pace of the server's loop: how its time is divided between following the log and answering.

Following comes first and never takes more than its share, so that neither starves the other: under
too many requests the answers stay fresh, and after a stall, with much to catch up on, they stay
quick.
"""

import asyncio
import time

TURN_SECONDS = 0.01
"""Time for one slice of work, following or answering: a health check passes through a few of them,
and is to be answered within 0.1 s."""
BEHIND_SECONDS = 0.03
"""The same for following a log that the server is behind."""
BEHIND_SHARE = 2 / 3
"""Share of the loop's time for following while the server is behind. The rest answers: by graph,
facts and memory as they are, which each answer says."""
STARTING_SECONDS = 0.1
"""The same while nothing is answered but health checks."""
HTTP_TURNS = 3
"""Turns of the event loop that HTTP gets between two slices of the engine's work: about so many
pass from a request's arrival until it waits for its answer, or until a health check is answered."""


class Pace:
    """Measures the loop's turns. Owner: the engine."""

    def __init__(self) -> None:
        self._ended = time.monotonic()
        self._behind = False

    def begin(self, answering: bool) -> float:
        """Begin to follow the log. answering: whether requests are answered already.

        Returns: monotonic time, in seconds, at which this turn should go over to answering.
        """
        now = time.monotonic()
        if not answering:
            return now + STARTING_SECONDS
        if not self._behind:
            return now + TURN_SECONDS
        share = (now - self._ended) * BEHIND_SHARE / (1 - BEHIND_SHARE)
        return now + min(max(share, TURN_SECONDS), BEHIND_SECONDS)

    def end(self, behind: bool) -> None:
        """Note that this turn's following is done. behind: whether it left something to follow."""
        self._ended = time.monotonic()
        self._behind = behind


async def let_http_run() -> None:
    """Let HTTP receive, parse and write for some turns of the event loop."""
    for _ in range(HTTP_TURNS):
        await asyncio.sleep(0)
