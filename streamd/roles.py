"""What a role writes for itself lies under its own name, `DATA/roles/<name>/`: so two servers may
share a directory."""

import contextlib
import re
from pathlib import Path

from streamd.errors import SettingsError
from streamd.storage import DISK

ROLES = ("ingest", "train", "serve")
COMPACT = "compact"
"""Under this name housekeeping says how far it is, whichever process does it."""
FOLDER = "roles"
HOLD = "hold"
FACTS = "facts"
MEMORY = "memory.safetensors"
HEARTBEAT = "heartbeat.json"
LOCK = "lock"
OLD_HOLDS = "holds"
OLD_HEARTBEATS = "run"
"""Where each role had a file beside the others' before it had a folder."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


def folder_of(data_dir: Path, name: str) -> Path:
    """Where a role of that name writes; perhaps not there yet."""
    return data_dir / FOLDER / name


def make_folder(data_dir: Path, name: str) -> Path:
    """The same, there for good."""
    folder = folder_of(data_dir, name)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (folder.parent, data_dir):
            DISK.sync_folder(parent)
    return folder


def names_in(data_dir: Path) -> list[str]:
    """Of all roles that ever wrote here, in order; what is called otherwise is a stranger's."""
    return sorted(
        p.name for p in (data_dir / FOLDER).glob("*") if NAME.fullmatch(p.name) and p.is_dir()
    )


def check_name(role: str, name: str) -> None:
    """Raises: SettingsError where a process of a role may not be called so."""
    if role != "serve":
        raise SettingsError(
            f"The {role} role takes no --name: a directory has one of it.", "leave --name out."
        )
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is no name for a server.",
            "use at most 32 of a-z, 0-9 and -, beginning with a letter or digit, such as serve-2.",
        )
    if name in ("ingest", "train", COMPACT):
        raise SettingsError(
            f"A server cannot be called {name!r}: that is another part's name.", "call it serve-2."
        )


def take_over(data_dir: Path, name: str) -> None:
    """Move what a role wrote before each had a folder; other names than the roles' did not write
    then. For the role to call at its start.

    A kill leaves each file in one of both places. The hold goes last: until then the one in the old
    place, which every reader of holds knows too, keeps the log behind what was moved.
    """
    if name not in ROLES:
        return
    moved = [*sorted((data_dir / name / FACTS).glob("*.safetensors")), data_dir / name / MEMORY]
    for path in moved:
        if path.exists():
            new = make_folder(data_dir, name) / path.relative_to(data_dir / name)
            new.parent.mkdir(exist_ok=True)
            _move(path, new)
    if (old_hold := data_dir / OLD_HOLDS / name).exists():
        _move(old_hold, make_folder(data_dir, name) / HOLD)
    for beat in (name, COMPACT):
        (data_dir / OLD_HEARTBEATS / f"{beat}.json").unlink(missing_ok=True)
    for folder in (data_dir / name / FACTS, data_dir / name, data_dir / OLD_HEARTBEATS):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _move(old: Path, new: Path) -> None:
    DISK.replace(old, new)
    for folder in (new.parent, new.parent.parent, old.parent):
        DISK.sync_folder(folder)
