"""Refuses requests for answers while more arrive than the engine can answer.

It needs only the head of a request, and makes the response as bytes. A refusal by the application
would take about as long as an answer, and leave little time for other answers.
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
        """overload: returns the reason to refuse requests now, None for no reason. routers, tags:
        only requests for routes of these routers with one of these tags are refused."""
        self._overload = overload
        found = [r for router in routers for r in router.routes if isinstance(r, APIRoute)]
        self._answers = [r for r in found if set(tags) & {*r.tags}]

    def refusal(self, path: str) -> bytes | None:
        """Decide about a request by its path. Returns: the whole response to a refused request,
        which the metrics count; None if the request may pass."""
        reason = self._overload()
        if reason is None:
            return None
        # Health checks, metrics and other routes without the engine always pass.
        route = next((r.path for r in self._answers if r.path_regex.match(path)), None)
        if route is None:
            return None

        # The application never sees the request, so count and answer it here.
        metrics.requests.labels(route, "429").inc()
        body = msgspec.json.encode(content(path, 429, reason))
        media_type = "application/json" if path.startswith("/v2/") else MEDIA_TYPE
        head = (
            "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n"
            "x-content-type-options: nosniff\r\n"
            f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
