"""Admission refuses requests for answers while more come than the engine can answer.

It needs only the head of a request and answers with bytes: a request that passes the application
takes about as long as an answer, so refusing there would leave little time to answer the others.
"""

from collections.abc import Callable, Sequence

import msgspec
from fastapi import APIRouter
from fastapi.routing import APIRoute

from streamd.server.http.problems import MEDIA_TYPE, content
from streamd.telemetry import metrics


class Admission:
    """Decides whether a request may pass to the application. Owner: the event loop's thread."""

    def __init__(
        self, overload: Callable[[], str | None], routers: Sequence[APIRouter], tags: Sequence[str]
    ) -> None:
        """overload: why requests are to be refused now, None if they are not. routers, tags: the
        routes of these routers that have one of the tags are refused."""
        self._overload = overload
        found = [r for router in routers for r in router.routes if isinstance(r, APIRoute)]
        self._answers = [r for r in found if set(tags) & {*r.tags}]

    def refusal(self, path: str) -> bytes | None:
        """The whole answer to a request that is refused; it is counted. None to let it pass."""
        reason = self._overload()
        if reason is None:
            return None
        route = next((r.path for r in self._answers if r.path_regex.match(path)), None)
        if route is None:
            return None
        metrics.requests.labels(route, "429").inc()
        body = msgspec.json.encode(content(path, 429, reason))
        media_type = "application/json" if path.startswith("/v2/") else MEDIA_TYPE
        head = (
            "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n"
            "x-content-type-options: nosniff\r\n"
            f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
