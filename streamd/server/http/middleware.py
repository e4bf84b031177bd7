"""The middleware around every request: it bounds requests, checks their origin, gives each an id,
measures and logs it, and adds the security headers."""

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd.server.http.connections import MAX_BODY_BYTES
from streamd.server.http.methods import as_get, method_of
from streamd.server.http.problems import problem
from streamd.server.state import require_admin_key, require_key
from streamd.settings.loading import LOOPBACK, ServerSettings, has_keys
from streamd.telemetry import metrics, spans
from streamd.telemetry.trace import Trace, trace_of

logger = structlog.get_logger()
# Scripts and styles come from this server alone, and no other page may frame its pages. The docs
# page has inline scripts.
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)
SAFE_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
# Prefixes of routes in the metrics, and of paths without log lines, since probes request them every
# few seconds.
MEASURED = ("/v1/", "/v2/models")
QUIET = ("/livez", "/readyz", "/metrics", "/status.json", "/static", "/v2/health")
# Dependencies that are checked before a body is read.
KEY_CHECKS = (require_key, require_admin_key)
# Methods that change nothing: a web page of another site may use them.
READING = ("GET", "HEAD", "OPTIONS")
PORTS = {"http": 80, "https": 443}
TOO_LARGE = f"a body may have at most {MAX_BODY_BYTES} bytes"
# An id of a client is used only if it cannot break a log line.
REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


