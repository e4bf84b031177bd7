"""What `streamd health` asks: `/livez` or `/readyz` of a role on this machine, where its settings
have it listen."""

import http.client
import json
import ssl

from streamd.errors import SettingsError
from streamd.settings import Settings

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and the one to ask there."""
ANSWER_SECONDS = 4.0
"""The image's HEALTHCHECK gives up after ten, of which starting Python takes some."""


def ask_health(settings: Settings, role: str, path: str) -> tuple[bool, str]:
    """Ask a role of this machine.

    Args: role: ingest, train or serve; path: /livez or /readyz, which only the server has.
    Returns: whether it answers 200, and what it said.
    Raises: SettingsError where there is nothing to ask under these settings.
    """
    ports = {
        "ingest": settings.telemetry.ingest_port,
        "train": settings.telemetry.train_port,
        "serve": settings.server.port,
    }
    if role not in ports:
        raise SettingsError(f"There is no role {role!r}; roles are {', '.join(ports)}.")
    if path == "/readyz" and role != "serve":
        raise SettingsError(f"The {role} role has no /readyz.", "ask serve, or leave out --ready.")
    if not ports[role]:
        raise SettingsError(f"The {role} role has no port that is known.", "set one other than 0.")
    host = EVERYWHERE.get(settings.server.host, settings.server.host)
    timeout = ANSWER_SECONDS
    link = http.client.HTTPConnection(host, ports[role], timeout=timeout)
    if role == "serve" and settings.server.tls_cert_file is not None:
        # The certificate is for the name that callers use, not for this address. No key is sent.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        link = http.client.HTTPSConnection(host, ports[role], timeout=timeout, context=context)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        said = json.loads(answer.read())
        return answer.status == 200, str(said.get("why") or answer.reason)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        return False, f"{host}:{ports[role]} does not answer as streamd does: {error!r}"
    finally:
        link.close()
