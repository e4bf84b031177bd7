"""The web application: routes, health, metrics, docs and the status page, none of which needs the internet."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd import __version__
from streamd.server.engine import NotReady, Overloaded
from streamd.server.routes import State, require_key, router
from streamd.server.state import ServerState
from streamd.telemetry import metrics

STATIC = Path(__file__).parent / "static"
MAX_BODY_BYTES = 1_048_576
POLICY = ("default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
          "script-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
SAFE_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
API_ROUTES = ("/v1/score", "/v1/recommend", "/v1/models")
EMBEDDINGS = "/v1/embeddings/"


def create_app(state: ServerState) -> FastAPI:
    """The application around a running engine; it stops the engine when it shuts down."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.engine.stop()

    app = FastAPI(title="streamd", version=__version__, docs_url=None, redoc_url=None, lifespan=life,
                  description="Answers from a temporal graph model that learns while events arrive.")
    app.state.streamd = state
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(Envelope)
    for kind, handler in ((Overloaded, _overloaded), (NotReady, _not_ready), (TimeoutError, _too_late),
                          (StarletteHTTPException, _http), (RequestValidationError, _invalid)):
        app.add_exception_handler(kind, handler)
    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    @app.get("/livez", tags=["health"], responses={503: {}})
    def livez(state: State) -> JSONResponse:
        """Whether the engine's loop turns."""
        well, why = state.alive()
        return JSONResponse({"alive": well, "why": why}, 200 if well else 503)

    @app.get("/readyz", tags=["health"], responses={503: {}})
    def readyz(state: State) -> JSONResponse:
        """Whether requests can be answered now."""
        ready, why = state.ready()
        return JSONResponse({"ready": ready, "why": why}, 200 if ready else 503)

    @app.get("/metrics", tags=["operating"], response_class=Response, dependencies=[Depends(require_key)])
    def prometheus() -> Response:
        """Metrics of the serve role in Prometheus' text format."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status.json", tags=["operating"], dependencies=[Depends(require_key)])
    async def status_json(state: State) -> dict[str, Any]:
        """The content of the status page."""
        return state.page.content()

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="streamd", swagger_favicon_url="data:,",
                                   swagger_js_url="/static/swagger-ui-bundle.js",
                                   swagger_css_url="/static/swagger-ui.css")


class Envelope:
    """Around every request: refuses large bodies, measures the API's routes, adds the headers of a careful server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        size = headers.get("content-length", "0")
        if not size.isdigit() or int(size) > MAX_BODY_BYTES or "chunked" in headers.get("transfer-encoding", ""):
            refusal = _problem(413, "Too large", f"a body has a length of at most {MAX_BODY_BYTES} bytes")
            await refusal(scope, receive, send)
            return
        begun = time.perf_counter()

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"]
                route = path if path in API_ROUTES else EMBEDDINGS if path.startswith(EMBEDDINGS) else None
                if route is not None:
                    metrics.request_seconds.labels(route).observe(time.perf_counter() - begun)
                    metrics.requests.labels(route, str(message["status"])).inc()
                MutableHeaders(scope=message).update(SAFE_HEADERS)
            await send(message)

        await self._app(scope, receive, send_measured)


def _problem(status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"title": title, "status": status, "detail": detail}, status, headers,
                        media_type="application/problem+json")


async def _overloaded(_: Request, __: Exception) -> JSONResponse:
    return _problem(429, "Too many requests", "server.max_queue requests are waiting", {"Retry-After": "1"})


async def _not_ready(_: Request, error: Exception) -> JSONResponse:
    return _problem(503, "Not ready", str(error), {"Retry-After": "1"})


async def _too_late(_: Request, __: Exception) -> JSONResponse:
    return _problem(503, "Too late", "the request was not answered within server.deadline_seconds", {"Retry-After": "1"})


async def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return _problem(error.status_code, str(error.detail)[:80], str(error.detail), dict(error.headers or {}))


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(x) for x in first["loc"])
    return _problem(422, "Invalid request", f"{where}: {first['msg']}")


