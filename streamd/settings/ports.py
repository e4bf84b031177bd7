"""The ports on which the roles of a machine listen."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.errors import SettingsError
from streamd.roles import ARCHIVE, FOLLOW, SCORE, TRIAL, server_names
from streamd.settings.paths import roles_here
from streamd.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Listener:
    """A role or server that listens on a port. setting: key of the port. port: 0 for none; for the
    server, 0 is any free port."""

    name: str
    setting: str
    port: int


def listener_of(settings: Settings, role: str) -> Listener:
    """The port of a role; of the server that of its API. Raises: KeyError for an unknown role."""
    own = settings.telemetry
    # On a follower, the role `follow` replaces ingest and listens on ingest's port.
    ports = {
        "serve": ("server.port", settings.server.port),
        "ingest": ("telemetry.ingest_port", own.ingest_port),
        FOLLOW: ("telemetry.ingest_port", own.ingest_port),
        "train": ("telemetry.train_port", own.train_port),
        ARCHIVE: ("telemetry.archive_port", own.archive_port),
        SCORE: ("telemetry.score_port", own.score_port),
        TRIAL: ("telemetry.trial_port", own.trial_port),
    }
    return Listener(role, *ports[role])


def listeners_here(settings: Settings) -> list[Listener]:
    """The roles and servers that listen under `streamd run` with these settings."""
    found = [listener_of(settings, role) for role in roles_here(settings)]

    # Several servers share the port of the API, and each has one for its metrics.
    workers, first = server_names(settings.server.workers), settings.telemetry.serve_port
    if len(workers) > 1 and first:
        found += [
            Listener(name, "telemetry.serve_port", first + i) for i, name in enumerate(workers)
        ]
    return [listener for listener in found if listener.port]


def check_ports(listeners: Sequence[Listener]) -> None:
    """Check that no two of them have the same port. Raises: SettingsError."""
    before: dict[int, Listener] = {}
    for one in listeners:
        other = before.setdefault(one.port, one)
        if other is not one:
            raise SettingsError(
                f"{other.setting} and {one.setting} give {other.name} and {one.name} the same "
                f"port, {one.port}.",
                "change one of them.",
            )
