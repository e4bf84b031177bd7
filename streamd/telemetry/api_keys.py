"""API keys for the API and the metrics: from the settings, and from a file that may be rotated
while a role runs."""

import hmac
from collections.abc import Sequence
from pathlib import Path

import structlog
from pydantic import SecretStr

from streamd.errors import SettingsError
from streamd.settings.loading import ServerSettings, has_keys

logger = structlog.get_logger()


class Keys:
    """The accepted keys of one kind, for requests or for administration. Thread-safe."""

    def __init__(self, fixed: Sequence[SecretStr], file: Path | None) -> None:
        """fixed: keys of the settings. file: further keys, one a line, read again whenever it
        changes.

        Raises: SettingsError if the file has no key at the start.
        """
        self._fixed = [k.get_secret_value().encode() for k in fixed]
        self._file = file
        self._seen = (0, 0)
        self._rotated: list[bytes] = []
        if file is not None:
            self._read()
            if not self._rotated:
                raise SettingsError(
                    f"{file} holds no key.",
                    "write one key a line, or unset the setting that names it.",
                )

    def holds(self, given: str | None) -> bool:
        """Whether a request's key is accepted; the comparison takes constant time."""
        if self._file is not None:
            self._read()
        # Compare with all keys, so that the time does not reveal which key is similar.
        one = (given or "").encode()
        matches = [hmac.compare_digest(one, key) for key in (*self._fixed, *self._rotated)]
        return any(matches)

    def _read(self) -> None:
        """Read the file if it changed; while it is missing or empty, the last keys stay valid."""
        assert self._file is not None

        # A rotation changes the file's modification time, or its inode if the file is renamed into
        # place.
        try:
            stat = self._file.stat()
            if (seen := (stat.st_mtime_ns, stat.st_ino)) == self._seen:
                return
            keys = [line.strip() for line in self._file.read_bytes().splitlines() if line.strip()]
        except OSError as error:
            if self._seen != (0, 0):
                logger.error(
                    "keys_not_read",
                    file=str(self._file),
                    error=str(error),
                    meaning="the last keys stay valid",
                )
                self._seen = (0, 0)
            return

        # A writer may have truncated the file before it writes the new keys.
        self._seen = seen
        self._rotated = keys or self._rotated


def key_of(authorization: str, x_api_key: str | None) -> str | None:
    """The key of a request, from the two headers that may contain it.

    authorization is "" and x_api_key None if the header is missing.
    """
    scheme, _, token = authorization.partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or x_api_key


class ApiKeys:
    """Decides what a key may do. Without any keys everything is allowed, and the server listens on
    loopback only."""

    def __init__(self, settings: ServerSettings) -> None:
        self._keys = Keys(settings.api_keys, settings.api_keys_file)
        self._admin = Keys(settings.admin_keys, settings.admin_keys_file)
        self._open = not has_keys(settings)

    def allows(self, key: str | None) -> bool:
        """Whether a key may request answers and metrics."""
        return self._open or self._keys.holds(key) or self._admin.holds(key)

    def may_administer(self, key: str | None) -> bool:
        """Whether a key may promote a version, roll back, and erase nodes."""
        return self._open or self._admin.holds(key)
