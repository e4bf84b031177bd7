"""Marks in a store that an upload is under way, so that nobody removes objects it counts on."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from streamd.errors import StoreError
from streamd.store.store import Store

logger = structlog.get_logger()
UPLOADS = "uploads"
"""Folder of the store with an object for each upload under way: its name is when it began, in
seconds, and a number of its own."""
UPLOAD_SECONDS = 7 * 86_400
"""Age from which an upload counts as killed: longer ones must be run again after a removal."""


@contextmanager
def under_way(store: Store) -> Iterator[None]:
    """Tell others that an upload is under way, so that they remove no object it counts on."""
    name = f"{UPLOADS}/{time.time():.0f}-{uuid.uuid4().hex}"
    store.put(name, b"1")
    try:
        yield
    finally:
        try:
            store.remove([name])
        except StoreError as error:
            # Nothing is lost: removals wait until it is too old to count.
            logger.warning("upload_mark_left", store=store.shown, error=str(error))


def any_under_way(store: Store, now: float) -> tuple[bool, list[str]]:
    """Whether any upload is under way, and the marks of all, also of killed ones. now: wall time,
    seconds. Raises: StoreError."""
    marks = list(store.sizes(UPLOADS))
    return any(_begun_at(name) > now - UPLOAD_SECONDS for name in marks), marks


def _begun_at(mark: str) -> float:
    number = mark.rpartition("/")[2].partition("-")[0]
    return float(number) if number.isdigit() else 0.0
