"""Copies a data directory that is mounted on this machine, such as the volume of a follower or a
snapshot of it. It needs no store and no network, and a daemon may run on the directory."""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from streamd.errors import StoreError
from streamd.eventlog.journal.journal import LogState
from streamd.storage import DISK, Disk
from streamd.store.file_index import FileIndex
from streamd.store.ranges import Earlier, files_to_store, objects_of
from streamd.store.restore import new_directory, verify_result, write_pieces, write_publication
from streamd.store.snapshot import NAME
from streamd.store.upload import snapshot_with_position

COPIED = "models/"
"""Folder that is copied in addition to the log. The state of roles and trainer is not copied: a
member's name, leases, heartbeats and locks must not exist twice, and the rest is made again."""
AGAIN = "run `streamd verify` there, and restore again, or from the store."


def directory_at(url: str) -> Path | None:
    """The data directory at a path or file:// URL; None if there is none, so that the URL may be
    that of a store."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    path = Path(unquote(parts.path) if parts.scheme else url)
    is_log = (path / "published").is_file() and (path / "journal").is_dir()
    return path if is_log else None


def copy_directory(
    source: Path,
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    check: Callable[[Path], list[str]] = lambda folder: [],
    disk: Disk = DISK,
) -> LogState:
    """Copy the log up to its newest published commit, the versions, and the position in the
    changelog to a directory that is empty or missing. Then check the copy.

    As in a backup, links in `roles/backup` keep the source's files during the copy; a read-only
    source gets no links.

    Args: as in `restore.restore`. Returns: the log's state. Raises: DataDirectoryError if the
    target is not empty; StoreError if a file changed or was removed meanwhile, or is damaged;
    LockedError if a backup of the source runs; JournalError, DiskError.
    """
    with (
        new_directory(data_dir, disk) as scratch,
        snapshot_with_position(
            source, NAME, DISK, in_place=not os.access(source, os.W_OK)
        ) as taken,
    ):
        snapshot, position, _ = taken
        nothing = Earlier(state=None, files={}, index=FileIndex(), objects={})
        wanted = [
            one
            for one in files_to_store(snapshot, nothing)
            if one.path not in snapshot.learned or one.path.startswith(COPIED)
        ]
        total = sum(one.num_bytes for one in wanted)
        done = 0

        def written(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(done, total)

        last = snapshot.state.last
        try:
            for one in wanted:
                path = scratch / one.path
                path.parent.mkdir(parents=True, exist_ok=True)
                reserve = last is not None and one.path == last.path
                pieces = objects_of(snapshot.folder, one)
                write_pieces(path, one.size, pieces, reserve, written, disk)
        except FileNotFoundError as error:
            raise StoreError(f"{error.filename} was removed during the copy.", AGAIN) from None
        write_publication(scratch, snapshot.state.seq, position, disk)
        verify_result(scratch, snapshot.state, check, f"The copy of {source}", AGAIN)
    return snapshot.state
