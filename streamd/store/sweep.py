"""Removes the objects from a store that no kept manifest names."""

import time

import structlog

from streamd.store import manifests
from streamd.store.checkpoints import files_of, stored_checkpoints
from streamd.store.file_set import OBJECTS, StoredFile, object_names
from streamd.store.leases import REMOVALS, UPLOADS, hold_lease, new_owner, others
from streamd.store.manifests import FOLDER
from streamd.store.objects import Store
from streamd.store.versions import stored_versions

logger = structlog.get_logger()
BATCH = 500
"""Objects removed between two renewals of the lease; each takes some milliseconds."""


class Sweep:
    """Removes old manifests, and objects some time after the last manifest that named them.

    A reader of a manifest finds its objects for that long: a new follower may take an hour to fetch
    them. Owner: one process; another process counts from the time at which it first sees an object
    unneeded.
    """

    def __init__(self, store: Store, keep: int, grace_seconds: float = 0.0) -> None:
        """keep: number of newest manifests that stay. grace_seconds: how long objects stay that
        none of those names."""
        assert keep > 0
        self._store = store
        self._keep = keep
        self._grace = grace_seconds
        self._unneeded_since: dict[str, float] = {}
        self.waiting = ""
        """The reason why the last call removed nothing, in words; "" if it did."""

    def remove(
        self, now: float | None = None, owner: str = "", compacted: int | None = None
    ) -> tuple[int, int]:
        """Remove all manifests but the newest ones, and the objects past their grace time.

        Nothing is removed while an upload to the store is under way.

        Args: now: wall time in seconds; owner: of the caller's leases; compacted: also remove every
        manifest from before this compaction, and at once every object that no other names. Returns:
        numbers of manifests and objects removed. Raises: StoreError, also if a kept manifest cannot
        be read.
        """
        now = time.time() if now is None else now
        owner = owner or new_owner()
        store = self._store
        begun = time.monotonic()
        with hold_lease(store, REMOVALS, owner, lambda: now + time.monotonic() - begun) as lease:
            count, killed = others(store, UPLOADS, owner, now)
            self.waiting = f"{len(count)} uploads to the store are under way" if count else ""
            if count:
                logger.info(
                    "store_not_swept",
                    store=store.shown,
                    uploads=len(count),
                    meaning="old objects are removed by a later round, after these uploads",
                )
                return 0, 0

            objects = store.sizes(OBJECTS)
            listed = list(store.sizes(FOLDER))
            found = sorted(name for name in listed if manifests.NAME.fullmatch(name))
            kept, needed = self._choose(found, compacted)
            if found and not kept:
                self.waiting = "no manifest is newer than the compaction"
                return 0, 0

            # Manifests go first, so that none ever names an object that is gone.
            old = [name for name in found if name not in kept]
            half_written = [name for name in listed if name not in found]
            store.remove([*old, *half_written])
            grace = self._grace if compacted is None else 0.0
            self._unneeded_since = {
                name: self._unneeded_since.get(name, now) for name in objects if name not in needed
            }
            gone = [name for name, at in self._unneeded_since.items() if now - at >= grace]
            for at in range(0, len(gone), BATCH):
                store.remove(gone[at : at + BATCH])
                lease.renew()
            for name in gone:
                del self._unneeded_since[name]
            store.remove(killed)
        return len(old), len(gone)

    def _choose(self, found: list[str], compacted: int | None) -> tuple[list[str], set[str]]:
        """The manifests that stay, and the objects that they, versions and checkpoints name.

        found: names of all manifests, oldest first. compacted: as in `remove`.
        """
        kept = []
        files: list[StoredFile] = []
        for name in found[-self._keep :]:
            manifest = manifests.read(self._store, name)
            if compacted is None or manifest.compacted >= compacted:
                kept.append(name)
                files += manifest.files
        # Versions that replicas fetch are newer than the newest manifest, and so are the
        # checkpoints from which another machine's trainer continues.
        for version in stored_versions(self._store).values():
            files += version.files
        for checkpoint in stored_checkpoints(self._store).values():
            files += files_of(checkpoint)
        return kept, object_names(files)


def sweep_store(store: Store, keep: int, now: float | None = None) -> tuple[int, int]:
    """Remove all manifests but the newest `keep`, and the objects that none of those names, as
    `Sweep.remove` does."""
    return Sweep(store, keep).remove(now)
