"""The method of a request. Routes see a HEAD as a GET."""

from starlette.types import Scope

IS_HEAD = "streamd.is_head"
"""Field of a scope that has the method GET although the client sent a HEAD."""


def as_get(scope: Scope) -> Scope:
    """The scope of a HEAD with the method GET. It is a copy, since uvicorn reads its own scope to
    leave out the body."""
    return {**scope, "method": "GET", IS_HEAD: True}


def method_of(scope: Scope) -> str:
    """The method that the client sent."""
    return "HEAD" if IS_HEAD in scope else str(scope["method"])
