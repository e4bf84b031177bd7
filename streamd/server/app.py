"""The web application: all routes, and the middleware around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from streamd import __version__
from streamd.server import operator_routes
from streamd.server.http.middleware import Envelope
from streamd.server.http.problems import add_handlers
from streamd.server.state import ServerState
from streamd.server.v1 import erase_routes, trial_routes
from streamd.server.v1.openapi import describe
from streamd.server.v1.routes import direct, router
from streamd.server.v2 import inference, triton

CHECK_SECONDS = 0.1
"""Interval at which a worker checks whether it may open its port; a start takes seconds."""


def create_app(state: ServerState) -> FastAPI:
    """Make the application. The engine runs in its event loop, from its start to its shutdown."""

    # At shutdown, the engine answers its queue before the application ends.
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = state.engine.start()
        if state.trial is not None:
            state.trial.sender.start()
        pulse = asyncio.create_task(state.page.run(), name="pulse")
        # uvicorn opens the port after the `yield`.
        while not (state.may_listen() or state.draining):
            await asyncio.sleep(CHECK_SECONDS)
        yield
        pulse.cancel()
        state.engine.stop()
        await asyncio.wait([running])
        state.forwarder.close()
        if state.trial is not None:
            await asyncio.to_thread(state.trial.sender.close)

    # The docs have their own page, since FastAPI's loads its scripts from a CDN.
    app = FastAPI(
        title="streamd",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        description="Answers from a temporal graph model that learns while events arrive.",
    )
    app.state.streamd = state

    # Routes first, then the middleware and error handlers of all of them.
    app.include_router(direct)
    app.include_router(router)
    app.include_router(erase_routes.router)
    app.include_router(trial_routes.router)
    app.mount("/static", StaticFiles(directory=operator_routes.STATIC), name="static")
    for routes in (inference.router, triton.router, inference.model, inference.asking):
        app.include_router(routes)
    app.add_middleware(
        Envelope,
        server=state.settings.server,
        access_log=state.settings.telemetry.access_log,
        turn=state.engine.turn,
    )
    add_handlers(app)
    app.include_router(operator_routes.router)
    describe(app)
    return app
