"""Leases in a store show which processes work on it, so that no object is removed that an upload
relies on.

An upload and a removal each write their own lease before they look for those of others: of two that
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
"""Folder of the store with an object for each upload under way. Its name has the time at which the
lease was written, in seconds, and the owner."""
REMOVALS = "removals"
"""The same for removals of objects."""
LEASE_SECONDS = 3_600
"""Age from which a lease has expired: its process was killed."""
RENEW_SECONDS = 300.0
"""Pause between two renewals of a lease, short against LEASE_SECONDS: clocks of machines differ."""
WAIT_SECONDS = 1.0
"""Pause between two checks for a removal under way, which takes seconds."""


def new_owner() -> str:
    """A unique name for a process that works on a store."""
    return uuid.uuid4().hex


class StoreLease:
    """A lease in a folder of the store. Owner: `hold_lease`, which removes it."""

    def __init__(self, store: Store, folder: str, owner: str, now: Callable[[], float]) -> None:
        """Write the lease, and remove one that this owner left when it was killed."""
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
            # Nothing is lost: others wait until it expires.
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
    """Hold a lease in a folder of the store, and remove it at the end. Raises: StoreError."""
    lease = StoreLease(store, folder, owner, now)
    try:
        yield lease
    finally:
        lease.remove()


@contextmanager
def under_way(store: Store) -> Iterator[StoreLease]:
    """Hold the lease of an upload, once no removal is under way. Raises: StoreError."""
    owner = new_owner()
    with hold_lease(store, UPLOADS, owner) as lease:
        wait_for_removals(store, owner, time.time, store.sleep)
        yield lease


def others(store: Store, folder: str, owner: str, now: float) -> tuple[list[str], list[str]]:
    """List the leases of a folder that are not the owner's: (valid ones, expired ones). Raises:
    StoreError."""
    found = [name for name in store.sizes(folder) if not name.endswith(f"-{owner}")]
    count = [name for name in found if _written_at(name) > now - LEASE_SECONDS]
    return count, [name for name in found if name not in count]


def wait_for_removals(
    store: Store, owner: str, now: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Wait until no removal is under way. Raises: StoreError after LEASE_SECONDS."""
    begun = now()
    while others(store, REMOVALS, owner, now())[0]:
        if now() - begun > LEASE_SECONDS:
            raise StoreError(
                f"Another process has been removing objects from {store.shown} for an hour.",
                "stop it; its lease expires after another hour.",
            )
        sleep(WAIT_SECONDS)


def _written_at(lease: str) -> float:
    number = lease.rpartition("/")[2].partition("-")[0]
    return float(number) if number.isdigit() else 0.0
