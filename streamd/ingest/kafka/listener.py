"""Finds out why a broker rejects clients: compares the listener's protocol with the settings.

A listener of TLS or SASL closes the connection of a client that uses neither, which looks as if no
broker answers. So this module sends the listener Kafka's first SASL request, which every listener
answers.
"""

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka.net.sasl import get_sasl_mechanism

ASK_SECONDS = 2.0
"""Timeout for the connection and for each read: a broker that answers does so within
milliseconds."""
MAX_ANSWER = 65_536
"""Maximum bytes of an answer, which holds a few names. A larger one is not Kafka's."""
DEFAULT_PORT = 9092
SASL_HANDSHAKE = 17
"""API key of the request that starts SASL; its answer lists the broker's mechanisms."""
SASL_AUTHENTICATE = 36
"""API key of the request with a mechanism's bytes."""
NO_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE")
"""Parts of OpenSSL's reasons if a broker requires a client certificate and gets none."""
WHERE_OPTIONS_ARE = "kafka.client, or in the file that kafka.client_file names."
"""The words that end an operator action about the client's options."""


class NoKafka(OSError):
    """An answer that is not Kafka's, or a closed connection."""


class Rejection(NamedTuple):
    """Why a broker rejects the client, as a sentence without its full stop, and an action for the
    operator."""

    why: str
    action: str


def find_rejection(servers: str, options: Mapping[str, Any]) -> Rejection | None:
    """Ask each broker until one answers. None if none answers, or if that one accepts such clients.

    Args: servers: host:port, comma separated. options: of the client.
    """
    # These requests do not go through a proxy.
    if options.get("proxy_url") or options.get("socks5_proxy"):
        return None
    for server in servers.split(","):
        try:
            return _compare(server.strip(), options)
        except (OSError, ValueError, LookupError, struct.error):
            # No answer, or not one of Kafka.
            continue
    return None


def why_silent(servers: str, options: Mapping[str, Any]) -> str:
    """Why the brokers at some addresses do not answer, a few words for each; empty if that is
    unknown. servers, options: as in `find_rejection`."""
    if options.get("proxy_url") or options.get("socks5_proxy"):
        return ""
    reasons = {server.strip(): _why_silent(server.strip()) for server in servers.split(",")}
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{server}: {why}" for server, why in reasons.items() if why)


def _why_silent(server: str) -> str:
    """Why the broker at one address does not answer, empty if it does."""
    host, colon, port = server.rpartition(":")
    name = host if colon else server
    if colon and not port.isdecimal():
        return f"{port!r} is not a port"
    ending = "" if colon else f"; {server} has no port, and {DEFAULT_PORT} was tried"
    try:
        _ask(server, None)
    except socket.gaierror:
        return f"the name {name} cannot be resolved{ending}"
    except ConnectionRefusedError:
        return f"connection refused{ending}"
    except TimeoutError:
        return f"no connection or no answer within {ASK_SECONDS:g} s{ending}"
    except (NoKafka, ValueError, LookupError, struct.error):
        return f"the program that listens there does not answer as Kafka{ending}"
    except OSError as error:
        return f"{error.strerror or error}{ending}"
    return ""


def refused_login(servers: str, options: Mapping[str, Any], words: str) -> Rejection:
    """The rejection by a broker that does not know the user, or has another password for it. words:
    the broker's message."""
    checked = "sasl_plain_username and sasl_plain_password"
    if "sasl_plain_password" not in options:
        checked = "the sasl_ options"
    return Rejection(
        f"The broker at {servers} refuses the login by SASL {options.get('sasl_mechanism')}: "
        f"{words}",
        f"check {checked} in {WHERE_OPTIONS_ARE}",
    )


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """The TLS context that kafka-python makes from such options. Raises: OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.get("ssl_check_hostname", True)
    if options.get("ssl_cafile"):
        context.load_verify_locations(options["ssl_cafile"])
    else:
        context.load_default_certs()
    if options.get("ssl_certfile"):
        # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
        password = options.get("ssl_password", "")
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), password)
    return context


def _compare(server: str, options: Mapping[str, Any]) -> Rejection | None:
    """Compare a broker's listener with the options. Raises: OSError if it does not answer."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    try:
        tls, mechanisms = _look_at(server, options, has_tls)
    except ssl.SSLCertVerificationError as error:
        return Rejection(
            f"The certificate of the broker at {server} is not accepted: {error.verify_message}",
            f"check ssl_cafile in {WHERE_OPTIONS_ARE}",
        )
    except ssl.SSLError as error:
        if not any(word in str(error.reason) for word in NO_CERTIFICATE):
            raise
        return Rejection(
            f"The broker at {server} asks for a client certificate that it trusts",
            f"set security_protocol: SSL, ssl_certfile and ssl_keyfile in {WHERE_OPTIONS_ARE}",
        )

    # Name each difference, and derive the needed options from the listener.
    found = []
    if tls != has_tls:
        found.append("speaks TLS" if tls else "speaks no TLS")
    listed = ", ".join(mechanisms)
    if mechanisms and not has_sasl:
        found.append(f"asks for SASL ({listed})")
    elif has_sasl and not mechanisms:
        found.append("takes no SASL")
    elif has_sasl and options.get("sasl_mechanism") not in mechanisms:
        found.append(f"takes the SASL mechanisms {listed}, not {options.get('sasl_mechanism')}")
    if not found:
        # kafka-python may lose the broker's message if the connection ends with it.
        has_password = "sasl_plain_password" in options and has_sasl
        words = _try_login(server, options) if has_password else ""
        return refused_login(server, options, words) if words else None
    needed = f"{'SASL_' if mechanisms else ''}{'SSL' if tls else 'PLAINTEXT'}"
    if needed == protocol:
        wish = f"set sasl_mechanism to one of {listed}"
    else:
        wish = f"set security_protocol: {needed}"
        if mechanisms and not has_sasl:
            wish += ", sasl_mechanism and the options that it needs"
    given = f"security_protocol is {protocol}"
    if "security_protocol" not in options:
        given = f"security_protocol is not set, which is {protocol}"
    return Rejection(
        f"The broker at {server} {' and '.join(found)}, and {given}",
        f"{wish} in {WHERE_OPTIONS_ARE}",
    )


