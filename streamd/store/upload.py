"""Uploads a data directory to a store: the objects that it lacks, and the manifest last."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from streamd.errors import StoreError
from streamd.segments.journal import LogState
from streamd.store import manifest as manifests
from streamd.store.manifest import OBJECTS, Manifest, StoredFile
from streamd.store.marks import any_under_way, under_way
from streamd.store.ranges import holds, objects_of, wanted_files
from streamd.store.snapshot import Snapshot, take_snapshot
from streamd.store.store import Store
from streamd.store.versions import stored_versions

logger = structlog.get_logger()
CHECKPOINTS = "train/checkpoints"


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """What an upload did.

    manifest: the one it wrote. objects, num_bytes: what it sent; the rest was there.
    """

    manifest: Manifest
    objects: int
    num_bytes: int


def upload(
    data_dir: Path,
    store: Store,
    progress: Callable[[int, int], None] = lambda done, of: None,
    changelog_offset: int | None = None,
) -> Uploaded:
    """Upload the state of a data directory after its newest published commit.

    Whether a daemon runs on it makes no difference. What a killed upload sent is not sent again.

    Args: progress: called with (bytes looked at, bytes in all); changelog_offset: the manifest's.
    Raises: StreamdError where there is no log, LockedError where another backup of it runs,
    StoreError.
    """
    with under_way(store), take_snapshot(data_dir) as snapshot:
        before, files = _earlier(store, snapshot)
        known = store.sizes(OBJECTS)
        wanted = list(wanted_files(snapshot, before, files))
        total = sum(one.num_bytes for one in wanted)
        done = objects = sent = 0
        stored: list[StoredFile] = []
        for one in wanted:
            pieces = list(one.kept)
            for piece, data in objects_of(snapshot.folder, one):
                if known.get(piece.object) != piece.size:
                    store.put(piece.object, data)
                    known[piece.object] = piece.size
                    objects += 1
                    sent += piece.size
                pieces.append(piece)
                done += piece.size
                progress(done, total)
            stored.append(StoredFile(one.path, one.size, pieces, one.revision))
        made = _manifest(snapshot, stored, changelog_offset)
        check_there(store, made)
        store.put(made.name, manifests.encode(made))
    logger.info("manifest_stored", store=store.shown, seq=made.seq, objects=objects, num_bytes=sent)
    return Uploaded(manifest=made, objects=objects, num_bytes=sent)


def check_there(store: Store, manifest: Manifest) -> None:
    """Check that the store has every object of a manifest in its size. Raises: StoreError naming
    one that it has not."""
    sizes = store.sizes(OBJECTS)
    for name, piece in manifest.objects.items():
        if sizes.get(name) != piece.size:
            path = next(f.path for f in manifest.files if name in {p.object for p in f.pieces})
            raise StoreError(
                f"{store.shown} has {sizes.get(name, 'nothing')} for {name}, a part of {path} of "
                f"{piece.size} bytes.",
                "back up again; if it stays so, take another store.",
            )


def _manifest(
    snapshot: Snapshot, files: list[StoredFile], changelog_offset: int | None
) -> Manifest:
    parts = [path.split("/") for path in snapshot.learned]
    checkpoints = {p[2] for p in parts if "/".join(p[:2]) == CHECKPOINTS and len(p) > 2}
    return Manifest(
        term=snapshot.state.term,
        seq=snapshot.state.seq,
        created_at=time.time(),
        log=snapshot.state.checkpoint(),
        changelog_offset=changelog_offset,
        versions=sorted({p[1] for p in parts if p[0] == "models" and len(p) > 2}),
        checkpoint=max(checkpoints, default=""),
        files=files,
    )


def _earlier(store: Store, snapshot: Snapshot) -> tuple[LogState | None, dict[str, StoredFile]]:
    """The log's state and files by the store's newest manifest, where this log goes on from it.
    Raises: StoreError where the store is ahead of the log."""
    found = manifests.names(store)
    if not found:
        return None, {}
    newest = manifests.read(store, found[-1])
    if (newest.term, newest.seq) > (snapshot.state.term, snapshot.state.seq):
        raise StoreError(
            f"{store.shown} holds commit {newest.seq}, this log ends at {snapshot.state.seq}: it "
            "is another log, or was restored from an older manifest.",
            "back up to a URL of its own.",
        )

    # The journal has checksums of all rows: a log with the same newest lines has the same rows.
    files = {file.path: file for file in newest.files}
    journal = max((path for path in files if path.startswith("journal/")), default="")
    if journal not in snapshot.journals or not holds(snapshot.folder / journal, files[journal]):
        return None, {}
    return LogState.restored(newest.log), files


def remove_unneeded(store: Store, keep: int, now: float | None = None) -> tuple[int, int]:
    """Remove all manifests but the newest `keep`, then the objects that none of those names, nor
    any version that replicas may fetch.

    Nothing is removed while any upload to the store is under way. Returns: manifests and objects
    removed. Raises: StoreError, also where a manifest that is kept cannot be read.
    """
    assert keep > 0
    under_way_now, marks = any_under_way(store, time.time() if now is None else now)
    if under_way_now:
        logger.info("store_not_swept", store=store.shown, uploads=len(marks))
        return 0, 0
    # Listed before the manifests: an object of an upload that begins now is not among them.
    objects = list(store.sizes(OBJECTS))
    found = manifests.names(store)
    needed: set[str] = set()
    for name in found[-keep:]:
        needed |= set(manifests.read(store, name).objects)
    # Versions that replicas fetch are newer than the newest manifest.
    for version in stored_versions(store).values():
        needed |= {piece.object for file in version.files for piece in file.pieces}
    gone = [name for name in objects if name not in needed]
    store.remove(found[:-keep])
    store.remove(gone)
    store.remove(marks)
    return len(found[:-keep]), len(gone)
