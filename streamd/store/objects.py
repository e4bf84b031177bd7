"""Stores of objects under a URL: a thin layer over fsspec with retries, deadlines and errors for
operators."""

import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from streamd.errors import StoreError
from streamd.settings.log import without_secrets
from streamd.storage import DISK, SCRATCH

T = TypeVar("T")
TIMEOUT_SECONDS = 60.0
"""Maximum time for all tries of one object: a store that restarts is back by then."""
CALL_SECONDS = 40.0
"""Maximum time of one call: a role without progress for 60 seconds counts as stalled."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
"""Pauses between tries grow from the first to the longest, to relieve an overloaded store."""
HIDDEN = "***"
SECRET_BYTES = 4
"""Minimum length of an option's value that is hidden in messages. No secret is shorter; single
digits occur in every message."""
AWAY = "check the store's URL, credentials and network, then run it again: stored objects stay."
PERMANENT_ERRORS = (FileNotFoundError, PermissionError, NotADirectoryError, NotImplementedError)
"""Errors that no retry can mend."""


class Store:
    """Puts, gets, lists and removes objects under a URL. Owner: one thread.

    shown: the URL without credentials, for messages. before_try: called before each try; an
    exception that it raises ends the call.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """timeout_seconds: maximum time for all tries of one object. sleep: waits between tries.
        Raises: StoreError if no installed file system supports the URL."""
        self.shown = without_secrets(url)
        self._secrets = _secrets_of(url)
        self._timeout = timeout_seconds
        self.sleep = sleep
        self.before_try: Callable[[], None] = lambda: None
        self._url = url
        try:
            self._fs, self._root = self._open()
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"No store can be opened at {self.shown}: {self._clean(error)}.",
                "name a URL such as file:///backups or s3://bucket/folder, and install its "
                "library: pip install 'streamd-gnn[s3]', [gs] or [azure].",
            ) from None
        # Calls of asynchronous file systems may hang; fsspec has a timeout for them.
        bound = min(timeout_seconds, CALL_SECONDS)
        self._bound = {"timeout": bound} if isinstance(self._fs, AsyncFileSystem) else {}

    def _open(self, **options: bool) -> tuple[fsspec.AbstractFileSystem, str]:
        """The file system of the URL, and the root in it. Raises: ImportError, ValueError."""
        # Do not cache listings, since other processes write to the store too.
        fs, root = fsspec.core.url_to_fs(self._url, use_listings_cache=False, **options)
        return fs, root

    def put(self, name: str, data: bytes) -> None:
        """Write an object completely or not at all, and check its size in the store. Raises:
        StoreError."""
        path = self._path(name)

        def write() -> None:
            if isinstance(self._fs, LocalFileSystem):
                _write_file(Path(path), data)
            else:
                self._fs.pipe_file(path, data, **self._bound)
            arrived = self._fs.info(path, **self._bound)["size"]
            if arrived != len(data):
                raise OSError(f"{arrived:,} of {len(data):,} bytes arrived")

        self._try(f"{name} cannot be written to", write)

    def get(self, name: str, most_bytes: int) -> bytes:
        """Read an object of at most `most_bytes`. Raises: StoreError if it is larger, or cannot be
        read."""

        def read() -> bytes:
            size = self._fs.info(self._path(name), **self._bound)["size"]
            if size > most_bytes:
                raise StoreError(
                    f"{name} in {self.shown} has {size:,} bytes, more than the {most_bytes:,} it "
                    "may have.",
                    "take another manifest; this one or its object was changed.",
                )
            return bytes(self._fs.cat_file(self._path(name), **self._bound))

        return self._try(f"{name} cannot be read from", read)

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Read bytes [begin, end) of an object, fewer if it is shorter. Raises: StoreError."""

        def read() -> bytes:
            return bytes(self._fs.cat_file(self._path(name), start=begin, end=end, **self._bound))

        return self._try(f"{name} cannot be read from", read)

    def sizes(self, folder: str) -> dict[str, int]:
        """Size of each object of a folder, by name. Raises: StoreError."""

        def find() -> dict[str, int]:
            try:
                found = self._fs.find(self._path(folder), detail=True, **self._bound)
            except FileNotFoundError:
                return {}
            start = len(self._root.rstrip("/")) + 1
            return {path[start:]: info["size"] for path, info in found.items()}

        return self._try(f"{folder} cannot be listed in", find)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, unless they are gone already. Raises: StoreError."""

        def remove(name: str) -> None:
            try:
                self._fs.rm_file(self._path(name), **self._bound)
            except FileNotFoundError:
                return

        for name in names:
            self._try(f"{name} cannot be removed from", lambda name=name: remove(name))  # type: ignore[misc]

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _try(self, what: str, act: Callable[[], T]) -> T:
        """Call `act`; if it fails, repeat it after growing pauses for up to `timeout_seconds`.
        what: the failure, for the error's text. Raises: StoreError."""
        begun = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        has_renewed = False
        while True:
            self.before_try()
            try:
                return act()
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - each file system has errors of its own
                # Open the file system again, since libraries read credentials only then, and these
                # may have been renewed.
                if isinstance(error, PermissionError) and not has_renewed:
                    has_renewed = True
                    self._fs, self._root = self._open(skip_instance_cache=True)
                    continue
                late = time.monotonic() - begun + pause > self._timeout
                if late or isinstance(error, PERMANENT_ERRORS):
                    # Do not chain the cause: its text may contain credentials.
                    raise StoreError(
                        f"{what} {self.shown}: {type(error).__name__} {self._clean(error)}.", AWAY
                    ) from None
            self.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _clean(self, error: BaseException) -> str:
        """The text of an error without the URL's credentials."""
        text = str(error).rstrip(".")
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def _secrets_of(url: str) -> list[str]:
    """The parts of a URL that may be credentials, longest first."""
    parts = urlsplit(url)
    user_info = parts.netloc.rpartition("@")[0]
    found = {user_info, *user_info.split(":", 1), parts.query}
    # A library may print option values, either as in the URL or decoded.
    found |= {value for _, value in parse_qsl(parts.query) if len(value) >= SECRET_BYTES}
    found |= {unquote(text) for text in found}
    return sorted(filter(None, found), key=len, reverse=True)


def _write_file(path: Path, data: bytes) -> None:
    """Write an object of a local store durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Trainer and archive may write the same object at once, so each renames its own file.
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}{SCRATCH}")
    try:
        with scratch.open("xb") as file:
            file.write(data)
            file.flush()
            DISK.sync(file.fileno())
        DISK.replace(scratch, path)
    except OSError:
        DISK.unlink(scratch)
        raise
    DISK.sync_folder(path.parent)
