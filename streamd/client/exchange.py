"""The retries of one call, without I/O: the headers to send, and after each answer or failure the
decision to return, raise or try again. Both clients use it."""

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
NOT_BEGUN = 429
"""Status of a request that the server refused before it began to execute it: any call may be
repeated."""
DETAIL_CHARACTERS = 500
"""Maximum number of characters that an error repeats of an answer that is no problem document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """The number of tries of a call and the waits between them.

    The wait after n failed tries is drawn uniformly from [0, min(longest_seconds, base_seconds *
    2**n)) ("full jitter", Brooker 2015); the seconds of Retry-After are added.

    Args:
        most: int, maximum number of tries after the first. Default 5.
        base_seconds: float. Default 0.1.
        longest_seconds: float. Default 5.
    """

    most: int = 5
    base_seconds: float = 0.1
    longest_seconds: float = 5.0

    def wait_seconds(self, number: int, draw: Callable[[], float]) -> float:
        """Seconds before the next try. number: of failed tries. draw: returns a number from
        [0, 1)."""
        longest = min(self.longest_seconds, self.base_seconds * 2.0 ** min(number, 30))
        return longest * draw()


@dataclass(frozen=True, slots=True)
class Retry:
    """Decision to send the request again after some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Decision to return the answer of the call."""

    answer: T


class Exchange(Generic[T]):
    """One call in progress. Owner: the client's function that sends it."""

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
        """positions: of this client's writes; None if answers need not include them. timeout:
        seconds for all tries and waits together. draw: returns a number from [0, 1). clock:
        monotonic seconds. Raises: ClientError if there are too many positions for one request."""
        self.call = call
        self._positions = positions
        self._retries = retries
        self._draw = draw
        self._clock = clock
        self._timeout = timeout
        self._until = clock() + timeout
        self._num_failed = 0
        self._last: ClientError | None = None

        # All tries have the same headers: retries must include the writes that the first try did.
        self._after = positions.header if positions is not None and call.sees_log else ""
        if self._after.count(",") >= MAX_TOKENS:
            raise ClientError(
                f"the client wrote to more than {MAX_TOKENS} partitions since its last answer; "
                "make a call that reads the log before further writes, or forget_writes()"
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
            raise self.deadline_error(sent=self._num_failed > 0)
        return left

    def deadline_error(self, sent: bool) -> DeadlineExceeded:
        """The error of a call that took too long. sent: whether the server may have got the
        request."""
        happened = (sent or self._num_failed > 0) and not self.call.idempotent
        error = DeadlineExceeded(
            f"{self.call.method} {self.call.path} took longer than {self._timeout:g} s"
            + (f"; the last try: {self._last}" if self._last else ""),
            happened,
        )
        error.__cause__ = self._last
        return error

    def on_failure(self, error: Exception, sent: bool) -> Retry:
        """Decide about a retry after a connection failed. sent: whether the server may have got the
        request.

        Raises: ConnectionFailed, DeadlineExceeded.
        """
        happened = sent and not self.call.idempotent
        words = str(error) or type(error).__name__
        failed = ConnectionFailed(f"{self.call.method} {self.call.path}: {words}", happened)
        failed.__cause__ = error
        return self._again(failed, may_repeat=self.call.idempotent or not sent)

    def on_answer(self, status: int, headers: Mapping[str, str], content: bytes) -> Done[T] | Retry:
        """Decode an answer, or decide about a retry if it is an error.

        Raises: Problem, BadAnswer, DeadlineExceeded.
        """
        if 200 <= status < 300:
            return Done(self._answer(status, headers, content))
        problem = self._problem(status, headers, content)
        if not isinstance(problem, TryAgain):
            raise problem
        return self._again(
            problem,
            may_repeat=self.call.idempotent or status == NOT_BEGUN,
            at_least=problem.retry_after or 0.0,
        )

    def _again(self, error: ClientError, may_repeat: bool, at_least: float = 0.0) -> Retry:
        """Decide about the next try. at_least: seconds of the wait. Raises: the error itself if the
        call must not be repeated, no try is left, or the next one would come after the deadline."""
        self._last = error
        if not may_repeat or self._num_failed >= self._retries.most:
            raise error
        wait = at_least + self._retries.wait_seconds(self._num_failed, self._draw)
        self._num_failed += 1
        if self._clock() + wait >= self._until:
            # Fail now instead of waiting for a try after the deadline.
            raise error
        return Retry(wait)

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        kind = self.call.answer
        if status == HTTPStatus.ACCEPTED and self.call.accepted is not None:
            kind = self.call.accepted
        try:
            answer = msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"{self.call.method} {self.call.path}: {error}") from error

        # Record the positions of writes, and those that the answer includes.
        if self._positions is not None:
            if isinstance(answer, EventsResponse) and answer.after:
                self._positions.add_writes(answer.after)
            if self._after and "streamd-position" in headers:
                self._positions.confirm(self._after, headers["streamd-position"])
        return answer

    def _problem(self, status: int, headers: Mapping[str, str], content: bytes) -> Any:
        """The error in an answer."""
        try:
            document = msgspec.json.decode(content)
        except msgspec.DecodeError:
            document = None
        if not isinstance(document, dict):
            # Not in streamd's format: a page of a proxy, or a refusal without a JSON body.
            document = {"detail": content[:DETAIL_CHARACTERS].decode("utf-8", "replace").strip()}
        kind = str(document.get("type", "about:blank"))
        return problem_class(status, kind)(
            status=status,
            title=str(document.get("title") or _phrase(status)),
            detail=str(document.get("detail", document)),
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
    # The header may have any text, even a number larger than any float or an impossible date.
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
