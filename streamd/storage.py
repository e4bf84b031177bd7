"""Files and folders written whole: durable before they have their name."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after power loss."""
    scratch = path.with_name(f".{path.name}.tmp")
    _write(scratch, data)
    scratch.replace(path)
    sync_folder(path.parent)


def write_folder_durably(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files that is there whole or not at all; one already there stays."""
    if path.exists():
        return
    scratch = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for name, data in files.items():
        _write(scratch / name, data)
    sync_folder(scratch)
    scratch.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a directory's entries durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
