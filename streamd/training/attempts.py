"""What the trainer is about to learn, written down before it begins: a restart takes the same, and counts."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamd.storage import write_durably
from streamd.windows import Window

FILE = "attempt.json"
MAX_TRIES = 3
"""Times a window may end the trainer before it is passed over."""


@dataclass(frozen=True)
class Attempt:
    """Edges [edge, end_edge) of whole windows, and how often learning them began."""

    edge: int
    end_edge: int
    tries: int


def last_attempt(folder: Path) -> Attempt:
    """The one before a restart; of edge -1 where there was none."""
    path = folder / FILE
    return msgspec.json.decode(path.read_bytes(), type=Attempt) if path.exists() else Attempt(-1, -1, 0)


def begin_attempt(folder: Path, window: Window) -> int:
    """Write it down durably. Returns: how often it began, this time included; the count outlives the process, which an
    error or a lack of memory may end. Windows once learned as one count anew when they are tried singly."""
    before = last_attempt(folder)
    same = (before.edge, before.end_edge) == (window.first_edge, window.end_edge)
    now = Attempt(window.first_edge, window.end_edge, before.tries + 1 if same else 1)
    write_durably(folder / FILE, msgspec.json.encode(now))
    return now.tries
