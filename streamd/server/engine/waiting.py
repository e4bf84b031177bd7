"""Requests wait here until the server's view has what they ask for, beside the engine's queue."""

import asyncio
import time

from streamd.eventlog.journal.journal import LogState
from streamd.server.engine.conditions import Token
from streamd.serving.requests import NotReached, Overloaded


class WaitingRequests:
    """The requests that wait for a commit. Owner: the event loop's thread.

    They are not in the engine's queue meanwhile, so that nobody waits behind them.
    """

    def __init__(self, limit: int) -> None:
        """limit: most requests that may wait."""
        self._limit = limit
        self._waiters: dict[asyncio.Future[None], list[Token]] = {}
        """What each of them still waits for."""
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def reach(self, tokens: tuple[Token, ...], state: LogState, deadline: float) -> None:
        """Wait until the view has all tokens.

        state: of the log, as the view has it now. deadline: seconds of the monotonic clock.
        Raises: Overloaded where too many wait; NotReached at the deadline, or where the server ends
        before.
        """
        left = _left([*tokens], state)
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
            del self._waiters[future]

    def end(self) -> None:
        """Let all go without what they wait for, and nobody wait any more: the server ends."""
        self._ended = True
        for future, left in self._waiters.items():
            if not future.done():
                future.set_exception(_ends_before(left))

    def release(self, state: LogState) -> None:
        """Release the requests whose tokens a newer state of the view has."""
        for future, left in self._waiters.items():
            if not future.done() and not _left(left, state):
                future.set_result(None)


def _ends_before(left: list[Token]) -> NotReached:
    return NotReached(f"the server ends, and the log has not reached {left[-1]}")


def _left(tokens: list[Token], state: LogState) -> list[Token]:
    """Take tokens from the end of a list while a state has them: what was reached once stays so,
    and one look at each commit is enough for a request that waits for many. Returns: the list."""
    while tokens and tokens[-1].is_in(state):
        tokens.pop()
    return tokens