def _look_at(
    server: str, options: Mapping[str, Any], has_tls: bool
) -> tuple[bool, tuple[str, ...]]:
    """Ask a listener with the client's choice of TLS, then with the other.

    has_tls: whether the client uses TLS. Returns: whether the listener does, and its SASL
    mechanisms, none without SASL. Raises: OSError if neither gets an answer; at once if the first
    fails because of a certificate.
    """
    own = tls_context(options) if has_tls else None
    try:
        return has_tls, _ask(server, own)
    except ssl.SSLCertVerificationError:
        raise
    except OSError as error:
        if any(word in str(getattr(error, "reason", "")) for word in NO_CERTIFICATE):
            raise
    other = None
    if not has_tls:
        # This only finds out whether the listener uses TLS, so it verifies no certificate.
        other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        other.check_hostname = False
        other.verify_mode = ssl.CERT_NONE
    return not has_tls, _ask(server, other)


def _ask(server: str, context: ssl.SSLContext | None) -> tuple[str, ...]:
    """The SASL mechanisms of a listener, none without SASL. Raises: OSError."""
    with _connect(server, context) as line:
        return _mechanisms(line, "PLAIN")


def _try_login(server: str, options: Mapping[str, Any]) -> str:
    """Log in by user and password. Returns: the broker's message if it refuses, else empty. Raises:
    OSError."""
    name = options["sasl_mechanism"]
    context = tls_context(options) if options["security_protocol"].endswith("SSL") else None
    mechanism = get_sasl_mechanism(name)(**options)
    with _connect(server, context) as line:
        _mechanisms(line, name)
        while not mechanism.is_done():
            token = mechanism.auth_bytes()
            answer = _request(line, SASL_AUTHENTICATE, struct.pack(">i", len(token)) + token)
            error, length = struct.unpack_from(">hh", answer)
            at = 4 + max(0, length)
            if error:
                return answer[4:at].decode() or f"error {error}"
            mechanism.receive(answer[at + 4 :])
    return ""


@contextmanager
def _connect(server: str, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """A connection to a listener. Raises: OSError."""
    host, colon, port = server.rpartition(":")
    name = (host if colon else server).strip("[]")
    address = name, int(port) if colon else DEFAULT_PORT
    with socket.create_connection(address, ASK_SECONDS) as plain:
        line = plain if context is None else context.wrap_socket(plain, server_hostname=name)
        with line:
            yield line


def _request(line: socket.socket, number: int, body: bytes) -> bytes:
    """Send a request and read the answer, without its header. Raises: OSError."""
    # Header of version 1: request, its version, correlation, client.
    version = 1 if number == SASL_HANDSHAKE else 0
    sent = struct.pack(">hhi", number, version, 0) + _text("streamd") + body
    line.sendall(struct.pack(">i", len(sent)) + sent)
    (size,) = struct.unpack(">i", _read(line, 4))
    if not 4 <= size <= MAX_ANSWER:
        raise NoKafka("no answer of Kafka")
    return _read(line, size)[4:]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _read(line: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes. Raises: OSError if the connection ends before."""
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise NoKafka("the connection ended")
        data += part
    return data


def _mechanisms(line: socket.socket, name: str) -> tuple[str, ...]:
    """Start SASL with a mechanism. Returns: the listener's mechanisms, none without SASL. Raises:
    OSError."""
    # The answer has an error code, the number of mechanisms, and their names.
    answer = _request(line, SASL_HANDSHAKE, _text(name))
    (count,) = struct.unpack_from(">i", answer, 2)
    names, at = [], 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", answer, at)
        names.append(answer[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return tuple(names)
