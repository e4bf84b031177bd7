"""Asks a role on this machine for `/livez` or `/readyz`, at the port that the settings name, for
`streamd health`."""

import http.client
import json
import ssl

from streamd.errors import SettingsError
from streamd.settings.loading import Settings

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean all of a machine's -> the address to ask instead."""
ANSWER_SECONDS = 4.0
"""The image's HEALTHCHECK gives up after ten, of which starting Python takes some."""


def ask_health(settings: Settings, role: str, path: str) -> tuple[bool, str]:
    """Ask a role on this machine whether it is well.

    Args: role: ingest, train, serve, archive, follow or score; path: /livez or /readyz, which only
    the server has.
    Returns: whether it answers 200, and its reason.
    Raises: SettingsError where there is nothing to ask under these settings.
    """
    # Which port would answer?
    ports = {
        "ingest": settings.telemetry.ingest_port,
        "train": settings.telemetry.train_port,
        "serve": settings.server.port,
        "archive": settings.telemetry.archive_port,
        "follow": settings.telemetry.ingest_port,
        "score": settings.telemetry.score_port,
    }
    if role not in ports:
        raise SettingsError(f"There is no role {role!r}; roles are {', '.join(ports)}.")
    if path == "/readyz" and role != "serve":
        raise SettingsError(f"The {role} role has no /readyz.", "ask serve, or leave out --ready.")
    if not ports[role]:
        raise SettingsError(f"The {role} role has no port that is known.", "set one other than 0.")

    # Connect as the server listens, by HTTP or HTTPS.
    host = EVERYWHERE.get(settings.server.host, settings.server.host)
    timeout = ANSWER_SECONDS
    link = http.client.HTTPConnection(host, ports[role], timeout=timeout)
    if role == "serve" and settings.server.tls_cert_file is not None:
        # The certificate is for the name that callers use, not for this address. No key is sent.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        link = http.client.HTTPSConnection(host, ports[role], timeout=timeout, context=context)

    # Anything else than streamd's own answer means that the role is not well.
    try:
        link.request("GET", path)
        answer = link.getresponse()
        body = json.loads(answer.read())
        return answer.status == 200, str(body.get("why") or answer.reason)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        return False, f"{host}:{ports[role]} does not answer as streamd does: {error!r}"
    finally:
        link.close()
