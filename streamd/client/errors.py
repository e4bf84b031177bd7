"""The errors of a client.

ClientError
|-- ConnectionFailed     no answer: the server is unreachable, or closed the connection
|-- DeadlineExceeded     the call took longer than `timeout`; also a TimeoutError
|-- BadAnswer            the answer does not follow this API
`-- Problem              the server answered with an error
    |-- Refused          400, 405, 408, 411, 413, 422: the request is wrong
    |-- NotAllowed       401, 403: a key is needed, or another one
    |-- NotFound         404
    |-- NotPossible      409: not possible now
    `-- TryAgain         429, 502, 503, 504: a temporary state
        |-- TooOld       the answer would be older than the call allows
        `-- NotReached   the log did not reach the client's own writes in time
"""


class ClientError(Exception):
    """The base of all errors of a client.

    may_have_happened: whether the server may have executed the call. False if the client did not
    send the request, or the server refused it.
    """

    may_have_happened = False


class ConnectionFailed(ClientError):
    """The server is unreachable, or closed the connection before it answered."""

    def __init__(self, message: str, may_have_happened: bool) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class DeadlineExceeded(ClientError, TimeoutError):
    """The call took longer than `timeout`. `__cause__` is the error of the last try, if one failed
    before."""

    def __init__(self, message: str, may_have_happened: bool) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class BadAnswer(ClientError):
    """The server's answer does not follow this API: no JSON, or other fields."""

    may_have_happened = True


class Problem(ClientError):
    """An error of the server, as RFC 9457 defines it.

    Args:
        status: int, of HTTP.
        title: str, the status in words.
        detail: str, the fault and its reason.
        type: str, a URI; "about:blank" if the status alone identifies the error.
        request_id: str, the request's id in the server's log. Default None.
        retry_after: float, seconds until the next try, if the server names them. Default None.
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
        # The server may have done part of the work before the error.
        self.may_have_happened = status >= 500


class Refused(Problem):
    """The request is wrong; the server would refuse it again."""


class NotAllowed(Problem):
    """An API key is required, or another one."""


class NotFound(Problem):
    """The version, request or trial does not exist, or the model has no embeddings or labels."""


class NotPossible(Problem):
    """Not possible now, such as a rollback without an older version."""


class TryAgain(Problem):
    """A temporary state: too many requests wait, or the server is not ready."""


class TooOld(TryAgain):
    """The answer would be older than `max_lag_seconds`."""


class NotReached(TryAgain):
    """The log did not reach the client's own writes in time."""


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
    """The class of a problem by its status, and by its type if that is more precise."""
    fallback = Refused if 400 <= status < 500 else Problem
    return BY_TYPE.get(kind) or BY_STATUS.get(status, fallback)
