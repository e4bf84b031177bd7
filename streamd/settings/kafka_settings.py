"""The settings of Kafka and of the schema registry."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from streamd.settings.branch import Branch, check_topic_name


class KafkaSettings(Branch):
    """The connection to Kafka, and the topics to read."""

    bootstrap_servers: str = Field(
        "127.0.0.1:9092", description="host:port of one or more brokers, comma separated"
    )
    topics: tuple[str, ...] = Field(
        ("events",),
        min_length=1,
        description="topics to read, with all partitions; if not set, the topics of `sources`",
    )
    group_id: str = Field(
        "streamd",
        description="consumer group that shows the lag; a restart does not use it",
    )
    client: dict[str, Any] = Field(
        {}, description="further kafka-python client options (SASL, TLS)"
    )
    client_file: Path | None = Field(
        None,
        description="YAML or JSON file with further, secret client options: their values are "
        "never printed",
    )

    @field_validator("topics")
    @classmethod
    def _has_names(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_topic_name, topics))

    @field_validator("bootstrap_servers")
    @classmethod
    def _has_addresses(cls, servers: str) -> str:
        if not all(server.strip() for server in servers.split(",")):
            raise ValueError("one of the addresses between its commas is empty; remove that comma")
        return servers


class SchemaRegistrySettings(Branch):
    """The connection to the schema registry, for topics in Avro and Protobuf."""

    url: str | None = Field(None, description="address of the registry: http or https")
    user: str | None = Field(
        None,
        pattern="^[^:]+$",
        description="user of basic authentication, with the secret as the password; without a "
        "user the secret is a bearer token",
    )
    secret: SecretStr | None = Field(None, description="password or token")
    secret_file: Path | None = Field(
        None, description="one-line file with the secret; read again for each request"
    )
    ca_file: Path | None = Field(
        None,
        description="PEM certificates of the registry's authorities; default: the system's",
    )
    cert_file: Path | None = Field(None, description="PEM client certificate of ingest")
    key_file: Path | None = Field(None, description="private key of cert_file, without a password")
    timeout_seconds: float = Field(5, gt=0, le=20, description="timeout of a request")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("an address begins with http:// or https:// and a host")
        if "@" in parts.netloc:
            raise ValueError("the address holds a user: set schema_registry.user and secret")
        if parts.query or parts.fragment or not url.isascii() or " " in url:
            raise ValueError("an address has no ?, no # and no spaces")
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ValueError("each part of the host name must have 1 to 63 letters") from None
        return url
