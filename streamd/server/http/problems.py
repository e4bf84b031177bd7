"""Makes responses to errors: RFC 9457 problem details, and on `/v2` errors of the Open Inference
Protocol."""

import difflib
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from streamd.errors import KafkaError, UntakenError, VersionError
from streamd.server.engine.conditions import BadCondition
from streamd.server.http.methods import method_of
from streamd.serving.requests import (
    KnownSource,
    NoContext,
    NotReached,
    NotReady,
    Overloaded,
    TooManyNodes,
    TooOld,
)

MEDIA_TYPE = "application/problem+json"
AGAIN = {"Retry-After": "1"}
"""Header of errors that a retry after a second may not have."""
EITHER = "constrained-"
"""If a value may have one of several types, the last element of pydantic's error location begins
with this."""
OTHER_TYPE = ("int_type", "string_type")
"""Pydantic's error types for a value that is no integer, and for one that is no text."""
NOT_REACHED = "urn:streamd:position-not-reached"
"""Problem type: the server's graph did not reach the position that the request requires."""

TOO_OLD = "urn:streamd:answer-too-old"
"""Problem type: the answer would be older than the request allows."""


def problem(
    path: str,
    status: int,
    detail: str,
    headers: dict[str, str] | None = None,
    kind: str = "about:blank",
) -> JSONResponse:
    """Make the response to a failed request for `path`. kind: URI of the problem's type, if clients
    need to distinguish it from others of the same status."""
    media_type = None if path.startswith("/v2/") else MEDIA_TYPE
    return JSONResponse(content(path, status, detail, kind), status, headers, media_type)


def content(path: str, status: int, detail: str, kind: str = "about:blank") -> dict[str, Any]:
    """The body of a `problem` as JSON."""
    if path.startswith("/v2/"):
        return {"error": detail}
    return {"type": kind, "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


def add_handlers(app: FastAPI) -> None:
    """Register a handler for every error that a route may raise."""
    for kind, handler in (
        (Overloaded, _answer_overloaded),
        (TooManyNodes, _unprocessable),
        (KnownSource, _unprocessable),
        (NoContext, _unprocessable),
        (NotReady, _not_ready),
        (UntakenError, _not_ready),
        (TimeoutError, _too_late),
        (BadCondition, _bad_condition),
        (NotReached, _answer_not_reached),
        (TooOld, _too_old),
        (KafkaError, _no_broker),
        (VersionError, _no_version),
        (StarletteHTTPException, _http),
        (RequestValidationError, _invalid),
    ):
        app.add_exception_handler(kind, handler)


# One handler for each error. Temporary errors have a Retry-After header.


async def _answer_overloaded(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 429, str(error), AGAIN)


async def _unprocessable(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 422, str(error))


async def _not_ready(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 503, str(error), AGAIN)


async def _too_late(request: Request, _: Exception) -> JSONResponse:
    return problem(
        request.url.path, 503, "the request was not answered within server.deadline_seconds", AGAIN
    )


async def _bad_condition(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 400, str(error))


async def _answer_not_reached(request: Request, error: Exception) -> JSONResponse:
    detail = f"{error} (server.deadline_seconds)"
    return problem(request.url.path, 504, detail, AGAIN, NOT_REACHED)


async def _too_old(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 503, str(error), AGAIN, TOO_OLD)


async def _no_broker(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 503, str(error), AGAIN)


async def _no_version(request: Request, error: Exception) -> JSONResponse:
    return problem(request.url.path, 409, str(error))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    detail = str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = "no such route; see /docs"
    if error.status_code == 405 and "Allow" in headers:
        methods = [m.strip() for m in headers["Allow"].split(",")]
        methods += ["HEAD"] if "GET" in methods and "HEAD" not in methods else []
        headers["Allow"] = ", ".join(methods)
        detail = f"{method_of(request.scope)} is not for this path; use {headers['Allow']}"
    return problem(request.url.path, error.status_code, detail, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # Report only the first error, which bounds the size of the response.
    body = getattr(request.scope.get("route"), "body_field", None)
    model = body.field_info.annotation if body is not None else None
    return problem(request.url.path, 422, _first_error(error.errors(), model))


def _first_error(errors: Sequence[Any], model: Any) -> str:
    """The text of the first of pydantic's errors. model: of the body, if any.

    A key may be an integer or text, so pydantic reports an error for each of the two types; the one
    for the type of the value is used.
    """
    # An unknown field explains a missing one: its name may be misspelled.
    unknown = [e for e in errors if e["type"] == "extra_forbidden"]
    first = unknown[0] if unknown and errors[0]["type"] == "missing" else errors[0]
    path, message = first["loc"], first["msg"].removeprefix("Value error, ")
    if str(path[-1]).startswith(EITHER):
        path = path[:-1]
        own = [e for e in errors if e["loc"][:-1] == path and e["type"] not in OTHER_TYPE]
        message = own[0]["msg"] if own else "Input should be an integer or text"
    named = ".".join(str(x) for x in path)
    if first["type"] == "too_short" and not first["ctx"]["actual_length"]:
        return f"{named} is empty"
    if first["type"] == "extra_forbidden":
        message = unknown_name("field", str(path[-1]), _fields_at(model, path[1:-1]))
    return f"{named}: {message}"


def unknown_name(kind: str, name: str, known: list[str]) -> str:
    """The text of an error about an unknown name. kind: "field" or "parameter". known: the existing
    names."""
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"no such {kind}; did you mean {close[0]!r}?"
    return f"no such {kind}; there are {', '.join(known)}" if known else f"no such {kind}"


def _fields_at(model: Any, path: Sequence[str | int]) -> list[str]:
    """The names of the fields at a location in the model of a body."""
    models = list(_models_in(model))
    for step in path:
        inner = [own for one in models if (own := one.model_fields.get(str(step)))]
        # Skip the index of a list: its annotation names the models of the items.
        if inner:
            models = [found for own in inner for found in _models_in(own.annotation)]
    return list(dict.fromkeys(name for one in models for name in one.model_fields))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield all models in an annotation such as `list[Event] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
