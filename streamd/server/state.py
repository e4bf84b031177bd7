"""What the routes share: settings, engine, registry and the keys that open them."""

import hmac
import time
from dataclasses import dataclass

from streamd.registry import Registry
from streamd.server.engine import Engine
from streamd.server.status import StatusPage
from streamd.settings import Settings
from streamd.telemetry.heartbeat import STALLED_SECONDS


@dataclass(frozen=True)
class ServerState:
    """Made once by `create_app`'s caller; nothing in it changes but the engine."""

    settings: Settings
    engine: Engine
    registry: Registry
    page: StatusPage

    def allows(self, key: str | None) -> bool:
        """Whether a key opens the API, compared in constant time; with no keys set everything is open."""
        keys = [k.get_secret_value().encode() for k in self.settings.server.api_keys]
        given = (key or "").encode()
        matches = [hmac.compare_digest(given, k) for k in keys]
        return not keys or any(matches)

    def alive(self) -> tuple[bool, str]:
        """Whether the engine's loop turns; idle and busy are well."""
        age = time.monotonic() - self.engine.status.beat
        return age < STALLED_SECONDS, f"the engine's last turn was {age:.1f} s ago"

    def ready(self) -> tuple[bool, str]:
        """Whether a request could be answered now."""
        alive, why = self.alive()
        return (self.engine.status.ready, self.engine.status.why) if alive else (False, why)
