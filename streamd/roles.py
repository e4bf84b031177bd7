"""Names of roles and the folder `DATA/roles/<name>/` in which each keeps its own files, so that two
servers may share a data directory."""

import contextlib
import re
from pathlib import Path

from streamd.errors import SettingsError
from streamd.storage import DISK

ROLES = ("ingest", "train", "serve")
"""The roles of a machine that is alone, or that leads."""
ARCHIVE = "archive"
"""The role of a leader that keeps the store for other machines."""
FOLLOW = "follow"
"""The role that writes the log where another machine leads."""
SCORE = "score"
"""The role that scores each event into a topic."""
ALL_ROLES = (*ROLES, ARCHIVE, FOLLOW, SCORE)
REPLICA_ROLES = (FOLLOW, "serve")
BACKUP = "backup"
"""Folder of `streamd backup`, which is no role."""
HANDOVER = "handover"
"""Folder of the hold for the trainer's newest stored checkpoint, which is no role."""
WORKER = "serve-worker-"
"""How the names of all but the first of several `server.workers` begin."""
RANK = "train-rank-"
"""How the names of all but the first of several ranks of the trainer begin."""
COMPACT = "compact"
"""Name under which housekeeping writes its heartbeat, whichever process does it."""
# What lies in the folder of a role.
FOLDER = "roles"
HOLD = "hold"
FACTS = "facts"
MEMORY = "memory"
OLD_MEMORY = "memory.safetensors"
HEARTBEAT = "heartbeat.json"
LOCK = "lock"
ENDS = "ends.json"
"""Of the follower: what Kafka has that the log here lacks."""
OLD_HOLDS = "holds"
OLD_HEARTBEATS = "run"
"""Folders of older releases, in which each role had a file."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""Names that are safe as a folder's and as a label of metrics."""


def roles_of(name: str, store: str, member: str, score_topic: str = "") -> tuple[str, ...]:
    """The roles that `streamd run` starts, by the settings `log.name`, `log.store`, `log.member`
    and `server.score_topic`; a standby has those of a leader."""
    if member == "replica":
        return REPLICA_ROLES
    archive = (ARCHIVE,) if name and store else ()
    score = (SCORE,) if score_topic else ()
    return (*ROLES, *archive, *score)


def server_names(workers: int) -> tuple[str, ...]:
    """Names of the servers that share one port, in order; the first is called as the role."""
    return ("serve", *(f"{WORKER}{number}" for number in range(1, workers)))


def rank_names(num_ranks: int) -> tuple[str, ...]:
    """Names of the trainer's ranks, in order; the first is called as the role."""
    return ("train", *(f"{RANK}{number}" for number in range(1, num_ranks)))


def folder_of(data_dir: Path, name: str) -> Path:
    """The folder of a role's files, which may not exist yet."""
    return data_dir / FOLDER / name


def make_folder(data_dir: Path, name: str) -> Path:
    """Make the folder of a role's files durably, where it does not exist. Returns: its path."""
    # Folders that a crash could lose would take the hold with them.
    folder = folder_of(data_dir, name)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (folder.parent, data_dir):
            DISK.sync_folder(parent)
    return folder


def names_in(data_dir: Path) -> list[str]:
    """Names of all roles that ever wrote in a data directory, sorted, without other folders."""
    return sorted(
        p.name for p in (data_dir / FOLDER).glob("*") if NAME.fullmatch(p.name) and p.is_dir()
    )


def check_name(role: str, name: str) -> None:
    """Check that a process of a role may have a name. Raises: SettingsError where it may not."""
    if role != "serve":
        raise SettingsError(
            f"The {role} role takes no --name: a directory has one of it.", "leave --name out."
        )
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is no name for a server.",
            "use at most 32 of a-z, 0-9 and -, beginning with a letter or digit, such as serve-2.",
        )
    others = ("ingest", "train", ARCHIVE, FOLLOW, SCORE, BACKUP, COMPACT, HANDOVER)
    if name in others or name.startswith(RANK):
        raise SettingsError(
            f"A server cannot be called {name!r}: that is another part's name.", "call it serve-2."
        )


def take_over(data_dir: Path, name: str) -> None:
    """Move the files that an older release left in other folders into the role's own; the role
    calls it at its start.

    A kill leaves each file in one of the two folders. The hold goes last: until then the one in the
    old folder, which every reader of holds knows too, keeps the events that the moved files need.
    """
    # Older releases had no names but the roles' own.
    if name not in ROLES:
        return

    # Facts first, then the hold. The one file of a server's memory is made again.
    for path in sorted((data_dir / name / FACTS).glob("*.safetensors")):
        new = make_folder(data_dir, name) / path.relative_to(data_dir / name)
        new.parent.mkdir(exist_ok=True)
        _move(path, new)
    for folder in (data_dir / name, folder_of(data_dir, name)):
        (folder / OLD_MEMORY).unlink(missing_ok=True)
    if (old_hold := data_dir / OLD_HOLDS / name).exists():
        _move(old_hold, make_folder(data_dir, name) / HOLD)

    # A role writes its heartbeat again at once; folders go where nothing else is in them.
    for beat in (name, COMPACT):
        (data_dir / OLD_HEARTBEATS / f"{beat}.json").unlink(missing_ok=True)
    for folder in (data_dir / name / FACTS, data_dir / name, data_dir / OLD_HEARTBEATS):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _move(old: Path, new: Path) -> None:
    """Rename a file durably, between folders of one volume."""
    DISK.replace(old, new)
    for folder in (new.parent, new.parent.parent, old.parent):
        DISK.sync_folder(folder)
