"""Requests that wait, outside of the engine's queue, until the graph includes a position."""

import asyncio
import time

from streamd.eventlog.journal.journal import LogState
from streamd.server.engine.conditions import Token
from streamd.serving.requests import NotReached, Overloaded


class WaitingRequests:
    """The requests that wait for a commit. In the engine's queue they would delay other requests.
    Owner: the event loop's thread."""

    def __init__(self, limit: int) -> None:
        """limit: maximum number of requests that may wait."""
        self._limit = limit
        self._waiters: dict[asyncio.Future[None], list[Token]] = {}
        """Future of a request -> the positions that it still waits for."""
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def reach(self, tokens: tuple[Token, ...], state: LogState, deadline: float) -> None:
        """Wait until the graph includes all tokens.

        state: of the log, as the graph has it now. deadline: monotonic seconds. Raises: Overloaded
        if too many requests wait; NotReached at the deadline, or when the server ends.
        """
        left = _drop_reached([*tokens], state)
        # Before the limit is checked: a request that need not wait is never refused.
        if not left:
            return
        if self._ended:
            raise _ends_before(left)
        if len(self._waiters) >= self._limit:
            raise Overloaded(f"{self._limit} requests wait for a commit (server.max_queue)")

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[future] = left
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await future
        except TimeoutError:
            raise NotReached(f"the log did not reach {left[-1]} in time") from None
        finally:
            # This also runs if the client disconnects, which cancels the task.
            del self._waiters[future]

    def end(self) -> None:
        """End all present and later waits with NotReached, because the server ends."""
        self._ended = True
        for future, left in self._waiters.items():
            if not future.done():
                future.set_exception(_ends_before(left))

    def release(self, state: LogState) -> None:
        """Release the requests that need no later position than `state`, a state of the log that
        the graph has completely."""
        for future, left in self._waiters.items():
            if not future.done() and not _drop_reached(left, state):
                future.set_result(None)


def _ends_before(left: list[Token]) -> NotReached:
    return NotReached(f"the server stops before the log has reached {left[-1]}")


def _drop_reached(tokens: list[Token], state: LogState) -> list[Token]:
    """Remove the last token of a list while a state includes it. Returns: the list.

    A reached token need not be checked again, so a request with many tokens checks few of them at
    each commit.
    """
    while tokens and tokens[-1].is_in(state):
        tokens.pop()
    return tokens
