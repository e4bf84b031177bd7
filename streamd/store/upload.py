"""Uploads a data directory to a store: first the objects that the store lacks, then a manifest."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from streamd.errors import StoreError
from streamd.eventlog.journal.changelog_position import (
    CHANGELOG,
    UNKNOWN,
    ChangelogId,
    ChangelogPosition,
    read_position,
)
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.upkeep.holds import read_compacted
from streamd.roles import folder_of
from streamd.storage import DISK, Disk
from streamd.store import manifests
from streamd.store.file_index import FILE, FileIndex
from streamd.store.file_set import OBJECTS, StoredFile, check_objects_exist
from streamd.store.leases import UPLOADS, hold_lease, new_owner, wait_for_removals
from streamd.store.manifests import Manifest
from streamd.store.objects import Store
from streamd.store.ranges import Earlier, PendingFile, files_to_store, has_stored_bytes
from streamd.store.sender import FileSender
from streamd.store.snapshot import NAME, PAUSE_SECONDS, Snapshot, list_in_place, take_snapshot

logger = structlog.get_logger()
CHECKPOINTS = "train/checkpoints"
POSITION_TRIES = 5
"""Number of tries to read the position in the changelog: a read during a write fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """Result of an upload. manifest: that was written. objects, num_bytes: number and bytes of the
    objects that were sent; the rest was stored already."""

    manifest: Manifest
    objects: int
    num_bytes: int


def upload(
    data_dir: Path,
    store: Store,
    progress: Callable[[int, int], None] = lambda done, of: None,
    name: str = NAME,
    owner: str = "",
    disk: Disk = DISK,
    now: Callable[[], float] = time.time,
    check: Callable[[], None] = lambda: None,
) -> Uploaded:
    """Upload the state of a data directory after its newest published commit. A daemon may run on
    the directory.

    1. Write the lease of an upload, so that no other process removes objects.
    2. Link the files of the commit, so that they stay readable.
    3. Send the objects that the store lacks, without those that a killed upload sent.
    4. Check that all objects exist, then write the manifest.

    Args: progress: called with (bytes read, bytes in all); name: of the folder in `roles/`; owner:
    of the lease, a new one if empty; now: wall time in seconds; check: called before the manifest
    is written, which an exception prevents. Raises: StreamdError if there is no log, LockedError if
    another upload under that name runs, DiskError, StoreError.
    """
    # 1. The lease.
    owner = owner or new_owner()
    with hold_lease(store, UPLOADS, owner, now) as lease:
        wait_for_removals(store, owner, now, store.sleep)
        # 2. The links.
        with snapshot_with_position(data_dir, name, disk) as (snapshot, position, compacted):
            index = FileIndex(folder_of(data_dir, name) / FILE)
            earlier = _earlier(store, snapshot, index, position)
            wanted = list(files_to_store(snapshot, earlier))
            # 3. The objects.
            sender = FileSender(store, lease, earlier.objects)
            files = _send_files(snapshot, wanted, sender, index, progress)
            index.keep(set(snapshot.stats), disk)
            # 4. The manifest.
            made = _manifest(snapshot, files, position, compacted, now())
            check_objects_exist(
                store, made.files, "back up again; if it stays so, take another store."
            )
            _check_newest(store, made.term, made.seq)
            check()
            store.put(made.name, manifests.KIND.encode(made))
    logger.info(
        "manifest_stored",
        store=store.shown,
        seq=made.seq,
        objects=sender.objects,
        num_bytes=sender.num_bytes,
    )
    return Uploaded(manifest=made, objects=sender.objects, num_bytes=sender.num_bytes)


