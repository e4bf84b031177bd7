"""The settings of the server, and of telemetry."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from streamd.settings.branch import Branch, Natural, Positive, Seconds

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach: a server on them needs no API keys."""


class ServerSettings(Branch):
    """The server's address, keys, and limits."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu", description="where the server runs graph and model; auto: on a GPU, if any"
    )
    host: str = Field(
        "127.0.0.1", description="address to bind; other than loopback needs api_keys"
    )
    port: Natural = Field(8000, le=65535, description="port of REST, metrics and the status page")
    page_note: str = Field(
        "",
        max_length=300,
        description="a line under the status page's title, such as a name for this installation",
    )
    workers: Positive = Field(
        1, le=16, description="serve processes that share the port, each with its own graph"
    )
    # Keys; the files may be rotated while the server runs.
    api_keys: tuple[SecretStr, ...] = Field(
        (), description="keys accepted in `Authorization: Bearer` or `X-API-Key`"
    )
    api_keys_file: Path | None = Field(
        None, description="more of them, one a line; read again when it changes"
    )
    admin_keys: tuple[SecretStr, ...] = Field(
        (), description="keys that also promote, roll back and erase"
    )
    admin_keys_file: Path | None = Field(
        None, description="more of them, one a line; read again when it changes"
    )
    tls_cert_file: Path | None = Field(
        None, description="certificate chain in PEM: the server then speaks HTTPS only"
    )
    tls_key_file: Path | None = Field(None, description="its private key")
    # Limits on requests: those beyond them are refused at once.
    max_candidates: Positive = Field(1000, description="most candidates in one request")
    max_queue: Positive = Field(512, description="requests that may wait; more are answered 429")
    max_batch: Positive = Field(32, description="requests answered in one go")
    deadline_seconds: Seconds = Field(
        5, description="a request not answered by then is answered 503"
    )
    # Limits on connections, and shutdown.
    max_connections: Positive = Field(
        1000, description="most connections; where none is idle, one more gets 503"
    )
    max_connections_per_address: Positive = Field(
        500, description="most of one address, as a proxy's is for all behind it"
    )
    idle_seconds: Seconds = Field(
        75, description="a connection without a request for so long is closed"
    )
    drain_seconds: Seconds = Field(
        0, description="asked to stop, the server is unready but answers for so long"
    )
    # A topic for scores of events.
    score_topic: str = Field(
        "",
        pattern=r"^([a-zA-Z0-9._-]{1,249})?$",
        description="topic to which each event is scored as it becomes visible; empty: none",
    )
    score_max_age_seconds: float = Field(
        30,
        ge=1,
        le=3600,
        description="an event visible for longer gets no score any more, and is counted",
    )


class TelemetrySettings(Branch):
    """Logging, and the metrics ports of the roles."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    log_format: Literal["console", "json"] = Field(
        "console", description="how log lines are written"
    )
    access_log: bool = Field(False, description="a log line per request, but for probes")
    ingest_port: Natural = Field(
        9101,
        le=65535,
        description="metrics port of ingest, and of follow on a replica; 0 for none",
    )
    train_port: Natural = Field(9102, le=65535, description="metrics port of train, 0 for none")
    archive_port: Natural = Field(9099, le=65535, description="metrics port of archive, 0 for none")
    score_port: Natural = Field(9097, le=65535, description="metrics port of score, 0 for none")
    serve_port: Natural = Field(
        9103,
        le=65500,
        description="metrics port of the first of several server.workers, which the others follow; "
        "0 for none",
    )
    score_slo_seconds: float = Field(
        0.06,
        gt=0,
        lt=5,
        description="p99 of /v1/score above which StreamdAnswersSlow fires",
    )


def has_keys(server: ServerSettings) -> bool:
    """Whether the API requires a key."""
    return bool(
        server.api_keys or server.api_keys_file or server.admin_keys or server.admin_keys_file
    )
