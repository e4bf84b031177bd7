"""uvicorn's configuration, with the protocol that bounds connections."""

import functools

import uvicorn

from streamd.server.app import create_app
from streamd.server.protocol import BoundedProtocol, Connections
from streamd.server.state import ServerState


def web_config(state: ServerState) -> uvicorn.Config:
    """Make the configuration of a `uvicorn.Server`.

    WebSockets are off, because they would leave the protocol and its bounds.
    """
    server = state.settings.server
    bounded = functools.partial(BoundedProtocol, connections=Connections(server))
    return uvicorn.Config(
        create_app(state),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=server.idle_seconds,  # type: ignore[arg-type]
        ssl_certfile=server.tls_cert_file,
        ssl_keyfile=server.tls_key_file,
        http=bounded,  # type: ignore[arg-type]
        ws="none",
    )
