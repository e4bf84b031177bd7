"""The trainer writes down the windows that it is about to learn, so that a restart takes the same.

Failures are counted with them, so that windows which always fail are passed over in the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import structlog

from streamd.errors import FencedError, RanksError
from streamd.storage import write_durably
from streamd.windows import Window

logger = structlog.get_logger()
FILE = "attempt.json"
"""Name of the file, in the trainer's folder."""
MAX_FAILURES = 3
"""Times scoring or learning a window may fail before it is passed over. One failure may be chance,
such as a moment without device memory; a third in a row is caused by the window."""


@dataclass(frozen=True)
class Attempt:
    """The events [edge, end_edge) of whole windows, and how often scoring or learning them
    failed."""

    edge: int
    end_edge: int
    failures: int = 0


NONE = Attempt(-1, -1)
"""No attempt: no event has such an id."""


def last_attempt(folder: Path) -> Attempt:
    """Read the attempt that was written last, perhaps before a restart.

    Returns: NONE where there was none, or it cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return NONE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Attempt)
    except msgspec.DecodeError as error:
        logger.error(
            "attempt_lost",
            file=str(path),
            error=str(error),
            meaning="the next window's failures count from 0",
        )
        return NONE


def begin_attempt(folder: Path, window: Window) -> int:
    """Write down durably that a window is tried. Returns: how often it failed before.

    Windows that failed when they were learned as one count from 0 when they are tried singly.
    """
    now = Attempt(window.first_edge, window.end_edge)
    before = last_attempt(folder)
    if (before.edge, before.end_edge) == (now.edge, now.end_edge):
        return before.failures
    write_durably(folder / FILE, msgspec.json.encode(now))
    return 0


class Stopped(Exception):
    """Raised in the middle of the trainer's work by a stop; a restart begins that work again, as
    after a kill."""


@contextmanager
def counting_failures(folder: Path) -> Iterator[None]:
    """Count an error of the work inside against the window that was begun.

    A stop, a signal that ends the process, a disk that takes no bytes (OSError), another rank that
    is gone and another trainer that leads never count: they are not the window's fault.
    """
    try:
        yield
    except (Stopped, OSError, RanksError, FencedError):
        raise
    except Exception:
        before = last_attempt(folder)
        write_durably(
            folder / FILE, msgspec.json.encode(replace(before, failures=before.failures + 1))
        )
        raise
