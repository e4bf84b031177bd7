"""Removes old manifests from a store, and the objects that no remaining manifest lists."""

import time

import structlog

from streamd.store import manifests
from streamd.store.checkpoints import files_of, stored_checkpoints
from streamd.store.file_set import OBJECTS, StoredFile, object_names
from streamd.store.leases import REMOVALS, UPLOADS, hold_lease, list_other_leases, new_owner
from streamd.store.manifests import FOLDER
from streamd.store.objects import Store
from streamd.store.versions import stored_versions

logger = structlog.get_logger()
BATCH = 500
"""Objects removed between two renewals of the lease; each takes some milliseconds."""


class Sweep:
    """Removes old manifests, and the objects that have been in no manifest for `grace_seconds`.

    Within this time a reader of an old manifest still finds its objects: a new follower may take an
    hour to fetch them. Owner: one process. The time of an object starts when this process first
    finds it unneeded.
    """

    def __init__(self, store: Store, keep: int, grace_seconds: float = 0.0) -> None:
        """keep: number of newest manifests that stay. grace_seconds: time for which objects stay
        that none of them lists."""
        assert keep > 0
        self._store = store
        self._keep = keep
        self._grace = grace_seconds
        self._unneeded_since: dict[str, float] = {}
        self.waiting = ""
        """The reason why the last call removed nothing, for an operator; "" if it removed."""

    def remove(
        self, now: float | None = None, owner: str = "", compacted: int | None = None
    ) -> tuple[int, int]:
        """Remove all manifests but the newest ones, and the objects past their grace time, unless
        an upload to the store is in progress.

        1. Write the lease of a removal, and check for uploads.
        2. Remove manifests first, so that none ever lists a missing object.
        3. Remove objects.

        Args: now: wall time in seconds; owner: of the caller's leases; compacted: commit of a
        compaction: manifests before it are removed too, and objects that no other manifest lists
        have no grace time. Returns: numbers of removed manifests and objects. Raises: StoreError,
        also if a remaining manifest cannot be read.
        """
        now = time.time() if now is None else now
        owner = owner or new_owner()
        store = self._store
        begun = time.monotonic()
        with hold_lease(store, REMOVALS, owner, lambda: now + time.monotonic() - begun) as lease:
            count, killed = list_other_leases(store, UPLOADS, owner, now)
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

            # 2. Manifests first.
            old = [name for name in found if name not in kept]
            half_written = [name for name in listed if name not in found]
            store.remove([*old, *half_written])
            grace = self._grace if compacted is None else 0.0
            self._unneeded_since = {
                name: self._unneeded_since.get(name, now) for name in objects if name not in needed
            }

            # 3. Objects, in batches, between which the lease is renewed.
            gone = [name for name, at in self._unneeded_since.items() if now - at >= grace]
            for at in range(0, len(gone), BATCH):
                store.remove(gone[at : at + BATCH])
                lease.renew()
            for name in gone:
                del self._unneeded_since[name]
            store.remove(killed)
        return len(old), len(gone)

    def _choose(self, found: list[str], compacted: int | None) -> tuple[list[str], set[str]]:
        """Choose the manifests that stay, and list the objects of these, of versions and of
        checkpoints.

        found: names of all manifests, oldest first. compacted: as in `remove`.
        """
        kept = []
        files: list[StoredFile] = []
        for name in found[-self._keep :]:
            manifest = manifests.read(self._store, name)
            if compacted is None or manifest.compacted >= compacted:
                kept.append(name)
                files += manifest.files
        # The newest manifest may lack newer versions, which replicas fetch, and newer checkpoints,
        # from which another machine's trainer continues.
        for version in stored_versions(self._store).values():
            files += version.files
        for checkpoint in stored_checkpoints(self._store).values():
            files += files_of(checkpoint)
        return kept, object_names(files)


def sweep_store(store: Store, keep: int, now: float | None = None) -> tuple[int, int]:
    """Remove all manifests but the newest `keep`, and the objects that none of them lists, as
    `Sweep.remove`."""
    return Sweep(store, keep).remove(now)
