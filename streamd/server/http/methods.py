"""The method of a request. Routes see a HEAD as a GET."""

from starlette.types import Scope

IS_HEAD = "streamd.is_head"
"""Field of an ASGI scope with the method GET for a HEAD of the client."""


def as_get(scope: Scope) -> Scope:
    """A copy of the scope of a HEAD with the method GET. uvicorn's own scope keeps the HEAD, so
    that it omits the body."""
    return {**scope, "method": "GET", IS_HEAD: True}


def method_of(scope: Scope) -> str:
    """The method that the client sent."""
    return "HEAD" if IS_HEAD in scope else str(scope["method"])
