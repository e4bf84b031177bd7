"""Errors are answered as RFC 9457 problem details, on `/v2` as the Open Inference Protocol asks."""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from streamd.errors import KafkaError, VersionError
from streamd.server.requests import NotReady, Overloaded

MEDIA_TYPE = "application/problem+json"
AGAIN = {"Retry-After": "1"}
"""Header of errors that pass within a second or so."""


def problem(
    path: str, status: int, detail: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Make the answer to a request for `path` that failed."""
    if path.startswith("/v2/"):
        return JSONResponse({"error": detail}, status, headers)
    return JSONResponse(
        {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
        },
        status,
        headers,
        media_type=MEDIA_TYPE,
    )


def add_handlers(app: FastAPI) -> None:
    """Register the handler of every error that a route may raise."""
    for kind, handler in (
        (Overloaded, _overloaded),
        (NotReady, _not_ready),
        (TimeoutError, _too_late),
        (KafkaError, _no_broker),
        (VersionError, _no_version),
        (StarletteHTTPException, _http),
        (RequestValidationError, _invalid),
    ):
        app.add_exception_handler(kind, handler)


# One handler an error. Those that pass by themselves tell the client to come again.


async def _overloaded(request: Request, _: Exception) -> JSONResponse:
    return problem(request.url.path, 429, "server.max_queue requests are waiting", AGAIN)


async def _not_ready(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 503, str(error), AGAIN)


async def _too_late(request: Request, _: Exception) -> JSONResponse:
    return problem(
        request.url.path, 503, "the request was not answered within server.deadline_seconds", AGAIN
    )


async def _no_broker(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 503, str(error), AGAIN)


async def _no_version(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 409, str(error))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return problem(
        request.url.path, error.status_code, str(error.detail), dict(error.headers or {})
    )


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # One error is enough to correct the request, and bounds the answer.
    first = error.errors()[0]
    where = ".".join(str(x) for x in first["loc"])
    return problem(request.url.path, 422, f"{where}: {first['msg']}")
