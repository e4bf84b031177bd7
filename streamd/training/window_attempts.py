"""Attempts: the trainer records the windows it is about to train on, so that a restart takes the
same ones.

It counts failures with them, so that windows that always fail are skipped in the end.
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
"""Failures of scoring or training after which a window is skipped. One failure may be chance, such
as a short lack of device memory; a third in a row is caused by the window."""


@dataclass(frozen=True)
class Attempt:
    """Events [edge, end_edge) of whole windows, and how often scoring or training on them
    failed."""

    edge: int
    end_edge: int
    failures: int = 0


NONE = Attempt(-1, -1)
"""No attempt: no event has such an id."""


def last_attempt(folder: Path) -> Attempt:
    """Read the newest attempt, perhaps from before a restart.

    Returns: NONE if there is none, or it cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return NONE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Attempt)
    except msgspec.DecodeError as error:
        logger.error(
            "window_attempt_not_read",
            file=str(path),
            error=str(error),
            meaning="the next window's failures count from 0",
        )
        return NONE


def begin_attempt(folder: Path, window: Window) -> int:
    """Record an attempt on a window durably. Returns: how often it failed before.

    The count starts at 0 for a window that failed only as part of merged windows.
    """
    now = Attempt(window.first_edge, window.end_edge)
    before = last_attempt(folder)
    if (before.edge, before.end_edge) == (now.edge, now.end_edge):
        return before.failures
    write_durably(folder / FILE, msgspec.json.encode(now))
    return 0


class Stopped(Exception):
    """Raised to end the trainer's work at a stop; a restart begins that step again, as after a
    kill."""


@contextmanager
def counting_failures(folder: Path) -> Iterator[None]:
    """Count an error inside this context as a failure of the recorded attempt.

    A stop, a signal that ends the process, an I/O error (OSError), a lost rank and a new leader do
    not count: the window did not cause them.
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
