"""Requests `/livez` or `/readyz` of a role on this machine, for `streamd health`."""

import http.client
import json
import ssl

from streamd.cli.options import check_role
from streamd.errors import SettingsError
from streamd.settings.loading import Settings
from streamd.settings.ports import listener_of

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard address -> loopback address to connect to instead."""
ANSWER_SECONDS = 4.0
"""Timeout of the request. The image's HEALTHCHECK gives up after ten seconds, and starting Python
takes some of them."""


def ask_health(settings: Settings, role: str, path: str) -> tuple[bool, str]:
    """Ask a role on this machine whether it is well, on the port in the settings.

    Args: role: ingest, train, serve, archive, follow, score or trial; path: /livez or /readyz,
    which only the server has.
    Returns: whether it answers 200, and its reason; for /readyz also why no new events come.
    Raises: SettingsError if the role is unknown, has no port in the settings or lacks the path.
    """
    # Find the port on which the role listens.
    check_role(role)
    port = listener_of(settings, role).port
    if path == "/readyz" and role != "serve":
        raise SettingsError(f"The {role} role has no /readyz.", "ask serve, or leave out --ready.")
    # Port 0 is any free one, which only the role knows.
    if not port:
        raise SettingsError(f"The {role} role has no port to ask.", "set one other than 0.")

    # Use HTTPS if the server has a certificate.
    host = EVERYWHERE.get(settings.server.host, settings.server.host)
    timeout = ANSWER_SECONDS
    link = http.client.HTTPConnection(host, port, timeout=timeout)
    if role == "serve" and settings.server.tls_cert_file is not None:
        # The certificate has the name that callers use, not this address. No key is sent.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        link = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)

    # Anything but streamd's own answer means that the role is not well.
    try:
        link.request("GET", path)
        answer = link.getresponse()
        body = json.loads(answer.read())
        why = str(body.get("why") or answer.reason)
        waits = [str(v) for k, v in body.items() if k == "kafka" or k.endswith("_refused")]
        return answer.status == 200, "; but ".join([why, *waits])
    except OSError as error:
        why = str(error.strerror or error).lower()
        return False, f"{host}:{port} does not answer: {why}"
    except (http.client.HTTPException, ValueError, AttributeError) as error:
        name = type(error).__name__
        return False, f"another program than streamd answers at {host}:{port} ({name})"
    finally:
        link.close()
