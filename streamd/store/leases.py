"""Leases of the processes that upload to a store or remove objects from it, so that no removal
takes an object that an upload relies on.

An upload and a removal each write their lease before they list those of others. So of two that
start at once, at least one sees the other. A removal that sees an upload removes nothing; an upload
that sees a removal waits for its end.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from streamd.errors import StoreError
from streamd.store.objects import Store

logger = structlog.get_logger()
UPLOADS = "uploads"
"""Folder of the store with an object for each upload in progress. The object's name has the wall
time of its write, in seconds, and the owner."""
REMOVALS = "removals"
"""The same for removals of objects."""
LEASE_SECONDS = 3_600
"""Age at which a lease expires, because its process was killed."""
RENEW_SECONDS = 300.0
"""Interval of renewals of a lease, short compared to LEASE_SECONDS, since clocks of machines
differ."""
WAIT_SECONDS = 1.0
"""Interval of the checks for a removal in progress, which takes seconds."""


def new_owner() -> str:
    """A unique name for a process that works on a store."""
    return uuid.uuid4().hex


class StoreLease:
    """A lease in a folder of the store. Owner: `hold_lease`, which removes it."""

    def __init__(self, store: Store, folder: str, owner: str, now: Callable[[], float]) -> None:
        """Write the lease, and remove an older one of this owner, which was killed."""
        self._store = store
        self._folder = folder
        self._owner = owner
        self._now = now
        self._at = 0.0
        self._name = ""
        left = [name for name in store.sizes(folder) if name.endswith(f"-{owner}")]
        self._put()
        store.remove(name for name in left if name != self._name)

    def _put(self) -> None:
        self._at = self._now()
        self._name = f"{self._folder}/{self._at:.0f}-{self._owner}"
        self._store.put(self._name, b"1")

    def renew(self) -> None:
        """Write the lease again if it is older than RENEW_SECONDS. Raises: StoreError."""
        if self._now() - self._at < RENEW_SECONDS:
            return
        old = self._name
        self._put()
        if old != self._name:
            self._store.remove([old])

    def remove(self) -> None:
        try:
            self._store.remove([self._name])
        except StoreError as error:
            # Others only wait until it expires.
            logger.warning(
                "store_lease_not_removed",
                store=self._store.shown,
                error=str(error),
                meaning="old objects stay in the store for up to an hour",
            )


@contextmanager
def hold_lease(
    store: Store, folder: str, owner: str, now: Callable[[], float] = time.time
) -> Iterator[StoreLease]:
    """Hold a lease in a folder of the store inside the block. Raises: StoreError."""
    lease = StoreLease(store, folder, owner, now)
    try:
        yield lease
    finally:
        lease.remove()


@contextmanager
def upload_lease(store: Store) -> Iterator[StoreLease]:
    """Hold the lease of an upload inside the block, which begins once no removal is in progress.
    Raises: StoreError."""
    owner = new_owner()
    with hold_lease(store, UPLOADS, owner) as lease:
        wait_for_removals(store, owner, time.time, store.sleep)
        yield lease


def list_other_leases(
    store: Store, folder: str, owner: str, now: float
) -> tuple[list[str], list[str]]:
    """List the leases of other owners in a folder. Returns: names of (valid, expired) ones. Raises:
    StoreError."""
    found = [name for name in store.sizes(folder) if not name.endswith(f"-{owner}")]
    count = [name for name in found if _written_at(name) > now - LEASE_SECONDS]
    return count, [name for name in found if name not in count]


def wait_for_removals(
    store: Store, owner: str, now: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Wait until no removal is in progress. Raises: StoreError after LEASE_SECONDS."""
    begun = now()
    while list_other_leases(store, REMOVALS, owner, now())[0]:
        if now() - begun > LEASE_SECONDS:
            raise StoreError(
                f"Another process has been removing objects from {store.shown} for an hour.",
                "stop it; its lease expires after another hour.",
            )
        sleep(WAIT_SECONDS)


def _written_at(lease: str) -> float:
    number = lease.rpartition("/")[2].partition("-")[0]
    return float(number) if number.isdigit() else 0.0
