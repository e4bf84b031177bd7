"""Health checks, metrics, the status page and the docs. No page loads from the internet."""

import gzip
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client.exposition import choose_encoder, gzip_accepted
from starlette.types import Receive, Scope, Send

from streamd.server.engine.recent_activity import MAX_STREAMS, Streams, follow
from streamd.server.engine.set_names import in_set
from streamd.server.http.methods import IS_HEAD
from streamd.server.page.status import MAX_WINDOWS
from streamd.server.state import State, require_key
from streamd.server.v1.routes import NodePath, key_of_path
from streamd.telemetry import metrics

STATIC = Path(__file__).parent / "page" / "static"
"""The status page and the docs' scripts."""
router = APIRouter()


class EventStream(StreamingResponse):
    """A response of server-sent events. The caller has counted it in `streams`; it ends that count
    in any case, since a client may disconnect before the first event."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], streams: Streams) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if IS_HEAD not in scope:
                await super().__call__(scope, receive, send)
                return
            # A stream has no end, so a HEAD gets its headers alone.
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body"})
        finally:
            self._streams.close()


# Liveness is about the engine's loop, readiness about answers.
@router.get("/livez", tags=["health"], responses={503: {}})
async def livez(state: State) -> JSONResponse:
    """Whether the engine's loop is alive."""
    well, why = state.alive()
    return JSONResponse({"alive": well, "why": why}, 200 if well else 503)


@router.get("/readyz", tags=["health"], responses={503: {}})
async def readyz(state: State) -> JSONResponse:
    """Whether the server can answer requests now."""
    ready, why = state.ready()
    refused = {f"{role}_refused": error for role, error in state.refusals().items()}
    # Without new events the server still answers, so these reasons do not make it unready.
    events = state.kafka_troubles() | refused
    content = {"ready": ready, "why": why, **state.rebuild(), **events}
    return JSONResponse(content, 200 if ready else 503)


# Metrics and state for operators.
@router.get(
    "/metrics", tags=["operating"], response_class=Response, dependencies=[Depends(require_key)]
)
def prometheus(state: State, request: Request) -> Response:
    """Metrics of the serve role, in Prometheus' text format or OpenMetrics."""
    # With several workers, each scrape could reach another one, and counters would jump.
    if state.settings.server.workers > 1:
        raise HTTPException(
            404,
            "with several server.workers, each exports its metrics at its own port, the first at "
            f"telemetry.serve_port ({state.settings.telemetry.serve_port})",
        )
    state.refresh_metrics()

    # The format and compression that the scraper accepts.
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    content = encode(metrics.exported_by("serve"))
    headers = {"Content-Type": kind, "Vary": "Accept, Accept-Encoding"}
    if gzip_accepted(request.headers.get("accept-encoding", "")):
        content, headers["Content-Encoding"] = gzip.compress(content), "gzip"
    return Response(content, headers=headers)


@router.get("/status.json", tags=["operating"], dependencies=[Depends(require_key)])
async def status_json(
    state: State, windows: Annotated[int, Query(ge=0, le=MAX_WINDOWS)] = MAX_WINDOWS
) -> dict[str, Any]:
    """The content of the status page. windows: maximum number of newest windows in it."""
    return state.page.content(windows)


@router.get(
    "/around/{node:path}",
    response_class=EventStream,
    dependencies=[Depends(require_key)],
    include_in_schema=False,
)
async def around(
    node: NodePath,
    state: State,
    integer: bool = False,
    edge_set: Annotated[str | None, Query(max_length=256)] = None,
) -> StreamingResponse:
    """The recent activity around a source, as server-sent events for the status page: one event
    now, and one after each change."""
    number = state.sets.edge_set(edge_set)
    key = in_set(state.sets.endpoint_sets(number)[0], key_of_path(node, integer))
    names = state.sets.names

    def look() -> tuple[int, Callable[[], dict[str, Any]]]:
        edge, found = state.engine.around(key, number)
        return edge, lambda: found().content(*names)

    # Refuse now: once the response has started, its status cannot change.
    look()
    if not state.streams.open():
        raise HTTPException(
            503,
            f"{MAX_STREAMS} streams are open, the maximum; close one or retry later",
            {"Retry-After": "30"},
        )
    events = follow(look, lambda: state.draining or state.engine.is_stopping)
    return EventStream(events, state.streams)


# Static pages, which have no data and so need no key.
@router.get("/", include_in_schema=False)
def page() -> FileResponse:
    return FileResponse(STATIC / "index.html")


@router.get("/docs", include_in_schema=False)
def docs() -> HTMLResponse:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="streamd",
        swagger_favicon_url="data:,",
        swagger_js_url="/static/swagger-ui-bundle.js",
        swagger_css_url="/static/swagger-ui.css",
    )
