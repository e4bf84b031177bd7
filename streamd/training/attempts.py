"""What the trainer is about to learn, written down before it begins: a restart takes the same.
Failures are counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import structlog

from streamd.storage import write_durably
from streamd.windows import Window

logger = structlog.get_logger()
FILE = "attempt.json"
MAX_FAILURES = 3
"""Times scoring or learning a window may fail before it is passed over."""


@dataclass(frozen=True)
class Attempt:
    """Edges [edge, end_edge) of whole windows, and how often scoring or learning them failed."""

    edge: int
    end_edge: int
    failures: int = 0


NONE = Attempt(-1, -1)


def last_attempt(folder: Path) -> Attempt:
    """The one before a restart; NONE where there was none, or it cannot be read."""
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
    """Write it down durably. Returns: how often it failed before. Windows once learned as one count
    anew when they are tried singly."""
    now = Attempt(window.first_edge, window.end_edge)
    before = last_attempt(folder)
    if (before.edge, before.end_edge) == (now.edge, now.end_edge):
        return before.failures
    write_durably(folder / FILE, msgspec.json.encode(now))
    return 0


@contextmanager
def counting_failures(folder: Path) -> Iterator[None]:
    """Count an error of the work inside against the window that was begun.

    A signal that ends the process, or a disk that takes nothing, is not the window's fault: it
    never counts.
    """
    try:
        yield
    except OSError:
        raise
    except Exception:
        before = last_attempt(folder)
        write_durably(
            folder / FILE, msgspec.json.encode(replace(before, failures=before.failures + 1))
        )
        raise
