"""A snapshot of a live data directory, made of links.

Files that the daemon drops or replaces afterwards stay readable until the snapshot is removed, so
an upload of hours delays neither retention nor compaction.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from streamd.errors import DiskError, StoreError, StreamdError
from streamd.eventlog.journal.journal import LogState, journal_files, read_lines
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.layout import MOVES
from streamd.eventlog.learned_lines import LineSource
from streamd.eventlog.recovery import last_state, lock_directory
from streamd.registry.journal import decoded_moves
from streamd.registry.registry import FOLDER
from streamd.roles import FOLDER as ROLES_FOLDER
from streamd.roles import HEARTBEAT, LOCK, ROLES, folder_of, make_folder
from streamd.storage import BLOCK_BYTES, DISK, Disk, link_or_copy
from streamd.store.file_index import FileStat

NAME = "backup"
"""Name of the folder in `roles/` that holds the lock and the links of a backup."""
LINKS = "snapshot"
TRIES = 50
PAUSE_SECONDS = 0.1
"""A directory is linked in some milliseconds, and the daemon seldom replaces files, so a few tries
are enough. After five seconds of tries there must be another fault."""
LINKED = ".safetensors"
"""Ending of files that are written once; others may be appended to in place, and are copied."""
LEARNED = ("models", "train", *(f"{ROLES_FOLDER}/{role}" for role in ROLES))
"""Folders of versions, trainer and roles. Those of further servers are left out, since they can
make their state again."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A data directory after one commit. Owner: `take_snapshot`, which removes it.

    folder: of the links, with the same paths. state: of the log. learned: paths of versions and of
    the files of trainer and roles. journals: path of each journal file -> its bytes up to the
    commit. stats: of all those files, as they were before they were linked, by path.
    """

    folder: Path
    state: LogState
    learned: list[str]
    journals: dict[str, int]
    stats: dict[str, FileStat]


class _Changed(Exception):
    """The directory changed while it was linked; the snapshot is taken again."""


@contextmanager
def take_snapshot(data_dir: Path, name: str = NAME, disk: Disk = DISK) -> Iterator[Snapshot]:
    """Yield a snapshot of a data directory after its newest published commit.

    name: of the folder in `roles/` for lock and links. Raises: StreamdError if there is no log,
    LockedError if another upload under that name runs, DiskError if the volume is full.
    """
    if not (data_dir / "published").exists():
        raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
    own = make_folder(data_dir, name)
    lock = lock_directory(own / LOCK, "wait for that backup, or stop it.")
    try:
        # A killed backup left its links, which hold the disk space of files dropped since.
        yield _take(data_dir, own / LINKS, disk)
    finally:
        try:
            disk.remove_folder(own / LINKS)
        finally:
            os.close(lock)


@contextmanager
def list_in_place(data_dir: Path) -> Iterator[Snapshot]:
    """Yield a snapshot without links of a read-only directory, such as a mounted snapshot of a
    volume. If it changes all the same, the reader of its files notices.

    Raises: StoreError if it changes while it is listed, JournalError.
    """
    for _ in range(TRIES):
        try:
            learned = _list_files(data_dir)
            state, journals, stats = _link_log(data_dir, data_dir, DISK)
            _check_champion_is_there(data_dir, state, learned)
            break
        except (FileNotFoundError, _Changed):
            time.sleep(PAUSE_SECONDS)
    else:
        raise _changes_error(data_dir)
    yield Snapshot(data_dir, state, list(learned), journals, learned | stats)


def _take(data_dir: Path, folder: Path, disk: Disk) -> Snapshot:
    """Link the files; repeat that if one was replaced meanwhile."""
    for _ in range(TRIES):
        try:
            disk.remove_folder(folder)
            disk.make_folder(folder)
            # Versions first, so that none is beyond the log's state.
            learned = _link_versions_and_roles(data_dir, folder, disk)
            state, journals, stats = _link_log(data_dir, folder, disk)
            _check_champion_is_there(data_dir, state, learned)
            return Snapshot(folder, state, list(learned), journals, learned | stats)
        except (FileNotFoundError, _Changed):
            time.sleep(PAUSE_SECONDS)
        except OSError as error:
            raise DiskError(
                f"{data_dir} cannot be linked for a backup: {error.strerror}.",
                "free space on the volume; nothing of the log is touched.",
            ) from error
    raise _changes_error(data_dir)


def _changes_error(data_dir: Path) -> StoreError:
    return StoreError(
        f"{data_dir} changed {TRIES} times while its files were listed.", "run it again."
    )


def held_bytes(data_dir: Path, name: str = NAME) -> int:
    """Disk space of files that only a snapshot still holds, because they were dropped or replaced
    since."""
    found = 0
    for path in (folder_of(data_dir, name) / LINKS).rglob("*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                found += status.st_blocks * BLOCK_BYTES
    return found


def _link_versions_and_roles(data_dir: Path, folder: Path, disk: Disk) -> dict[str, FileStat]:
    """Link the files of versions, trainer and roles, as they are at one moment: trainer and server
    recover from any."""
    before = _list_files(data_dir)
    for path in before:
        new = folder / path
        new.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(LINKED):
            link_or_copy(data_dir / path, new, disk)
        else:
            shutil.copyfile(data_dir / path, new)
    if _list_files(data_dir) != before:
        raise _Changed
    return before


def _check_champion_is_there(data_dir: Path, state: LogState, learned: Collection[str]) -> None:
    """Check that the versions in the log's newest move are among the linked files. Raises: _Changed
    if they are not, because the move came later than the links."""
    lines = LineSource(data_dir / MOVES, state.seq).lines()
    for move in decoded_moves(b"".join(lines[-1:])):
        for version in (move.champion, move.shadow):
            path = f"{FOLDER}/{version}/manifest.json"
            if path not in learned and (data_dir / path).exists():
                raise _Changed


def _list_files(data_dir: Path) -> dict[str, FileStat]:
    """The files of versions, trainer and roles by path, without incomplete ones."""
    found = {}
    for top in LEARNED:
        for path in sorted((data_dir / top).rglob("*")):
            name = path.relative_to(data_dir)
            hidden = any(part.startswith(".") for part in name.parts)
            if hidden or path.name in (HEARTBEAT, LOCK) or not path.is_file():
                continue
            found[str(name)] = FileStat.of(path)
    return found


def _link_log(
    data_dir: Path, folder: Path, disk: Disk
) -> tuple[LogState, dict[str, int], dict[str, FileStat]]:
    """Link the log's files as they are after the newest published commit.

    folder: the directory itself if nothing is to be linked. Returns: the log's state, and bytes and
    stat of each journal file.
    """
    tail = JournalTail.open(data_dir)
    assert tail is not None, "`published` was there"
    state = tail.state
    for segment in state.segments:
        old = data_dir / segment.path
        for file in sorted(old.iterdir()) if old.is_dir() else [old]:
            _link(data_dir, folder, file.relative_to(data_dir), disk)
    for path in state.files:
        _link(data_dir, folder, Path(path), disk)
    journals = {}
    stats = {}
    files = [file.relative_to(data_dir) for file in journal_files(data_dir / "journal")]
    for name, following in zip_longest(files, files[1:]):
        _link(data_dir, folder, name, disk)
        seen = FileStat.of(folder / name)
        # If the next file starts at or before the commit, the log has all complete lines of this
        # one.
        is_past = following is not None and int(following.stem) - 1 <= state.seq
        end = seen.size if is_past else _end_of(folder / name, state.seq)
        if end is not None:
            journals[str(name)] = end
            stats[str(name)] = seen

    # A replaced file is renamed after its line is durable, possibly before the line is published.
    now = last_state(data_dir, state.schema)
    segments = {s.first_edge: s.revision for s in now.segments}
    replaced = any(
        segments.get(s.first_edge, s.revision) != s.revision for s in state.segments
    ) or any(now.files[path].revision != file.revision for path, file in state.files.items())
    if replaced or now.schema != state.schema or not journals:
        raise _Changed
    return state, journals, stats


def _link(data_dir: Path, folder: Path, path: Path, disk: Disk) -> None:
    if folder == data_dir:
        return
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    link_or_copy(data_dir / path, folder / path, disk)


def _end_of(journal: Path, seq: int) -> int | None:
    """Number of bytes of a journal file up to a commit, or of the whole file if it ends before the
    commit; None if the file starts after the commit, or has no complete line."""
    end = None
    for at, fields in read_lines(journal):
        if fields is None or int(fields["seq" if "seq" in fields else "checkpoint"]) > seq:
            break
        end = at
    return end
