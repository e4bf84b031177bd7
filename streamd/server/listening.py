"""The server's listening socket, and uvicorn's configuration with the protocol that bounds
connections."""

import functools
import socket

import uvicorn

from streamd.errors import SettingsError
from streamd.server.app import create_app
from streamd.server.http.admission import Admission
from streamd.server.http.connections import BoundedProtocol, Connections
from streamd.server.state import ServerState
from streamd.server.v1 import routes
from streamd.server.v2 import inference


def web_config(state: ServerState) -> uvicorn.Config:
    """Make the configuration of a `uvicorn.Server`.

    WebSockets are off, because they would escape the bounds of the protocol.
    """
    server = state.settings.server
    # Under overload only requests to the routes that the engine answers are refused.
    asking = (routes.direct, routes.router, inference.asking)
    admission = Admission(state.engine.overload, asking, ("answers", inference.TAG))
    bounded = functools.partial(
        BoundedProtocol,
        connections=Connections(server),
        refusal=admission.refusal,
    )
    return uvicorn.Config(
        create_app(state),
        # uvicorn's log lines go to the root logger, as those of other libraries do.
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=server.idle_seconds,  # type: ignore[arg-type]
        ssl_certfile=server.tls_cert_file,
        ssl_keyfile=server.tls_key_file,
        http=bounded,  # type: ignore[arg-type]
        ws="none",
    )


def listen(host: str, port: int, is_shared: bool) -> socket.socket:
    """Bind the server's address, and listen on it.

    is_shared: bind it only, since each of several workers starts to listen once it is ready.
    Raises: SettingsError if the address cannot be bound.
    """
    # With an explicit protocol asyncio turns Nagle's algorithm off, which would delay answers by
    # 40 ms.
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        if not is_shared:
            listening.listen(2048)
        return listening
    except OSError as error:
        listening.close()
        raise SettingsError(
            f"The server cannot listen on {host}:{port}: {error.strerror}.",
            "free the port or set server.port.",
        ) from None
