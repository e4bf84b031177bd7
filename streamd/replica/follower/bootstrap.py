"""Builds a directory from the store's newest manifest, to replace a log that is missing or too old
for the changelog."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from streamd.errors import DataDirectoryError, DiskError
from streamd.eventlog.journal.changelog_position import (
    CHANGELOG,
    UNKNOWN,
    ChangelogId,
    read_position,
)
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.layout import APPENDED
from streamd.eventlog.recovery import lock_directory, state_at
from streamd.replica.start import settled_seq
from streamd.roles import FOLDER as ROLES_FOLDER
from streamd.storage import DISK, SCRATCH, Disk, write_durably
from streamd.store import manifests
from streamd.store.manifests import Manifest
from streamd.store.objects import Store
from streamd.store.restore import restore
from streamd.telemetry import replica_metrics

logger = structlog.get_logger()
MADE = "bootstrap"
"""Folder in the data directory with a complete log that is to replace the old one. It lies inside,
because a rename works only within one volume."""
LOG_PARTS = tuple(dict.fromkeys(["journal", *(p.split("/")[0] for p in APPENDED), "edges"]))
"""The files and folders of a log in a data directory, besides `published` and the position."""
LEARNED = "models"
OF_THE_OLD_LOG = ("hold", "facts", "memory")
"""Files that roles derived from the replaced log; the roles make them again."""


def newest_manifest(store: Store, changelog: ChangelogId = UNKNOWN) -> Manifest | None:
    """The newest manifest with a position in this changelog, None if there is none. Manifests of
    another changelog, such as a topic before its re-creation, are skipped. Raises: StoreError."""
    for name in reversed(manifests.names(store)):
        manifest = manifests.read(store, name)
        is_other = ChangelogId(*manifest.changelog).is_other(changelog)
        if manifest.changelog_offset is not None and not is_other:
            return manifest
    return None


def take_manifest(
    store: Store,
    manifest: Manifest,
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    disk: Disk = DISK,
) -> bool:
    """Let a directory whose position is before the changelog's first record continue from a
    manifest: with the manifest's position if the log here has its commits, else with its files.

    Returns: whether this helps; False if the log here has the manifest's position already, or at
    least as many commits that differ. Raises: as `bootstrap`.
    """
    position = manifest.position
    if position is not None and state_at(data_dir, manifest.seq) == LogState.restored(manifest.log):
        own = read_position(data_dir)
        if own is not None and own.offset >= position.offset:
            return False
        with _writing(data_dir, disk):
            write_durably(data_dir / CHANGELOG, position.pack(), disk)
        logger.info("position_restored", seq=position.seq, changelog_offset=position.offset)
        return True

    # After a power cut `published` may be older than the journal's first line.
    if manifest.seq <= settled_seq(data_dir):
        return False
    bootstrap(store, manifest, data_dir, progress, disk)
    return True


def bootstrap(
    store: Store,
    manifest: Manifest,
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    disk: Disk = DISK,
) -> None:
    """Replace the log of a directory by the log and the models of a manifest.

    After a kill the directory has the old log or, once `finish_bootstrap` was called, the new one.
    A server that reads the old log ends, and is restarted. Raises: StoreError, LockedError;
    DiskError if the directory cannot be written, as on a full disk: the next call starts again.
    """
    with _writing(data_dir, disk):
        _move_in(data_dir, disk)
        wanted = [
            file
            for file in manifest.files
            if not file.path.startswith((f"{ROLES_FOLDER}/", "train/"))
        ]
        made = data_dir / MADE
        restore(store, msgspec.structs.replace(manifest, files=wanted), made, progress, disk=disk)
        _move_in(data_dir, disk)
    replica_metrics.follow_bootstraps.inc()
    logger.info("bootstrapped", seq=manifest.seq, changelog_offset=manifest.changelog_offset)


def finish_bootstrap(data_dir: Path, disk: Disk = DISK) -> None:
    """Replace the old log by a new one that was complete before a kill; do nothing if there is
    none. Raises: LockedError, DiskError."""
    if (data_dir / MADE).exists():
        with _writing(data_dir, disk):
            _move_in(data_dir, disk)


@contextmanager
def _writing(data_dir: Path, disk: Disk) -> Iterator[None]:
    """Hold the directory's lock, and raise a failed write as a DiskError."""
    lock = lock_directory(data_dir / "lock")
    try:
        yield
    except (OSError, DataDirectoryError) as error:
        raise DiskError(
            f"The log of another machine cannot be written to {data_dir}: {error}.",
            "free space or mend the volume; the follower tries again by itself.",
        ) from error
    finally:
        disk.close(lock)


def _move_in(data_dir: Path, disk: Disk = DISK) -> None:
    """Replace the old log by the new one, if that is complete. The caller holds the lock."""
    made = data_dir / MADE
    disk.remove_folder(data_dir / f".{MADE}.restore{SCRATCH}")
    if not made.exists():
        return
    # Readers recognize a log by `published`: it is removed first, and moved last.
    if (made / "published").exists() and not (made / "begun").exists():
        disk.unlink(data_dir / "published")
        disk.unlink(data_dir / CHANGELOG)
        for part in LOG_PARTS:
            _remove(data_dir / part, disk)
        for folder in (data_dir / ROLES_FOLDER).glob("*"):
            for part in OF_THE_OLD_LOG:
                _remove(folder / part, disk)
        disk.sync_folder(data_dir)
        mark = disk.open(made / "begun", os.O_RDWR | os.O_CREAT)
        disk.close(mark)
        disk.sync_folder(made)
    for part in (*LOG_PARTS, LEARNED, CHANGELOG, "published"):
        if not (made / part).exists():
            continue
        # Versions that exist here are of the same log; the models topic brings the others.
        if part == LEARNED and (data_dir / part).exists():
            continue
        disk.replace(made / part, data_dir / part)
    disk.sync_folder(data_dir)
    disk.remove_folder(made)
    disk.sync_folder(data_dir)


def _remove(path: Path, disk: Disk) -> None:
    if path.is_dir():
        disk.remove_folder(path)
    else:
        disk.unlink(path)
