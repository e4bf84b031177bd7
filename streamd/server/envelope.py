"""Around every request: what may come in, its id, its measure, its line in the log, the headers of a careful server."""

import asyncio
import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd.server.problems import problem
from streamd.settings import LOOPBACK, Settings, has_keys
from streamd.telemetry import metrics

log = structlog.get_logger()
MAX_BODY_BYTES = 1_048_576
POLICY = ("default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
          "script-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
SAFE_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
MEASURED, QUIET = ("/v1/", "/v2/models"), ("/livez", "/readyz", "/metrics", "/status.json", "/static", "/v2/health")
REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


class Envelope:
    """Refuses what is too large, too slow, or, where no key protects the server, addressed to another name than this
    machine's (a web page elsewhere could have been resolved to it)."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._open = not has_keys(settings.server)
        self._deadline = settings.server.deadline_seconds
        self._access_log = settings.telemetry.access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, begun, status = Headers(scope=scope), time.perf_counter(), 500
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        async def send_measured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({**SAFE_HEADERS, "X-Request-ID": request_id})
            await send(message)

        refused = self._refusal(scope["path"], headers)
        try:
            if refused is not None:
                await refused(scope, receive, send_measured)
            else:
                await self._app(scope, self._patient(receive), send_measured)
        finally:
            self._account(scope, status, time.perf_counter() - begun, request_id)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        size = headers.get("content-length", "0")
        if "chunked" in headers.get("transfer-encoding", ""):
            return problem(path, 411, "a body needs a content-length")
        if not size.isdigit() or int(size) > MAX_BODY_BYTES:
            return problem(path, 413, f"a body has a length of at most {MAX_BODY_BYTES} bytes")
        host = headers.get("host", "").rsplit(":", 1)[0] if not headers.get("host", "").endswith("]") else headers["host"]
        if self._open and host.strip("[]") not in LOOPBACK:
            return problem(path, 403, "without server.api_keys only this machine may ask, as localhost")
        return None

    def _patient(self, receive: Receive) -> Receive:
        """`receive`, as long as the body arrives within the deadline."""
        until, whole = time.monotonic() + self._deadline, False

        async def receive_in_time() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive within server.deadline_seconds") from None
            whole = not message.get("more_body", False)
            return message

        return receive_in_time

    def _account(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        """Metrics and a log line by route, not by path: a path may name a person."""
        route = getattr(scope.get("route"), "path", None)
        if route is not None and route.startswith(MEASURED):
            metrics.request_seconds.labels(route).observe(seconds)
            metrics.requests.labels(route, str(status)).inc()
        if self._access_log and not scope["path"].startswith(QUIET):
            log.info("request", id=request_id, method=scope["method"], route=route or "unknown", status=status,
                     ms=round(1e3 * seconds, 2), client=(scope.get("client") or ("",))[0])
