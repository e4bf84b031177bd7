"""Makes kafka-python clients from the settings, and checks these before the first connection."""

import contextlib
import importlib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as ClientError
from kafka.errors import SaslAuthenticationFailedError

from streamd.errors import KafkaError, SettingsError, SilentBrokerError, reason_of
from streamd.ingest.kafka.fresh_secrets import client_of
from streamd.ingest.kafka.listener import find_rejection, refused_login, why_silent
from streamd.ingest.kafka.safe_records import make_reading_safe
from streamd.settings.loading import KafkaSettings
from streamd.settings.mistakes import settings_error
from streamd.settings.nearest import nearest

RECONNECT_MS = 2_000
"""Longest pause between attempts to reach a broker. The client's default of 30 s is longer than
most restarts of a broker."""
BOOTSTRAP_MS = 4_000
"""Longest wait for the first answer of a broker, after which streamd tries again. The client's
default of 30 s is longer than a stop may take."""
TOKEN_PROVIDER = "sasl_oauth_token_provider"
FIXED_OPTIONS = {
    "bootstrap_servers",
    "group_id",
    "ssl_context",
    "enable_auto_commit",
    "auto_offset_reset",
    "isolation_level",
    "key_deserializer",
    "value_deserializer",
    "key_serializer",
    "value_serializer",
    "metadata_max_age_ms",
}
"""Options that streamd sets itself, because its guarantees depend on them."""
AUTO_CREATE = "allow_auto_create_topics"
NO_OPTIONS: Mapping[str, Any] = {}
OWN_TOPIC = {
    "acks": "all",
    "enable_idempotence": True,
    # Only streamd may create its own topics again after a removal, with the right options.
    AUTO_CREATE: False,
    # Longest wait of a send for a missing topic, during which the role writes no heartbeat.
    "max_block_ms": 10_000,
}
"""Options of producers of a log's own topics; they override `kafka.client`."""
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols that exist; kafka-python treats any other text as PLAINTEXT."""
PASSWORD = ("sasl_plain_username", "sasl_plain_password")
MECHANISMS: dict[str, tuple[str, ...]] = {
    "PLAIN": PASSWORD,
    "SCRAM-SHA-256": PASSWORD,
    "SCRAM-SHA-512": PASSWORD,
    "OAUTHBEARER": (TOKEN_PROVIDER,),
    "GSSAPI": (),
    "AWS_MSK_IAM": (),
}
"""SASL mechanisms, and the options that each needs."""


def client_settings(kafka: KafkaSettings, known: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a kafka-python client; lists from YAML or JSON become the tuples it expects.

    Args: known: the options that this kind of client has; others are left out.
    Raises: SettingsError.
    """
    given = read_options(kafka)
    extra = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k in known}
    provider = extra.get(TOKEN_PROVIDER)
    if isinstance(provider, str):
        extra[TOKEN_PROVIDER] = _token_provider(provider)

    # Our defaults, which the user's options override; not every kind of client has both.
    if "reconnect_backoff_max_ms" in known:
        extra.setdefault("reconnect_backoff_max_ms", RECONNECT_MS)
    if "bootstrap_timeout_ms" in known:
        extra.setdefault("bootstrap_timeout_ms", BOOTSTRAP_MS)
    return {"bootstrap_servers": [s.strip() for s in kafka.bootstrap_servers.split(",")], **extra}


def read_options(kafka: KafkaSettings) -> dict[str, Any]:
    """The options in `kafka.client` and in the file `kafka.client_file`.

    Clients read the file again for each connection, so that a changed password is used.

    Raises: SettingsError, which names the option and the file, never the value.
    """
    in_file = {} if kafka.client_file is None else _read_file(kafka.client_file)
    errors = [
        *_check_each(kafka.client, "kafka.client"),
        *_check_each(in_file, f"kafka.client_file {kafka.client_file}"),
    ]
    # With a key in both, it would be unclear which value counts.
    for key in in_file:
        if key in kafka.client:
            where = f"kafka.client and in {kafka.client_file}"
            errors.append(SettingsError(f"{key} is set in {where}.", "keep one of them."))

    if errors:
        raise settings_error([str(error) for error in errors])

    # These checks compare several options, which may come from settings and file.
    options = {**kafka.client, **in_file}
    _check_security(options)
    _check_certificates(options)
    return options


