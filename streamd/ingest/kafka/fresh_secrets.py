"""Connects to brokers with the passwords that `kafka.client_file` has at that moment."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from streamd.errors import SettingsError

logger = structlog.get_logger()
SECRETS = ("sasl_plain_username", "sasl_plain_password", "ssl_password")
"""Options that a client reads again. Files of certificates and keys are read at each connection
anyway."""


class FreshSecrets(KafkaConnectionManager):  # type: ignore[misc]
    """Makes the connections of one client. Owner: that client."""

    def __init__(
        self, net: Any, file: Path, read: Callable[[], Mapping[str, Any]], **options: Any
    ) -> None:
        """read: reads the options again; if it raises SettingsError, the old options stay."""
        self._file = file
        self._read = read
        self._stamp = _stamp_of(file)
        super().__init__(net, **options)

    def get_connection(self, node_id: Any, *args: Any, **options: Any) -> Any:
        """As in the base class; a new connection uses the newest secrets."""
        if node_id not in self._conns:
            self._renew()
        return super().get_connection(node_id, *args, **options)

    def _renew(self) -> None:
        stamp = _stamp_of(self._file)
        if stamp == self._stamp or stamp is None:
            return
        self._stamp = stamp
        try:
            options = self._read()
        except SettingsError as error:
            meaning = "connections use the old secrets until the file changes"
            logger.error("kafka_secrets_not_read", error=str(error), meaning=meaning)
            return
        self.config.update({key: options[key] for key in SECRETS if key in options})
        # Try brokers again that refused the old ones.
        self._auth_failures.clear()
        logger.info("kafka_secrets_read_again", file=str(self._file))


def client_of(file: Path, read: Callable[[], Mapping[str, Any]], **options: Any) -> Any:
    """Make kafka-python's inner client, for its option `kafka_client`, with connections by
    `FreshSecrets`. read: as in `FreshSecrets`."""
    net = NetworkSelector(**options)
    return KafkaNetClient(net, FreshSecrets(net, file, read, **options), **options)


def _stamp_of(file: Path) -> tuple[int, int] | None:
    """Modification time and inode of a file: a write or a rename changes one of them. None if there
    is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