def _send_files(
    snapshot: Snapshot,
    wanted: Sequence[PendingFile],
    sender: FileSender,
    index: FileIndex,
    progress: Callable[[int, int], None],
) -> list[StoredFile]:
    """Send the missing bytes of files, and add the files to the index. Returns: them as stored."""
    total = sum(one.num_bytes for one in wanted)
    done = 0

    def read(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    files: list[StoredFile] = []
    for one in wanted:
        files.append(sender.send(snapshot.folder, one, read))
        if one.path in snapshot.stats:
            index.note(snapshot.stats[one.path], files[-1])
    return files


@contextmanager
def snapshot_with_position(
    data_dir: Path, name: str, disk: Disk, in_place: bool = False
) -> Iterator[tuple[Snapshot, ChangelogPosition | None, int]]:
    """Yield a snapshot, a position in the changelog up to which it has all commits, and the newest
    compaction that was done before the snapshot, 0 for none.

    in_place: make no links, for a read-only directory.
    """
    # Read position and compaction before the snapshot, so that the snapshot is never older.
    position = _position(data_dir)
    done = read_compacted(data_dir)
    taken = list_in_place(data_dir) if in_place else take_snapshot(data_dir, name, disk)
    with taken as snapshot:
        if position is not None and position.seq > snapshot.state.seq:
            raise StoreError(
                f"{data_dir} has published commit {snapshot.state.seq}, while the changelog has "
                f"acknowledged {position.seq}.",
                "run the backup again; if it stays so, start ingest.",
            )
        # Until the commit of a compaction is published, a file may still be the old one.
        holds_it = done is not None and done.seq <= snapshot.state.seq
        yield snapshot, position, done.seq if done is not None and holds_it else 0


def _position(data_dir: Path) -> ChangelogPosition | None:
    """Read the directory's position in the changelog, None if it never had one. Raises: StoreError
    if it has one that cannot be read."""
    # The file is written in place, so a read may see half of it.
    for _ in range(POSITION_TRIES):
        position = read_position(data_dir)
        if position is not None or not (data_dir / CHANGELOG).exists():
            return position
        time.sleep(PAUSE_SECONDS)
    raise StoreError(
        f"{data_dir / CHANGELOG} is damaged: a manifest would lack the position in the changelog.",
        "start ingest, which writes it again.",
    )


def _manifest(
    snapshot: Snapshot,
    files: list[StoredFile],
    position: ChangelogPosition | None,
    compacted: int,
    created_at: float,
) -> Manifest:
    parts = [path.split("/") for path in snapshot.learned]
    checkpoints = {p[2] for p in parts if "/".join(p[:2]) == CHECKPOINTS and len(p) > 2}
    return Manifest(
        term=snapshot.state.term,
        seq=snapshot.state.seq,
        created_at=created_at,
        log=snapshot.state.checkpoint(),
        changelog_seq=0 if position is None else position.seq,
        changelog_offset=None if position is None else position.offset,
        changelog=UNKNOWN if position is None else position.changelog,
        changelog_term=0 if position is None else position.term,
        compacted=compacted,
        versions=sorted({p[1] for p in parts if p[0] == "models" and len(p) > 2}),
        checkpoint=max(checkpoints, default=""),
        files=files,
    )


def _earlier(
    store: Store, snapshot: Snapshot, index: FileIndex, position: ChangelogPosition | None
) -> Earlier:
    """The part of this log that the store has: by its newest manifest, if this log continues that
    one. Raises: StoreError if the store is ahead of the log, or of its leader."""
    _check_newest(store, snapshot.state.term, snapshot.state.seq)
    objects = store.sizes(OBJECTS)
    newest = manifests.newest(store)
    if newest is None:
        return Earlier(state=None, files={}, index=index, objects=objects)
    if position is not None:
        _check_position(store, newest, position)

    # The journal has checksums of all rows, so logs with the same last line have the same rows.
    files = {file.path: file for file in newest.files}
    journal = max((path for path in files if path.startswith("journal/")), default="")
    if journal not in snapshot.journals or not has_stored_bytes(
        snapshot.folder / journal, files[journal]
    ):
        return Earlier(state=None, files={}, index=index, objects=objects)
    state = LogState.restored(newest.log)
    return Earlier(state=state, files=files, index=index, objects=objects)


def _check_position(store: Store, newest: Manifest, position: ChangelogPosition) -> None:
    """Check that the newest manifest has no later position in the same changelog: the records
    before that position may be deleted. Raises: StoreError."""
    stored = newest.changelog_term, newest.changelog_offset or 0
    is_other = ChangelogId(*newest.changelog).is_other(position.changelog)
    if not is_other and stored > (position.term, position.offset):
        raise StoreError(
            f"{store.shown} holds a manifest of term {stored[0]} at offset {stored[1]} of the "
            f"changelog, and this machine knows it up to term {position.term}, {position.offset}.",
            "let the machine that leads write it; this one writes again once it leads.",
        )


def _check_newest(store: Store, term: int, seq: int) -> None:
    """Check that the store has no manifest of a later commit or term. Raises: StoreError."""
    newest_term, newest_seq = max(map(manifests.commit_of, manifests.names(store)), default=(0, 0))
    if newest_term > term:
        raise StoreError(
            f"{store.shown} holds a manifest of term {newest_term}, this log is of term {term}: "
            "another leader has written since.",
            "let that leader write it; if the changelog's topic was created again, remove the "
            "store's folder manifests.",
        )
    if (newest_term, newest_seq) > (term, seq):
        raise StoreError(
            f"{store.shown} holds commit {newest_seq}, this log ends at {seq}: it is another log, "
            "or was restored from an older manifest.",
            "back up to a URL of its own.",
        )
