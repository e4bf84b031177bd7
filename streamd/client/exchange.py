"""One call from its first try to its answer, without I/O: the bytes to send, and the next step
after each answer or failure. Both transports drive it."""

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec

from streamd.client.answers import EventsResponse
from streamd.client.calls import Call
from streamd.client.errors import (
    BadAnswer,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    TryAgain,
    problem_class,
)
from streamd.client.positions import MAX_TOKENS, Positions

T = TypeVar("T")
NEVER_DONE = 429
"""Status of what was not even begun, so that anything may be sent again."""
DETAIL_CHARACTERS = 500
"""Characters of an answer that is no problem document, as an error repeats them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """The number of tries of a call and the waits between them.

    most: tries after the first. base_seconds, longest_seconds: the wait before try n is drawn
    evenly from 0 to min(longest, base * 2**n) ("full jitter", Brooker 2015), and is added to the
    seconds of Retry-After.
    """

    most: int = 5
    base_seconds: float = 0.1
    longest_seconds: float = 5.0

    def wait_seconds(self, number: int, draw: Callable[[], float]) -> float:
        """Seconds before a try. number: of the tries that failed. draw: a number from [0, 1)."""
        longest = min(self.longest_seconds, self.base_seconds * 2.0 ** min(number, 30))
        return longest * draw()


@dataclass(frozen=True, slots=True)
class Again:
    """Send the request again after some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The answer of the call."""

    answer: T


class Exchange(Generic[T]):
    """A call that is not finished. Owner: the function of the transport that sends it."""

    def __init__(
        self,
        call: Call[T],
        *,
        headers: Mapping[str, str],
        positions: Positions | None,
        timeout: float,
        retries: Retries,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """positions: None if the client does not read its own writes. timeout: seconds for all
        tries and waits together."""
        self.call = call
        self._positions = positions
        self._retries = retries
        self._draw = draw
        self._clock = clock
        self._timeout = timeout
        self._until = clock() + timeout
        self._num_failed = 0
        self._last: ClientError | None = None

        # The headers stay the same over all tries.
        self._after = positions.header if positions is not None and call.sees_log else ""
        if self._after.count(",") >= MAX_TOKENS:
            raise ClientError(
                f"the client wrote to more than {MAX_TOKENS} partitions since its last answer; "
                "wait for some of them by a call of its own, or forget_writes()"
            )
        self.headers = dict(headers)
        if call.content is not None:
            self.headers["content-type"] = "application/json"
        if self._after:
            self.headers["streamd-after"] = self._after
        if call.max_lag_seconds is not None:
            self.headers["streamd-max-lag"] = f"{call.max_lag_seconds:.9g}"

    @property
    def seconds_left(self) -> float:
        """Seconds until the call's deadline. Raises: DeadlineExceeded after it."""
        left = self._until - self._clock()
        if left <= 0:
            raise self.too_late(sent=self._num_failed > 0)
        return left

    def too_late(self, sent: bool) -> DeadlineExceeded:
        """The error of a call whose time is up. sent: whether the request may have arrived."""
        happened = (sent or self._num_failed > 0) and not self.call.idempotent
        error = DeadlineExceeded(
            f"{self.call.method} {self.call.path} took longer than {self._timeout:g} s"
            + (f"; the last try: {self._last}" if self._last else ""),
            happened,
        )
        error.__cause__ = self._last
        return error

    def broke(self, error: Exception, sent: bool) -> Again:
        """The next step after a connection failed. sent: whether the request may have arrived.

        Raises: ConnectionFailed, DeadlineExceeded.
        """
        happened = sent and not self.call.idempotent
        words = str(error) or type(error).__name__
        failed = ConnectionFailed(f"{self.call.method} {self.call.path}: {words}", happened)
        failed.__cause__ = error
        return self._again(failed, may_repeat=self.call.idempotent or not sent)

    def came(self, status: int, headers: Mapping[str, str], content: bytes) -> Done[T] | Again:
        """The next step after an answer.

        Raises: Problem, BadAnswer, DeadlineExceeded.
        """
        if 200 <= status < 300:
            return Done(self._answer(status, headers, content))
        problem = self._problem(status, headers, content)
        if not isinstance(problem, TryAgain):
            raise problem
        return self._again(
            problem,
            may_repeat=self.call.idempotent or status == NEVER_DONE,
            at_least=problem.retry_after or 0.0,
        )

    def _again(self, error: ClientError, may_repeat: bool, at_least: float = 0.0) -> Again:
        """The wait before the next try. Raises: the error itself if no try is left."""
        self._last = error
        if not may_repeat or self._num_failed >= self._retries.most:
            raise error
        wait = at_least + self._retries.wait_seconds(self._num_failed, self._draw)
        self._num_failed += 1
        if self._clock() + wait >= self._until:
            # Fail now rather than wait for a try that comes after the deadline.
            raise error
        return Again(wait)

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        kind = self.call.answer
        if status == HTTPStatus.ACCEPTED and self.call.accepted is not None:
            kind = self.call.accepted
        try:
            answer = msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"{self.call.method} {self.call.path}: {error}") from error

        # Keep the positions of writes, and those that the answer had seen.
        if self._positions is not None:
            if isinstance(answer, EventsResponse) and answer.after:
                self._positions.wrote(answer.after)
            if self._after and "streamd-position" in headers:
                self._positions.saw(self._after, headers["streamd-position"])
        return answer

    def _problem(self, status: int, headers: Mapping[str, str], content: bytes) -> Any:
        """The error in an answer."""
        try:
            told = msgspec.json.decode(content)
        except msgspec.DecodeError:
            told = None
        if not isinstance(told, dict):
            # Not in streamd's format: a proxy's page, or a refusal before the request was read.
            told = {"detail": content[:DETAIL_CHARACTERS].decode("utf-8", "replace").strip()}
        kind = str(told.get("type", "about:blank"))
        return problem_class(status, kind)(
            status=status,
            title=str(told.get("title") or _phrase(status)),
            detail=str(told.get("detail", told)),
            type=kind,
            request_id=headers.get("x-request-id"),
            retry_after=_seconds(headers.get("retry-after")),
        )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def _seconds(retry_after: str | None) -> float | None:
    """The seconds of a Retry-After header, given as a number or as a date (RFC 9110, section
    10.2.3)."""
    if retry_after is None:
        return None
    # The header may hold any text: a number larger than any float, a date beyond the calendar.
    try:
        return max(0.0, float(int(retry_after)))
    except OverflowError:
        return math.inf
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