class Envelope:
    """Refuses requests that are too large, too slow, or sent by a web page of another site.

    Without API keys it also refuses requests for a host name that is not one of this machine's
    loopback names, against DNS rebinding: a web page may let its own name resolve to this machine.
    """

    def __init__(
        self,
        app: ASGIApp,
        server: ServerSettings,
        access_log: bool,
        turn: Callable[[], Awaitable[None]],
    ) -> None:
        """access_log: whether to log each request. turn: waits until a request may be parsed and
        routed."""
        self._app = app
        self._turn = turn
        self._open = not has_keys(server)
        self._deadline = server.deadline_seconds
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        # A HEAD gets the response of a GET without its body.
        is_head = scope["method"] == "HEAD"
        scope = as_get(scope) if is_head else scope

        # The id and the trace of the request are in its response and in its log lines.
        headers = Headers(scope=scope)
        begun = time.perf_counter()
        status = 500
        request_id = _request_id(headers)
        trace = trace_of(headers.getlist("traceparent"))
        span = None
        if (made := spans.active()) is not None and not scope["path"].startswith(QUIET):
            span = made.request(method_of(scope), trace)
            trace = span.trace
            spans.current.set(span)
        added = {**SAFE_HEADERS, "X-Request-ID": request_id}
        named = {}
        if trace is not None:
            added["traceresponse"] = trace.response
            named = {"trace_id": trace.trace_id, "parent": trace.parent, "span": trace.span}

        async def send_and_measure(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(added)
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        # Refuse the request, or pass it to the application. Count and log it in both cases.
        refused = self._refusal(scope, headers)
        with structlog.contextvars.bound_contextvars(**named):
            try:
                if refused is not None:
                    await refused(scope, receive, send_and_measure)
                else:
                    if scope["path"].startswith(MEASURED):
                        await self._turn()
                    await self._app(scope, self._bound_body(scope, receive), send_and_measure)
            finally:
                took = time.perf_counter() - begun
                self._account(scope, status, took, request_id, trace)
                if span is not None:
                    _end(span, scope, status)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The response to a request that is refused by its headers, None if it may pass."""
        path = scope["path"]
        size = headers.get("content-length", "0")
        # Its size.
        if "transfer-encoding" in headers:
            return problem(path, 411, "content-length is required; chunked bodies are not accepted")
        if not size.isdigit() or int(size) > MAX_BODY_BYTES:
            return problem(path, 413, TOO_LARGE)
        # Its host name, and the origin of the page that sent it.
        host, _ = _host_of(headers)
        if self._open and host not in LOOPBACK:
            return problem(
                path,
                403,
                "without server.api_keys, only requests to localhost are accepted",
            )
        if scope["method"] not in READING and _is_of_another_site(headers):
            return problem(path, 403, "requests from web pages of another origin are refused")
        return None

    def _bound_body(self, scope: Scope, receive: Receive) -> Receive:
        """Wrap `receive` so that it checks the key and bounds the size and the time of the body.

        FastAPI itself would read the body before it calls the route's dependencies, which check the
        key. Bytes are counted as they arrive, since `content-length` may be wrong.
        """
        until = time.monotonic() + self._deadline
        began = False
        whole = False
        num_bytes = 0

        async def receive_within_bounds() -> Message:
            nonlocal began, whole, num_bytes
            if whole:
                return await receive()

            # Check the key before the first byte of the body.
            if not began:
                began = True
                for needed in getattr(scope.get("route"), "dependencies", ()):
                    if needed.dependency in KEY_CHECKS:
                        await needed.dependency(Request(scope))

            # Read the next part, within the deadline of the whole body.
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, "the body did not arrive within server.deadline_seconds"
                ) from None

            # Check the size that has arrived so far.
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise HTTPException(413, TOO_LARGE)
            whole = not message.get("more_body", False)
            return message

        return receive_within_bounds

    def _account(
        self, scope: Scope, status: int, seconds: float, request_id: str, trace: Trace | None
    ) -> None:
        """Count and log a request by its route. Its path is not logged, since it may contain a
        person's name."""
        route = _route_of(scope)
        if route is not None and route.startswith(MEASURED):
            metrics.request_seconds.labels(route).observe(seconds, spans.exemplar_of(trace))
            metrics.requests.labels(route, str(status)).inc()
        if self._access_log and not scope["path"].startswith(QUIET):
            logger.info(
                "request",
                id=request_id,
                method=method_of(scope),
                route=route or "unknown",
                status=status,
                ms=round(1e3 * seconds, 2),
                client=(scope.get("client") or ("",))[0],
            )


def _request_id(headers: Headers) -> str:
    """The id of a request: that of the client if valid, else a new one."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _end(span: spans.Started, scope: Scope, status: int) -> None:
    """End the span of a request, with method and route as its name."""
    route = _route_of(scope)
    attributes: dict[str, str | int] = {
        "http.response.status_code": status,
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }
    if route is not None:
        attributes["http.route"] = route
    if status >= 500:
        attributes["error.type"] = str(status)
    method = method_of(scope)
    name = method if route is None else f"{method} {route}"
    span.end(name, attributes, failed=status >= 500)


def _route_of(scope: Scope) -> str | None:
    """The path template of the route that answered, with all prefixes. In newer versions of
    FastAPI, `scope["route"]` lacks the prefix of an outer router."""
    effective = scope.get("fastapi", {}).get("effective_route_context")
    path: str | None = getattr(effective or scope.get("route"), "path", None)
    return path


def _host_of(headers: Headers) -> tuple[str, int | None]:
    """Host name, in lower case, and port of the Host header. The name is empty if the header is
    invalid."""
    try:
        parts = urlsplit(f"//{headers.get('host', '')}")
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None


def _is_of_another_site(headers: Headers) -> bool:
    """Whether a browser sent this request for a page of another origin.

    A browser reports this in Sec-Fetch-Site, which no page can set, or in Origin. A client that
    sends neither is no browser. The scheme is that of Origin, since a proxy may end TLS in front of
    this server.
    """
    # Sec-Fetch-Site decides if it is sent.
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None:
        return site.lower() not in ("same-origin", "none")
    if origin is None:
        return False

    # Otherwise Origin must have the name and port of the Host header.
    try:
        parts = urlsplit(origin)
        usual = PORTS.get(parts.scheme)
        sender = parts.hostname, parts.port or usual
    except ValueError:
        return True
    host, port = _host_of(headers)
    return not host or sender != (host, port or usual)
