"""The method of a request. Routes see a HEAD as the GET that it asks about."""

from starlette.types import Scope

IS_HEAD = "streamd.is_head"
"""Field of a scope whose method is GET, although the caller asked by HEAD."""


def as_get(scope: Scope) -> Scope:
    """The scope of a HEAD as that of a GET: a copy, because uvicorn looks at its own to leave out
    the body."""
    return {**scope, "method": "GET", IS_HEAD: True}


def method_of(scope: Scope) -> str:
    """The method that the caller asked by."""
    return "HEAD" if IS_HEAD in scope else str(scope["method"])
