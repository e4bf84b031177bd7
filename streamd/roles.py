"""Names of roles, and the folder `DATA/roles/<name>/` with the files of each, so that two servers
may share a data directory."""

import contextlib
import re
from pathlib import Path

from streamd.errors import SettingsError
from streamd.storage import DISK

ROLES = ("ingest", "train", "serve")
"""The roles of a single machine, or of a leader."""
ARCHIVE = "archive"
"""The role of a leader that uploads its files to the store for other machines."""
FOLLOW = "follow"
"""The role of a replica that writes the log from the leader's changelog."""
SCORE = "score"
"""The role that writes a score of each event to a topic."""
TRIAL = "trial"
"""The role that joins impressions and outcomes of a trial."""
ALL_ROLES = (*ROLES, ARCHIVE, FOLLOW, SCORE, TRIAL)
REPLICA_ROLES = (FOLLOW, "serve")
BACKUP = "backup"
"""Name of the folder of `streamd backup`, which is no role."""
HANDOVER = "handover"
"""Name of the folder with the hold for the trainer's newest stored checkpoint, which is no role."""
WORKER = "serve-worker-"
"""Prefix of the names of all but the first of several `server.workers`."""
RANK = "train-rank-"
"""Prefix of the names of all but the first of the trainer's ranks."""
COMPACT = "compact"
"""Name of the heartbeat of housekeeping, in whichever process it runs."""
# Files in the folder of a role.
FOLDER = "roles"
HOLD = "hold"
FACTS = "facts"
MEMORY = "memory"
OLD_MEMORY = "memory.safetensors"
HEARTBEAT = "heartbeat.json"
LOCK = "lock"
ENDS = "ends.json"
"""File of the follower: the partitions with records in Kafka that the log here lacks."""
OLD_HOLDS = "holds"
OLD_HEARTBEATS = "run"
"""Folders of older releases, with a file for each role."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""Names that are safe as folders and as metric labels."""


def roles_of(
    name: str, store: str, member: str, score_topic: str = "", trial: str = ""
) -> tuple[str, ...]:
    """The roles of `streamd run` for the settings `log.name`, `log.store`, `log.member`,
    `server.score_topic` and `trials.name`; a standby has the roles of a leader."""
    if member == "replica":
        return REPLICA_ROLES
    archive = (ARCHIVE,) if name and store else ()
    score = (SCORE,) if score_topic else ()
    joins = (TRIAL,) if trial else ()
    return (*ROLES, *archive, *score, *joins)


def server_names(workers: int) -> tuple[str, ...]:
    """Names of the servers that share one port, in order; the first has the role's name."""
    return ("serve", *(f"{WORKER}{number}" for number in range(1, workers)))


def rank_names(num_ranks: int) -> tuple[str, ...]:
    """Names of the trainer's ranks, in order; the first has the role's name."""
    return ("train", *(f"{RANK}{number}" for number in range(1, num_ranks)))


def folder_of(data_dir: Path, name: str) -> Path:
    """The folder of a role's files, which may not exist yet."""
    return data_dir / FOLDER / name


def make_folder(data_dir: Path, name: str) -> Path:
    """Create the folder of a role's files durably, if it does not exist. Returns: its path."""
    # Without the syncs, a crash could lose the folder and the hold in it.
    folder = folder_of(data_dir, name)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (folder.parent, data_dir):
            DISK.sync_folder(parent)
    return folder


def names_in(data_dir: Path) -> list[str]:
    """Names of all roles that have a folder in a data directory, sorted."""
    return sorted(
        p.name for p in (data_dir / FOLDER).glob("*") if NAME.fullmatch(p.name) and p.is_dir()
    )


def check_name(role: str, name: str) -> None:
    """Check the name of a process of a role. Raises: SettingsError."""
    if role != "serve":
        raise SettingsError(
            f"The {role} role takes no --name: a data_dir has only one.", "leave --name out."
        )
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is not a valid name of a server.",
            "use at most 32 of a-z, 0-9 and -, beginning with a letter or digit, such as serve-2.",
        )
    others = ("ingest", "train", ARCHIVE, FOLLOW, SCORE, TRIAL, BACKUP, COMPACT, HANDOVER)
    if name in others or name.startswith(RANK):
        raise SettingsError(
            f"A server cannot be called {name!r}: that is another part's name.", "call it serve-2."
        )


def take_over(data_dir: Path, name: str) -> None:
    """Move the role's files from the folders of an older release, in this order; the role calls it
    at its start:

    1. Move the facts, and delete the old file of memory.
    2. Move the hold. Until then the old hold, which all readers of holds read too, keeps the events
    that the moved files need. In another order a kill would let retention drop them.
    3. Delete old heartbeats and empty folders.
    """
    # Older releases had no other names.
    if name not in ROLES:
        return

    # 1. The old, single file of a server's memory is not moved: the server computes it again.
    for path in sorted((data_dir / name / FACTS).glob("*.safetensors")):
        new = make_folder(data_dir, name) / path.relative_to(data_dir / name)
        new.parent.mkdir(exist_ok=True)
        _move(path, new)
    for folder in (data_dir / name, folder_of(data_dir, name)):
        (folder / OLD_MEMORY).unlink(missing_ok=True)
    if (old_hold := data_dir / OLD_HOLDS / name).exists():
        _move(old_hold, make_folder(data_dir, name) / HOLD)

    # 3. A role soon writes its next heartbeat; folders with other files stay.
    for beat in (name, COMPACT):
        (data_dir / OLD_HEARTBEATS / f"{beat}.json").unlink(missing_ok=True)
    for folder in (data_dir / name / FACTS, data_dir / name, data_dir / OLD_HEARTBEATS):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _move(old: Path, new: Path) -> None:
    """Move a file durably, between folders of one volume."""
    DISK.replace(old, new)
    for folder in (new.parent, new.parent.parent, old.parent):
        DISK.sync_folder(folder)
