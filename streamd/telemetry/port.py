"""The port of a role without an API serves its metrics, and whether its loop turns."""

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
    """A handler that logs no requests, and gives up on a client that sends nothing."""

    timeout = 10
    """Seconds; probes and scrapes send their request at once."""

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
    """Answer `/metrics` and `/livez` of a role, from a thread of its own. HEAD is answered as GET,
    without a body.

    Args: port: 0 for none; host: the address that the server listens at too; allows: whether a key
    opens the metrics; refresh: brings metrics up to date that are only known when somebody asks;
    also: metrics of a role whose work this process does too.
    Raises: SettingsError where the port is taken.
    """
    if not port:
        return
    measured = make_wsgi_app(metrics.exported_by(beat.role, *also))

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        # A probe has no key, and learns nothing but whether the loop turns.
        if environ["PATH_INFO"] == "/livez":
            well, why = beat.well()
            start(
                "200 OK" if well else "503 Service Unavailable",
                [("content-type", "application/json")],
            )
            return [json.dumps({"alive": well, "why": why}).encode()]

        # Metrics need a key where the API does.
        key = key_of(environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_API_KEY"))
        if environ["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("content-type", "text/plain")])
            return [b"there are /metrics and /livez"]
        if not allows(key):
            start(
                "401 Unauthorized", [("content-type", "text/plain"), ("WWW-Authenticate", "Bearer")]
            )
            return [b"an API key is needed" if key is None else b"the API key is wrong"]
        refresh()
        page: Iterable[bytes] = measured(environ, start)
        return page

    # Listen here, so that a port that is taken is an error of the caller's.
    try:
        server = make_server(host, port, _with_head(answer), _Server, _Quiet)
    except OSError as error:
        raise SettingsError(
            f"The {beat.role} role cannot listen on {host}:{port}: {error.strerror}.",
            f"free the port or set telemetry.{beat.role}_port.",
        ) from None
    threading.Thread(target=server.serve_forever, name="port", daemon=True).start()


def _with_head(answer: "WSGIApplication") -> "WSGIApplication":
    """The application, which also answers a HEAD: as a GET, without the body."""

    def answer_any(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "HEAD":
            return answer(environ, start)
        heads: list[tuple[str, list[tuple[str, str]]]] = []

        def keep(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
            heads.append((status, headers))
            return bytes

        # The length is that of the body that a GET would get.
        body = b"".join(answer({**environ, "REQUEST_METHOD": "GET"}, keep))
        status, headers = heads[-1]
        start(status, [*headers, ("content-length", str(len(body)))])
        return []

    return answer_any
