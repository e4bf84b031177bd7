"""The settings of the server, and of telemetry."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from streamd.settings.branch import Branch, Natural, Positive, Seconds

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach: a server on them needs no API keys."""


class ServerSettings(Branch):
    """The server's address, keys, and limits."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu", description="device of the server's graph and model; auto: a GPU if there is one"
    )
    host: str = Field(
        "127.0.0.1", description="address to bind; an address other than loopback requires api_keys"
    )
    port: Natural = Field(8000, le=65535, description="port of REST, metrics and the status page")
    page_note: str = Field(
        "",
        max_length=300,
        description="a line under the status page's title, such as a name for this installation",
    )
    workers: Positive = Field(
        1, le=16, description="serving processes that share the port, each with its own graph"
    )
    # Keys; the files may be rotated while the server runs.
    api_keys: tuple[SecretStr, ...] = Field(
        (), description="keys accepted in `Authorization: Bearer` or `X-API-Key`"
    )
    api_keys_file: Path | None = Field(
        None, description="file with further API keys, one a line; read again when it changes"
    )
    admin_keys: tuple[SecretStr, ...] = Field(
        (), description="keys that may also promote, roll back and erase"
    )
    admin_keys_file: Path | None = Field(
        None, description="file with further admin keys, one a line; read again when it changes"
    )
    tls_cert_file: Path | None = Field(
        None, description="PEM certificate chain; if set, the server speaks HTTPS only"
    )
    tls_key_file: Path | None = Field(None, description="private key of tls_cert_file")
    # Limits on requests: those beyond them are refused at once.
    max_candidates: Positive = Field(
        1000, description="maximum number of candidates in one request"
    )
    max_queue: Positive = Field(
        512, description="maximum number of waiting requests; more are answered 429"
    )
    max_batch: Positive = Field(32, description="maximum number of requests answered together")
    deadline_seconds: Seconds = Field(
        5, description="time after which an unanswered request is answered 503"
    )
    # Limits on connections, and shutdown.
    max_connections: Positive = Field(
        1000, description="maximum number of connections; if none is idle, one more is answered 503"
    )
    max_connections_per_address: Positive = Field(
        500,
        description="maximum number of connections from one address; a proxy has one address "
        "for all of its clients",
    )
    idle_seconds: Seconds = Field(
        75, description="time without a request after which a connection is closed"
    )
    drain_seconds: Seconds = Field(
        0,
        description="time for which a stopping server still answers, while it reports that it "
        "is not ready",
    )
    # A topic for scores of events.
    score_topic: str = Field(
        "",
        pattern=r"^([a-zA-Z0-9._-]{1,249})?$",
        description="topic for the score of each event, written when the event becomes "
        "visible; empty: none",
    )
    score_max_age_seconds: float = Field(
        30,
        ge=1,
        le=3600,
        description="an event that has been visible for longer is counted instead of scored",
    )
    alarm_topic: str = Field(
        "",
        pattern=r"^([a-zA-Z0-9._-]{1,249})?$",
        description="topic for an alarm of each rare event, with server.score_topic; empty: none",
    )
    alarms_per_day: float = Field(
        10.0, gt=0, description="wanted number of alarms a day of event time, before repeats"
    )
    alarm_quiet_seconds: float = Field(
        3600,
        ge=0,
        description="event time after an alarm in which its source raises none; such events are "
        "counted in its next alarm",
    )

    @field_validator("api_keys", "admin_keys")
    @classmethod
    def _has_no_blank(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if not all(key.get_secret_value().strip() for key in keys):
            raise ValueError("one of the keys is empty; remove it, since it protects nothing")
        return keys


class TelemetrySettings(Branch):
    """Logging, and the metrics ports of the roles."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum level of log lines"
    )
    log_format: Literal["console", "json"] = Field("console", description="format of log lines")
    access_log: bool = Field(False, description="a log line per request, except for probes")
    ingest_port: Natural = Field(
        9101,
        le=65535,
        description="metrics port of ingest, and of follow on a replica; 0 for none",
    )
    train_port: Natural = Field(9102, le=65535, description="metrics port of train; 0 for none")
    archive_port: Natural = Field(9099, le=65535, description="metrics port of archive; 0 for none")
    score_port: Natural = Field(9097, le=65535, description="metrics port of score; 0 for none")
    trial_port: Natural = Field(9096, le=65535, description="metrics port of trial; 0 for none")
    serve_port: Natural = Field(
        9103,
        le=65500,
        description="metrics port of the first of several server.workers; the others use the "
        "ports after it; 0 for none",
    )
    score_slo_seconds: float = Field(
        0.06,
        gt=0,
        lt=5,
        description="p99 of /v1/score above which the alert StreamdAnswersSlow fires",
    )


def has_keys(server: ServerSettings) -> bool:
    """Whether the API requires a key."""
    return bool(
        server.api_keys or server.api_keys_file or server.admin_keys or server.admin_keys_file
    )
