"""kafka-python clients under the configured settings, checked before the first connection."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError, SettingsError
from streamd.settings import KafkaSettings

RECONNECT_MS = 2_000
"""Longest pause between attempts to reach a broker; the client's own 30 s would outlast most restarts."""
BOOTSTRAP_MS = 4_000
"""Longest wait for a first answer of a broker, after which ours tries again: the client's own 30 s would outlast a stop."""
TOKEN_PROVIDER = "sasl_oauth_token_provider"
OURS = {"enable_auto_commit", "auto_offset_reset", "isolation_level",
        "key_deserializer", "value_deserializer", "key_serializer", "value_serializer", "metadata_max_age_ms"}


def client_settings(kafka: KafkaSettings, known: Mapping[str, Any]) -> dict[str, Any]:
    """kafka-python settings every client of ours gets; lists from YAML or JSON become the tuples it expects."""
    extra = {k: tuple(v) if isinstance(v, list) else v for k, v in kafka.client.items() if k in known}
    provider = extra.get(TOKEN_PROVIDER)
    if isinstance(provider, str):
        extra[TOKEN_PROVIDER] = _token_provider(provider)
    if "reconnect_backoff_max_ms" in known:
        extra.setdefault("reconnect_backoff_max_ms", RECONNECT_MS)
    if "bootstrap_timeout_ms" in known:
        extra.setdefault("bootstrap_timeout_ms", BOOTSTRAP_MS)
    return {"bootstrap_servers": [s.strip() for s in kafka.bootstrap_servers.split(",")], **extra}


def check_client_settings(kafka: KafkaSettings) -> None:
    """Refuse `kafka.client` keys that kafka-python does not know, or that streamd decides. Raises: SettingsError."""
    known = {*KafkaConsumer.DEFAULT_CONFIG, *KafkaProducer.DEFAULT_CONFIG, *KafkaAdminClient.DEFAULT_CONFIG}
    for key in kafka.client:
        if key in OURS:
            raise SettingsError(f"kafka.client.{key} is decided by streamd and cannot be set.", "remove it.")
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), 1, 0.5)
            raise SettingsError(f"kafka.client has {key!r}, which kafka-python does not know"
                                + (f"; did you mean {close[0]!r}?" if close else "."))


def make_producer(kafka: KafkaSettings, **settings: Any) -> KafkaProducer:
    """A producer under the same client settings; the caller closes it."""
    return _made(KafkaProducer, kafka, settings)


def make_admin(kafka: KafkaSettings) -> KafkaAdminClient:
    """An admin client under the same client settings; the caller closes it."""
    return _made(KafkaAdminClient, kafka, {"request_timeout_ms": 20_000})


def make_consumer(kafka: KafkaSettings) -> KafkaConsumer:
    """A consumer for assigned partitions: it joins no group, commits nothing and never skips by itself."""
    return _made(KafkaConsumer, kafka, {
        "fetch_max_bytes": 16_777_216, "max_partition_fetch_bytes": 4_194_304, "group_id": None,
        "enable_auto_commit": False, "auto_offset_reset": "none", "isolation_level": "read_committed",
        "allow_auto_create_topics": False, "metadata_max_age_ms": 30_000})


def _made(kind: Any, kafka: KafkaSettings, settings: dict[str, Any]) -> Any:
    check_client_settings(kafka)
    try:
        return kind(**{**settings, **client_settings(kafka, kind.DEFAULT_CONFIG)})
    except ClientError as error:
        raise KafkaError(f"No broker answers at {kafka.bootstrap_servers}: {error}.",
                         "check kafka.bootstrap_servers and kafka.client.") from None
    except (TypeError, ValueError, OSError, AssertionError) as error:
        raise SettingsError(f"kafka.client does not fit together: {error}.", "check kafka.client.") from None


def _token_provider(path: str) -> Any:
    """An object of the class that `package.module:Class` names."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(f"kafka.client.{TOKEN_PROVIDER} {path!r} cannot be made: {error}.",
                            "name it as package.module:Class, with a constructor without arguments.") from None
