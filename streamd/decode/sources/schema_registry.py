"""Requests schemas from a schema registry, by Confluent's REST API.

An answer without information about a schema (a refused connection, a timeout, a status other than
200 and 404, an answer of another API) means that the registry is unavailable.
"""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from streamd.errors import BadEvent, SchemaRegistryError, SettingsError
from streamd.settings.loading import SchemaRegistrySettings
from streamd.telemetry import metrics

MAX_ANSWER_BYTES = 1_048_576
"""Maximum size of an answer; schemas of some hundred fields take tens of kilobytes."""
MAX_REFERENCES = 100
"""Maximum schemas that one schema needs, including those of its references."""
UNKNOWN = (40401, 40402, 40403)
"""The API's codes for an unknown subject, version and id. Any other 404 means a wrong address."""
GUIDS = "/schemas/guids/"
"""Path of schemas by their GUID, which registries other than Confluent's may lack."""
FIRST_PAUSE_SECONDS = 0.5
"""Pause after the first failure; each further failure doubles it."""
MAX_PAUSE_SECONDS = 10.0
"""Maximum pause: after the registry is back, ingest may still wait so long."""
CHECK = "check that it runs, and schema_registry.url, user, secret and the TLS files; ingest waits."


class UnknownSchema(BadEvent):
    """When the registry does not have a schema; it may have it a moment later."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Another schema that a schema needs. name: in the schema that needs it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema from the registry. kind: AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    references: tuple[Reference, ...]


class SchemaRegistry:
    """One connection to a registry. Owner: the format that uses it; it caches nothing.

    waiting: called before each request, which may take as long as the timeout.

    After a failure no request is sent during a pause, which grows to MAX_PAUSE_SECONDS; each call
    then raises the last error.
    """

    def __init__(
        self, settings: SchemaRegistrySettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises: SettingsError if the TLS files or the secret's file cannot be used."""
        assert settings.url is not None
        url = urlsplit(settings.url)
        self._settings = settings
        self._monotonic = monotonic
        self._base = url.path.rstrip("/")
        self._name = f"The schema registry at {settings.url}"
        host, timeout = str(url.hostname), settings.timeout_seconds
        if url.scheme == "https":
            context = _tls(settings)
            self._link: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, url.port, timeout=timeout, context=context
            )
        else:
            self._link = http.client.HTTPConnection(host, url.port, timeout=timeout)
        self.waiting: Callable[[], None] = lambda: None
        self._num_failures = 0
        self._ask_at = 0.0
        self._failure: SchemaRegistryError | None = None
        _secret(settings)

    def schema(self, number: int | UUID, form: str = "") -> RegisteredSchema:
        """Request the schema of an id or a GUID. form: `serialized` for a Protobuf file as base64.

        Raises: UnknownSchema; BadEvent if it is too large; SchemaRegistryError.
        """
        kind = GUIDS if isinstance(number, UUID) else "/schemas/ids/"
        return self._schema(f"{kind}{number}", form, f"schema {number}")

    def referenced(self, schema: RegisteredSchema, form: str = "") -> dict[str, RegisteredSchema]:
        """Request all schemas that a schema needs. Returns: by name, each after those that it needs
        itself.

        Raises: BadEvent, SchemaRegistryError.
        """
        found: dict[str, RegisteredSchema] = {}
        begun: set[str] = set()

        def follow(needy: RegisteredSchema, depth: int) -> None:
            for reference in needy.references:
                if reference.name in begun:
                    continue
                begun.add(reference.name)
                if len(begun) > MAX_REFERENCES or depth > MAX_REFERENCES // 4:
                    raise BadEvent("bad_schema", f"it needs more than {MAX_REFERENCES} schemas")
                path = f"/subjects/{quote(reference.subject, safe='')}/versions/"
                what = f"version {reference.version} of {reference.subject[:100]!r}"
                needed = self._schema(f"{path}{reference.version}", form, what)
                follow(needed, depth + 1)
                found[reference.name] = needed

        follow(schema, 0)
        return found

    def _schema(self, path: str, form: str, what: str) -> RegisteredSchema:
        # Records from before a schema was deleted still need it.
        query = f"?format={form}" if form else ""
        if path.startswith("/subjects"):
            query += ("&" if query else "?") + "deleted=true"
        answer = self._ask(path + query, what)
        try:
            references = tuple(
                Reference(_text(r["name"]), _text(r["subject"]), int(r["version"]))
                for r in answer.get("references") or ()
            )
            return RegisteredSchema(
                _text(answer.get("schemaType") or "AVRO"), _text(answer["schema"]), references
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._note_failure(f"{self._name} answers, but not with a schema") from None

    def _ask(self, path: str, what: str) -> Any:
        """Request a path. Returns: the parsed JSON. Raises: BadEvent, SchemaRegistryError."""
        if self._failure is not None and self._monotonic() < self._ask_at:
            raise self._failure
        self.waiting()
        try:
            status, kind, body = self._get(path)
        except SettingsError as error:
            # A secret's file may be missing for a moment while it is replaced.
            raise self._note_failure(str(error).rstrip(".")) from None
        except (OSError, http.client.HTTPException) as error:
            why = str(error)[:200] or type(error).__name__
            raise self._note_failure(f"{self._name} does not answer: {why}") from None

        # Any other answer than the API's has no information about the schema.
        if status in (401, 403):
            raise self._note_failure(f"{self._name} refuses our credentials (status {status})")
        if status not in (200, 404) or "json" not in kind:
            raise self._note_failure(f"{self._name} answers with status {status} and {kind[:60]!r}")
        # Asking again would not make it smaller, so this refuses the event.
        if len(body) > MAX_ANSWER_BYTES:
            self._note_answer("refused")
            raise BadEvent("bad_schema", f"{what} is larger than {MAX_ANSWER_BYTES} bytes")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise self._note_failure(f"{self._name} answers with text that is not JSON") from None
        if not isinstance(answer, dict):
            raise self._note_failure(f"{self._name} answers, but not with a schema")
        if status == 404:
            if answer.get("error_code") not in UNKNOWN:
                lacks = f"{self._name} has no {path.partition('?')[0]}: is it its root?"
                if path.startswith(GUIDS):
                    lacks += " Registries that know no GUIDs need producers that write ids"
                raise self._note_failure(lacks)
            self._note_answer("unknown")
            raise UnknownSchema("unknown_schema", f"the registry does not know {what}")
        self._note_answer("found")
        return answer

    def _get(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body, with at most one byte more than is accepted.

        Raises: OSError, HTTPException.
        """
        # A connection may have been closed while it was idle, so try a new one.
        for is_new in (self._link.sock is None, True):
            try:
                return self._get_once(path)
            except (ConnectionError, http.client.RemoteDisconnected):
                self._link.close()
                if is_new:
                    raise
            except BaseException:
                self._link.close()
                raise
        raise AssertionError("unreachable")

    def _get_once(self, path: str) -> tuple[int, str, bytes]:
        if self._link.sock is None:
            self._link.connect()
        # The socket's timeout applies to each read, so a timer bounds the whole answer.
        is_late = threading.Event()
        timer = threading.Timer(self._settings.timeout_seconds, _end, (self._link.sock, is_late))
        timer.daemon = True
        timer.start()
        try:
            self._link.request("GET", self._base + path, headers=self._headers())
            answer = self._link.getresponse()
            body = answer.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException):
            if is_late.is_set():
                raise TimeoutError("timed out") from None
            raise
        finally:
            timer.cancel()
        if is_late.is_set():
            raise TimeoutError("timed out")
        # Unread bytes would be read as the next answer.
        if len(body) > MAX_ANSWER_BYTES or not answer.isclosed():
            self._link.close()
        return answer.status, answer.headers.get("content-type") or "", body

    def _headers(self) -> Mapping[str, str]:
        accept = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        secret = _secret(self._settings)
        if not secret:
            return accept
        if self._settings.user is None:
            return accept | {"Authorization": f"Bearer {secret}"}
        pair = base64.b64encode(f"{self._settings.user}:{secret}".encode()).decode()
        return accept | {"Authorization": f"Basic {pair}"}

    def _note_answer(self, outcome: str) -> None:
        self._num_failures = 0
        self._failure = None
        metrics.schema_requests.labels(outcome).inc()

    def _note_failure(self, why: str) -> SchemaRegistryError:
        """Record a failure. Returns: the error to raise."""
        pause = FIRST_PAUSE_SECONDS * 2 ** min(self._num_failures, 10)
        self._num_failures += 1
        self._ask_at = self._monotonic() + min(pause, MAX_PAUSE_SECONDS)
        self._failure = SchemaRegistryError(f"{why}.", CHECK)
        metrics.schema_requests.labels("failed").inc()
        return self._failure


def _end(link: socket.socket, is_late: threading.Event) -> None:
    """Shut down a connection from which another thread reads."""
    is_late.set()
    # It may have ended by itself. Call the base class: TLS would wait for the other side.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(link, socket.SHUT_RDWR)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _tls(settings: SchemaRegistrySettings) -> ssl.SSLContext:
    """Make the TLS context. Raises: SettingsError."""
    try:
        tried = f"ca_file {settings.ca_file}"
        context = ssl.create_default_context(cafile=settings.ca_file)
        tried = f"cert_file {settings.cert_file} with its key"
        if settings.cert_file is not None:
            # Without a password, OpenSSL would prompt for one in the terminal if the key is
            # encrypted.
            context.load_cert_chain(settings.cert_file, settings.key_file, "")
    except OSError as error:
        raise SettingsError(
            f"schema_registry.{tried} cannot be used: {error.strerror or error}.",
            "name files in PEM that this user may read.",
        ) from None
    return context


def _secret(settings: SchemaRegistrySettings) -> str:
    """The password or token; a file is read each time, since tokens expire. Raises:
    SettingsError."""
    name = "secret"
    if settings.secret is not None:
        # An environment variable may end in a newline, as a file does.
        secret = settings.secret.get_secret_value().strip()
    elif settings.secret_file is not None:
        name = f"secret_file {settings.secret_file}"
        try:
            secret = settings.secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise SettingsError(
                f"schema_registry.{name} cannot be read: {why}.",
                "correct its path, or let this user read it.",
            ) from None
    else:
        return ""
    if not secret.isprintable() or not secret.isascii():
        raise SettingsError(
            f"schema_registry.{name} holds more than one line of ASCII.",
            "write the secret alone into it, without another line.",
        )
    return secret
