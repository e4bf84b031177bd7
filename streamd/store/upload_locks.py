"""Marks in a store show which processes work on it, so that no object is removed that an upload
relies on.

An upload and a removal each put their mark first and look for the others' then: of two that start
at once, at least one sees the other. A removal that sees an upload removes nothing; an upload that
sees a removal waits for its end.
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
mark was put, in seconds, and the owner."""
REMOVALS = "removals"
"""The same for removals of objects."""
MARK_SECONDS = 3_600
"""Age from which a mark counts as that of a killed process."""
RENEW_SECONDS = 300.0
"""Pause between two renewals of a mark, short against MARK_SECONDS: clocks of machines differ."""
WAIT_SECONDS = 1.0
"""Pause between two checks for a removal under way, which takes seconds."""


def new_owner() -> str:
    """A unique name for a process that works on a store."""
    return uuid.uuid4().hex


class Mark:
    """A mark in a folder of the store. Owner: `marked`, which removes it."""

    def __init__(self, store: Store, folder: str, owner: str, now: Callable[[], float]) -> None:
        """Put the mark, and remove one that this owner left when it was killed."""
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
        """Put the mark again if it is older than RENEW_SECONDS. Raises: StoreError."""
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
            # Nothing is lost: others wait until it is too old to count.
            logger.warning("store_mark_left", store=self._store.shown, error=str(error))


@contextmanager
def marked(
    store: Store, folder: str, owner: str, now: Callable[[], float] = time.time
) -> Iterator[Mark]:
    """Hold a mark in a folder of the store, and remove it at the end. Raises: StoreError."""
    mark = Mark(store, folder, owner, now)
    try:
        yield mark
    finally:
        mark.remove()


@contextmanager
def under_way(store: Store) -> Iterator[Mark]:
    """Hold the mark of an upload, once no removal is under way. Raises: StoreError."""
    owner = new_owner()
    with marked(store, UPLOADS, owner) as mark:
        wait_for_removals(store, owner, time.time, store.sleep)
        yield mark


def others(store: Store, folder: str, owner: str, now: float) -> tuple[list[str], list[str]]:
    """List the marks of a folder that are not the owner's: (those that count, those of killed
    processes). Raises: StoreError."""
    found = [name for name in store.sizes(folder) if not name.endswith(f"-{owner}")]
    count = [name for name in found if _put_at(name) > now - MARK_SECONDS]
    return count, [name for name in found if name not in count]


def wait_for_removals(
    store: Store, owner: str, now: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Wait until no removal is under way. Raises: StoreError after MARK_SECONDS."""
    begun = now()
    while others(store, REMOVALS, owner, now())[0]:
        if now() - begun > MARK_SECONDS:
            raise StoreError(
                f"Another process has been removing objects from {store.shown} for an hour.",
                "stop it; the mark it leaves stops counting after another hour.",
            )
        sleep(WAIT_SECONDS)


def _put_at(mark: str) -> float:
    number = mark.rpartition("/")[2].partition("-")[0]
    return float(number) if number.isdigit() else 0.0
