"""Refuses unknown query parameters, as bodies refuse unknown fields."""

from collections.abc import Iterator
from typing import Any

from fastapi import HTTPException, Request

from streamd.server.http.problems import unknown_name


async def refuse_unknown_parameters(request: Request) -> None:
    """Dependency of `GET` routes: refuse a request with an unknown query parameter. If a misspelled
    one were ignored, the client would take the answer for that of another request."""
    if not request.scope["query_string"] or request.method not in ("GET", "HEAD"):
        return
    known = list(_names(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            raise HTTPException(422, f"query.{name}: {unknown_name('parameter', name, known)}")


def _names(dependant: Any) -> Iterator[str]:
    """The names of the query parameters of a route and of its dependencies."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
