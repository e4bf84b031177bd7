"""A small file per role that says: this loop turned at this time, and what it was doing."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STALLED_SECONDS = 60.0
FOLDER = "run"


@dataclass(frozen=True)
class Beat:
    """A role's last sign of life. age_seconds: since it was written; alive: written lately by a process that exists."""

    role: str
    state: str
    pid: int
    age_seconds: float
    alive: bool
    detail: dict[str, Any]


class Heartbeat:
    """Written by the loop it speaks for, at most every `interval_seconds` unless the state changed. Owner: that loop."""

    def __init__(self, data_dir: Path, role: str, interval_seconds: float = 0.2) -> None:
        self.role = role
        self._path = data_dir / FOLDER / f"{role}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._interval = interval_seconds
        self._written = 0.0
        self._turned = time.monotonic()
        self._state = ""

    def touch(self, state: str, **detail: Any) -> None:
        """Say that the loop turned; no fsync, a heartbeat need not survive a crash."""
        now = self._turned = time.monotonic()
        if state == self._state and now - self._written < self._interval:
            return
        self._written, self._state = now, state
        content = json.dumps({"role": self.role, "state": state, "pid": os.getpid(), "time": time.time(),
                              "detail": detail})
        scratch = self._path.with_suffix(".tmp")
        scratch.write_text(content)
        scratch.replace(self._path)

    def well(self) -> tuple[bool, str]:
        """Whether the loop turned lately, and why that is said; idle and busy are well."""
        age = time.monotonic() - self._turned
        return age < STALLED_SECONDS, f"{self._state or 'starting'}; the loop's last turn was {age:.1f} s ago"


def read_beat(data_dir: Path, role: str) -> Beat | None:
    """The last heartbeat of a role, None if it never ran here."""
    try:
        content = json.loads((data_dir / FOLDER / f"{role}.json").read_text())
    except (OSError, ValueError):
        return None
    age = max(0.0, time.time() - content["time"])
    try:
        os.kill(content["pid"], 0)
        exists = True
    except ProcessLookupError:
        exists = False
    except PermissionError:
        exists = True
    return Beat(role, content["state"], content["pid"], age, exists and age < STALLED_SECONDS, content["detail"])