def _read_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file.

    Raises: SettingsError, which never quotes the file, since it may hold passwords.
    """
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise SettingsError(
            f"kafka.client_file {path} cannot be read: {error.strerror}.",
            "correct its path, or let this user read it.",
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        # PyYAML's own message may quote the line, so report only its number.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise SettingsError(
            f"kafka.client_file {path} is not YAML{where}.",
            "put text with characters such as * or : in quotes.",
        ) from None
    if not isinstance(content, dict):
        raise SettingsError(
            f"kafka.client_file {path} must hold a mapping of options.",
            "write an option a line, as `security_protocol: SASL_SSL`.",
        )
    return content


def _check_each(options: Mapping[str, Any], where: str) -> Iterator[SettingsError]:
    """Yield an error for each option that streamd sets itself, that kafka-python does not know, or
    that has a wrong type."""
    known = {
        *KafkaConsumer.DEFAULT_CONFIG,
        *KafkaProducer.DEFAULT_CONFIG,
        *KafkaAdminClient.DEFAULT_CONFIG,
    }
    # kafka-python ignores a mistyped name silently, so name the nearest known one.
    for key, value in options.items():
        if key in FIXED_OPTIONS:
            yield SettingsError(
                f"{where}: {key} is decided by streamd and cannot be set.", "remove it."
            )
            continue
        if key not in known:
            close = nearest(str(key), known)
            yield SettingsError(
                f"{where} has {key!r}, which kafka-python does not know"
                + (f"; did you mean {close!r}?" if close is not None else "."),
                "correct its name, or remove it.",
            )
            continue
        kind = _kind(key)
        if kind is not None and not isinstance(value, kind):
            actual = type(value).__name__
            yield SettingsError(
                f"{where}: {key} is of type {actual}, not {kind.__name__}.",
                "put text in quotes, but not true and false.",
            )


def _kind(key: str) -> type | None:
    """The type that an option of SASL or TLS must have; None for other options."""
    if key == "ssl_check_hostname":
        return bool
    return str if key.startswith(("security_", "sasl_", "ssl_")) else None


def _check_security(options: Mapping[str, Any]) -> None:
    """Refuse combinations that kafka-python ignores, or reports only while it connects."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    mechanism = options.get("sasl_mechanism")
    if protocol not in PROTOCOLS:
        raise SettingsError(
            "The Kafka client's security_protocol does not exist.",
            f"use one of {', '.join(PROTOCOLS)}.",
        )
    # Options of a layer that the protocol does not have would be ignored.
    for key in options:
        without = "SASL" if key.startswith("sasl_") else "SSL" if key.startswith("ssl_") else ""
        if without not in protocol:
            raise SettingsError(
                f"The Kafka client's {key} has no effect without {without}: its "
                f"security_protocol is {protocol}.",
                f"change security_protocol, or remove {key}.",
            )

    # A SASL mechanism needs its own options, and some need a package.
    if "SASL" in protocol and mechanism not in MECHANISMS:
        raise SettingsError(
            f"security_protocol {protocol} needs a sasl_mechanism that exists.",
            f"use one of {', '.join(MECHANISMS)}.",
        )
    for key in MECHANISMS.get(mechanism or "", ()):
        if not options.get(key):
            raise SettingsError(
                f"sasl_mechanism {mechanism} needs {key}.",
                "set it in the file that kafka.client_file names.",
            )
    if mechanism == "AWS_MSK_IAM" and protocol != "SASL_SSL":
        raise SettingsError(
            "sasl_mechanism AWS_MSK_IAM needs security_protocol SASL_SSL.", "set both."
        )
    if mechanism == "AWS_MSK_IAM" and find_spec("botocore") is None:
        raise SettingsError(
            "sasl_mechanism AWS_MSK_IAM needs the package botocore.",
            "pip install 'streamd-gnn[msk]'.",
        )


def _check_certificates(options: Mapping[str, Any]) -> None:
    """Load the TLS files once, to name a wrong one: kafka-python reports only that no broker
    answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority = options.get("ssl_cafile")
    certificate = options.get("ssl_certfile")
    if options.get("ssl_keyfile") and not certificate:
        raise SettingsError("The Kafka client's ssl_keyfile needs ssl_certfile.", "set both.")
    try:
        tried = f"ssl_cafile {authority}"
        if authority:
            context.load_verify_locations(authority)
        tried = f"ssl_certfile {certificate} with its key and password"
        if certificate:
            # Without a password, OpenSSL would ask at the terminal for that of an encrypted key.
            password = options.get("ssl_password", "")
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), password)
    except OSError as error:
        raise SettingsError(
            f"The Kafka client cannot load {tried}: {error.strerror}.",
            "name PEM files that this user may read.",
        ) from None


@contextmanager
def asking_about_topics(kafka: KafkaSettings) -> Iterator[KafkaAdminClient]:
    """Connect an admin client for questions about topics, and close it after the `with` block.
    Raises: KafkaError, also if the broker refuses to answer."""
    admin = make_admin(kafka)
    try:
        yield admin
    except ClientError as error:
        raise SilentBrokerError(
            f"The broker does not describe the topics: {error}.", "check kafka.client."
        ) from None
    finally:
        admin.close()


def make_producer(
    kafka: KafkaSettings, fixed: Mapping[str, Any] = NO_OPTIONS, **settings: Any
) -> KafkaProducer:
    """Make a producer from the settings; the caller closes it. fixed: options that override those
    of the user."""
    # The broker would create topics with its default partitions and retention.
    return _make_client(KafkaProducer, kafka, {AUTO_CREATE: False, **settings}, fixed)


CLOSE_SECONDS = 1.0
"""Longest wait for a producer's thread to end."""


