"""The exports of a log, noted in its directory: `DATA/exports/<name>.json` is one.

A proof of erasure reads them to find the tables that hold a key. `DATA/exports/<name>.lock` is the
lock of the process that writes the tables.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from streamd.errors import LockedError
from streamd.eventlog.recovery import lock_directory
from streamd.settings.log import without_secrets
from streamd.storage import write_durably

FOLDER = "exports"
ENDING = ".json"
Format = Literal["parquet", "iceberg"]


class Registered(msgspec.Struct, frozen=True):
    """An export. to: path or URL of its tables, without credentials. needs_credentials: whether it
    had some in its URL."""

    to: str
    format: Format
    needs_credentials: bool = False


@contextlib.contextmanager
def locked_export(data_dir: Path, to: str) -> Iterator[None]:
    """Keep other processes from exporting the log to the same tables meanwhile. Without the right
    to write, as in a mounted backup, it does nothing. Raises: LockedError."""
    shown, path = without_secrets(to), _path_of(data_dir, to)
    lock = None
    try:
        path.parent.mkdir(exist_ok=True)
        lock = lock_directory(path.with_suffix(".lock"))
    except LockedError:
        raise LockedError(
            f"Another process exports {data_dir} to {shown}.", "stop it, or let it finish."
        ) from None
    except OSError:
        # Nothing can be written here.
        pass
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def register(data_dir: Path, to: str, of_format: Format) -> None:
    """Note an export in the log's directory, durably, before it writes rows and once nothing
    refuses it: a proof of erasure searches each table that is noted. Without the right to write it
    does nothing."""
    shown = without_secrets(to)
    one = Registered(shown, of_format, shown != to)
    with contextlib.suppress(OSError):
        write_durably(_path_of(data_dir, to).with_suffix(ENDING), msgspec.json.encode(one))


def _path_of(data_dir: Path, to: str) -> Path:
    """The path of an export's note and lock, without ending."""
    name = hashlib.sha256(without_secrets(to).encode()).hexdigest()[:16]
    return data_dir / FOLDER / name


def read_registered(data_dir: Path) -> list[Registered]:
    """The exports that were ever made of a log, in no particular order; damaged notes are left
    out."""
    found = []
    # A note may be removed meanwhile.
    for path in sorted((data_dir / FOLDER).glob(f"*{ENDING}")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Registered))
    return found
