"""What the routes share: settings, engine, registry, the way to Kafka, and the keys that open them."""

import time
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from streamd.registry import Registry
from streamd.server.engine import Engine
from streamd.server.forward import Forwarder
from streamd.server.statistics import InferenceStatistics
from streamd.server.status import StatusPage
from streamd.settings import Settings
from streamd.telemetry import metrics
from streamd.telemetry.api_keys import ApiKeys, key_of
from streamd.telemetry.heartbeat import STALLED_SECONDS, refusals

OTHER_ROLES = ("ingest", "train")


class ServerState:
    """Made once by `create_app`'s caller; nothing in it changes but the engine, and `draining`
    once."""

    def __init__(self, settings: Settings, engine: Engine, registry: Registry) -> None:
        self.settings = settings
        self.engine = engine
        self.registry = registry
        self.page = StatusPage(settings, engine, registry)
        self.forwarder = Forwarder(settings)
        self.inferences = InferenceStatistics()
        self.draining = False
        """Told to stop: answers, but asks for no more."""
        self.keys = ApiKeys(settings.server)

    def alive(self) -> tuple[bool, str]:
        """Whether the engine's loop turns; idle and busy are well."""
        age = time.monotonic() - self.engine.status.beat
        return age < STALLED_SECONDS, f"the engine's last turn was {age:.1f} s ago"

    def refusals(self) -> dict[str, str]:
        """Other roles that refused their data, and why; their metric follows."""
        refused = refusals(self.settings.data_dir, OTHER_ROLES)
        for role in OTHER_ROLES:
            metrics.role_refused.labels(role).set(role in refused)
        return refused

    def rebuild(self) -> dict[str, Any]:
        """While graph, facts and memory are made: the share that is done, and the seconds left,
        None until measured."""
        reading = self.engine.status.rebuild
        return reading.fields() if reading else {}

    def ready(self) -> tuple[bool, str]:
        """Whether requests should come."""
        alive, why = self.alive()
        if self.draining:
            return False, "told to stop"
        return (self.engine.status.ready, self.engine.status.why) if alive else (False, why)


async def state_of(request: Request) -> ServerState:
    """What the routes share; async, as all dependencies here are, because a plain one costs a hop
    to another thread."""
    state: ServerState = request.app.state.streamd
    return state


State = Annotated[ServerState, Depends(state_of)]


async def require_key(request: Request) -> None:
    """Refuse a request without one of the keys. It reads the headers itself: FastAPI's classes for
    them took 0.2 ms."""
    if not request.app.state.streamd.keys.allows(_key_of(request)):
        raise HTTPException(
            401,
            "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
            {"WWW-Authenticate": "Bearer"},
        )


async def require_admin_key(request: Request) -> None:
    """Refuse a request to move the champion without one of `server.admin_keys`."""
    if not request.app.state.streamd.keys.may_move(_key_of(request)):
        raise HTTPException(403, "promoting and rolling back needs one of server.admin_keys")


def _key_of(request: Request) -> str | None:
    return key_of(request.headers.get("authorization", ""), request.headers.get("x-api-key"))