def close_producer(producer: Any, flush_seconds: float = 0.0) -> None:
    """Close a producer, and drop the records that are not stored within `flush_seconds`."""
    # `close` raises, and closes nothing, while records wait; only the sender itself can drop them.
    with contextlib.suppress(ClientError):
        producer.flush(flush_seconds)
    producer._sender.force_close()
    producer._sender.join(CLOSE_SECONDS)
    with contextlib.suppress(ClientError):
        producer.close(timeout=CLOSE_SECONDS)


def send(producer: Any, topic: str, **record: Any) -> Any:
    """Send a record to a topic that must exist. Returns: its future. Raises: KafkaError."""
    try:
        return producer.send(topic, **record)
    except ClientError as error:
        raise KafkaError(
            f"Topic {topic} accepts no records: {str(error).rstrip('.')}.",
            "check the broker; for a missing topic `streamd doctor` prints the command.",
        ) from error


def settle(producer: Any, pending: list[Any]) -> None:
    """Wait until all pending records are acknowledged, and clear the list. Raises: KafkaError."""
    # `flush` raises nothing for a record that was refused: its future does.
    producer.flush()
    for future in pending:
        try:
            future.get(timeout=60)
        except Exception as error:  # noqa: BLE001 - any error means not acknowledged
            raise KafkaError(
                f"Kafka did not acknowledge a record: {reason_of(error)}.",
                "check the broker and the topic.",
            ) from error
    pending.clear()


def make_admin(kafka: KafkaSettings) -> KafkaAdminClient:
    """Make an admin client from the settings; the caller closes it."""
    return _make_client(KafkaAdminClient, kafka, {"request_timeout_ms": 20_000})


def make_consumer(kafka: KafkaSettings) -> KafkaConsumer:
    """Make a consumer for assigned partitions; the caller closes it.

    It joins no group, commits no offsets and never skips an offset by itself. A record that the
    client cannot decode becomes a refused one (`streamd.ingest.kafka.safe_records`).
    """
    make_reading_safe()
    return _make_client(
        KafkaConsumer,
        kafka,
        {
            # At most 16 MiB a response and 4 MiB of it a partition, unless one batch is larger:
            # records that are fetched ahead wait in memory.
            "fetch_max_bytes": 16_777_216,
            "max_partition_fetch_bytes": 4_194_304,
            # Only the log determines the next offset; if Kafka no longer has it, that is an error.
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            # Records of aborted transactions are left out.
            "isolation_level": "read_committed",
            AUTO_CREATE: False,
            "metadata_max_age_ms": 30_000,
        },
    )


def _make_client(
    kind: Any,
    kafka: KafkaSettings,
    settings: dict[str, Any],
    fixed: Mapping[str, Any] = NO_OPTIONS,
) -> Any:
    """Make a client of a kind. Raises: KafkaError if no broker accepts it, SettingsError."""
    options = client_settings(kafka, kind.DEFAULT_CONFIG)
    try:
        # The user's options override ours, but not `fixed`; they cannot be any of FIXED_OPTIONS.
        chosen = {**settings, **options, **fixed}
        if (file := kafka.client_file) is not None:
            chosen["kafka_client"] = partial(client_of, file, partial(read_options, kafka))
        client = kind(**chosen)
    except ClientError as error:
        rejection = find_rejection(kafka.bootstrap_servers, options)
        if rejection is None and isinstance(error, SaslAuthenticationFailedError):
            rejection = refused_login(kafka.bootstrap_servers, options, str(error))
        if rejection is not None:
            raise KafkaError(f"{rejection.why}.", rejection.action) from None
        why = why_silent(kafka.bootstrap_servers, options) or error
        raise SilentBrokerError(
            f"No broker answers at {kafka.bootstrap_servers}: {why}.",
            "check kafka.bootstrap_servers, kafka.client and kafka.client_file.",
        ) from None
    except (TypeError, ValueError, OSError, AssertionError) as error:
        raise SettingsError(
            f"kafka.client has invalid options: {error}.", "check kafka.client."
        ) from None
    _allow_topic_creation(client, bool(chosen.get(AUTO_CREATE, False)))
    return client


def _allow_topic_creation(client: Any, allowed: bool) -> None:
    """Set whether a client's metadata requests let the broker create topics. kafka-python 3.0
    ignores the option, so that every client would create them."""
    manager = getattr(getattr(client, "_client", None), "_manager", None)
    cluster = getattr(client, "_metadata", None) or getattr(manager, "cluster", None)
    if cluster is not None:
        cluster.config[AUTO_CREATE] = allowed


def _token_provider(path: str) -> Any:
    """Make an object of the class that `package.module:Class` names. Raises: SettingsError."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"kafka.client.{TOKEN_PROVIDER} {path!r} cannot be made: {error}.",
            "name it as package.module:Class, with a constructor without arguments.",
        ) from None
