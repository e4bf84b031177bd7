"""The HTTP port of a role without an API: it serves the role's metrics, and the state of its
loop."""

import json
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from streamd.errors import SettingsError
from streamd.telemetry import metrics
from streamd.telemetry.api_keys import key_of
from streamd.telemetry.heartbeat import Heartbeat

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class _Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each request, so that a slow scrape delays no probe."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """A handler that logs no requests, and closes connections of clients that send nothing."""

    timeout = 10
    """Seconds; probes and scrapers send their request immediately."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes and probes would fill the log."""


def open_port(
    port: int,
    host: str,
    beat: Heartbeat,
    allows: Callable[[str | None], bool],
    refresh: Callable[[], object] = lambda: None,
    also: Iterable[CollectorRegistry] = (),
) -> None:
    """Serve `/metrics` and `/livez` of a role, from a thread of its own. HEAD is answered like GET,
    without a body.

    Args: port: 0 for none; host: the address of the API server; allows: whether a key may read the
    metrics; refresh: updates metrics that are computed on request; also: metrics of another role
    whose work this process does. Raises: SettingsError if the port is in use.
    """
    if not port:
        return
    measured = make_wsgi_app(metrics.exported_by(beat.role, *also))

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        # A probe has no key, and gets only the state of the loop.
        if environ["PATH_INFO"] == "/livez":
            well, why = beat.well()
            start(
                "200 OK" if well else "503 Service Unavailable",
                [("content-type", "application/json")],
            )
            return [json.dumps({"alive": well, "why": why}).encode()]

        # Metrics require a key if the API does.
        key = key_of(environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_API_KEY"))
        if environ["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("content-type", "text/plain")])
            return [b"the paths are /metrics and /livez"]
        if not allows(key):
            start(
                "401 Unauthorized", [("content-type", "text/plain"), ("WWW-Authenticate", "Bearer")]
            )
            return [b"an API key is needed" if key is None else b"the API key is wrong"]
        refresh()
        page: Iterable[bytes] = measured(environ, start)
        return page

    # Listen in this thread, so that a port in use raises in the caller.
    try:
        server = make_server(host, port, _with_head(answer), _Server, _Quiet)
    except OSError as error:
        raise SettingsError(
            f"The {beat.role} role cannot listen on {host}:{port}: {error.strerror}.",
            f"free the port or set telemetry.{beat.role}_port.",
        ) from None
    threading.Thread(target=server.serve_forever, name="port", daemon=True).start()


def _with_head(answer: "WSGIApplication") -> "WSGIApplication":
    """The application with HEAD: as GET, without the body."""

    def answer_any(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "HEAD":
            return answer(environ, start)
        heads: list[tuple[str, list[tuple[str, str]]]] = []

        def keep(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
            heads.append((status, headers))
            return bytes

        # The content length is that of GET's body.
        body = b"".join(answer({**environ, "REQUEST_METHOD": "GET"}, keep))
        status, headers = heads[-1]
        start(status, [*headers, ("content-length", str(len(body)))])
        return []

    return answer_any
