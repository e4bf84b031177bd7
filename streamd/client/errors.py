"""Every error a client raises on purpose.

ClientError
|-- ConnectionFailed     no answer came: the server cannot be reached, or broke off
|-- DeadlineExceeded     the call's time ran out; also a TimeoutError
|-- BadAnswer            what came is no answer of this API
`-- Problem              the server answered with an error
    |-- Refused          400, 405, 408, 411, 413, 422: the request does not fit
    |-- NotAllowed       401, 403: a key is needed, or another one
    |-- NotFound         404
    |-- NotPossible      409: not possible now
    `-- TryAgain         429, 502, 503, 504: it passes by itself
        |-- TooOld       the answer would be older than the call allows
        `-- NotReached   the log did not come to what the call must have seen
"""


class ClientError(Exception):
    """The root of all errors of a client.

    may_have_happened: whether the server may have done what was asked. False where the request was
    not sent, or was refused.
    """

    may_have_happened = False


class ConnectionFailed(ClientError):
    """No answer came."""

    def __init__(self, message: str, may_have_happened: bool) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class DeadlineExceeded(ClientError, TimeoutError):
    """The call's time ran out. Its `__cause__` says what the last try failed by, where it failed
    before."""

    def __init__(self, message: str, may_have_happened: bool) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class BadAnswer(ClientError):
    """The server's answer is not what this API promises: no JSON, or other fields."""

    may_have_happened = True


class Problem(ClientError):
    """An error that the server answered with, as RFC 9457 has it.

    type: a URI, "about:blank" where the status says all. title: the status in words. detail: what
    and why. request_id: names the request in the server's log. retry_after: seconds, None where the
    server does not say.
    """

    def __init__(
        self,
        *,
        status: int,
        title: str,
        detail: str,
        type: str = "about:blank",
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.type = type
        self.request_id = request_id
        self.retry_after = retry_after
        # An error of the server may come when part of the work is done.
        self.may_have_happened = status >= 500


class Refused(Problem):
    """The request does not fit; it would be refused again."""


class NotAllowed(Problem):
    """A key is needed, or another one."""


class NotFound(Problem):
    """What was asked for does not exist, or the version does not predict it."""


class NotPossible(Problem):
    """Not possible now, such as a rollback without an older version."""


class TryAgain(Problem):
    """It passes by itself: too many requests wait, or the server is not ready."""


class TooOld(TryAgain):
    """The answer would be older than `max_lag_seconds`."""


class NotReached(TryAgain):
    """The log did not come to the client's own writes in time."""


BY_STATUS: dict[int, type[Problem]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: NotPossible,
    429: TryAgain,
    502: TryAgain,
    503: TryAgain,
    504: TryAgain,
}
BY_TYPE: dict[str, type[Problem]] = {
    "urn:streamd:answer-too-old": TooOld,
    "urn:streamd:position-not-reached": NotReached,
}


def problem_class(status: int, kind: str) -> type[Problem]:
    """The class of a problem by its status, and by its type where that says more."""
    fallback = Refused if 400 <= status < 500 else Problem
    return BY_TYPE.get(kind) or BY_STATUS.get(status, fallback)
