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
def registered(data_dir: Path, to: str, of_format: Format) -> Iterator[None]:
    """Note an export in the log's directory, and keep other processes from writing to the same
    tables meanwhile. Without the right to write, as in a mounted backup, neither is done. Raises:
    LockedError."""
    shown = without_secrets(to)
    path = data_dir / FOLDER / hashlib.sha256(shown.encode()).hexdigest()[:16]
    # The lock comes first: of two processes only one writes the note.
    lock = None
    try:
        path.parent.mkdir(exist_ok=True)
        lock = lock_directory(path.with_suffix(".lock"))
        one = Registered(shown, of_format, shown != to)
        write_durably(path.with_suffix(ENDING), msgspec.json.encode(one))
    except LockedError:
        raise LockedError(
            f"Another process exports {data_dir} to {shown}.", "stop it, or let it finish."
        ) from None
    except OSError:
        # Nothing can be noted here.
        pass
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def read_registered(data_dir: Path) -> list[Registered]:
    """The exports that were ever made of a log, in no particular order; damaged notes are left
    out."""
    found = []
    # A note may be removed meanwhile.
    for path in sorted((data_dir / FOLDER).glob(f"*{ENDING}")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Registered))
    return found
