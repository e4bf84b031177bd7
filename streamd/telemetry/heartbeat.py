"""A small file per role that says: this loop turned at this time, and what it was doing."""

import json
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from streamd.roles import HEARTBEAT, ROLES, folder_of, make_folder, names_in

logger = structlog.get_logger()
STALLED_SECONDS = 60.0
"""A loop that has not turned for so long stands still: nothing it does on purpose takes half of
that."""
WATCHDOG_SECONDS = 1.0
REFUSED_STATE = "refused"
"""State of a role that ended because of its data, and is not started again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """A role's last sign of life. age_seconds: since it was written; alive: written lately by a
    process that exists."""

    name: str
    role: str
    state: str
    pid: int
    age_seconds: float
    alive: bool
    detail: dict[str, Any]


class Heartbeat:
    """Touched by the loop it speaks for. A change of state is written at once, the rest by a thread
    of its own every `interval_seconds`: a rename takes milliseconds, which a loop that answers
    requests does not have. One that cannot be written is said, and harms no loop."""

    def __init__(
        self, data_dir: Path, role: str, name: str = "", interval_seconds: float = 0.2
    ) -> None:
        """name: under which the role writes; its own where there is one of it."""
        self.role = role
        self.name = name or role
        self._path = make_folder(data_dir, self.name) / HEARTBEAT
        self._interval = interval_seconds
        self._turned = time.monotonic()
        self._state = ""
        self._latest: dict[str, Any] = {}
        self._written: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._begun = self._failing = False

    def touch(self, state: str, **detail: Any) -> None:
        """Say that the loop turned; no fsync, a heartbeat need not survive a crash."""
        self._turned = time.monotonic()
        self._latest = {
            "role": self.role,
            "state": state,
            "pid": os.getpid(),
            "time": time.time(),
            "detail": detail,
        }
        if state != self._state:
            self._state = state
            self._write()
        elif not self._begun:
            self._begun = True
            threading.Thread(
                target=_keep_writing, args=(weakref.ref(self), self._interval), daemon=True
            ).start()

    def _write(self) -> None:
        with self._lock:
            if (latest := self._latest) is self._written:
                return
            scratch = self._path.with_suffix(".tmp")
            try:
                scratch.write_text(json.dumps(latest))
                scratch.replace(self._path)
            except OSError as error:
                if not self._failing:
                    logger.error("heartbeat_not_written", file=str(self._path), error=str(error))
                self._failing = True
            else:
                self._written = latest
                self._failing = False

    def end_when_stalled(self) -> None:
        """Watch the loop from a thread of its own, and end the process where it stands still: it
        may wait for something that never comes, deaf to signals, and a new process may not."""
        threading.Thread(
            target=_end_when_stalled, args=(weakref.ref(self),), name="watchdog", daemon=True
        ).start()

    def well(self) -> tuple[bool, str]:
        """Whether the loop turned lately, and why that is said; idle and busy are well."""
        age = time.monotonic() - self._turned
        return (
            age < STALLED_SECONDS,
            f"{self._state or 'starting'}; the loop's last turn was {age:.1f} s ago",
        )


def _keep_writing(beat: "weakref.ref[Heartbeat]", interval: float) -> None:
    """Until the heartbeat is gone, or its directory is."""
    while True:
        time.sleep(interval)
        found = beat()
        if found is None or not found._path.parent.exists():
            return
        found._write()
        del found


def _end_when_stalled(beat: "weakref.ref[Heartbeat]") -> None:
    while (found := beat()) is not None:
        well, why = found.well()
        if not well:
            logger.error(
                "role_stalled", child=found.role, why=why, action="it ends and is started again"
            )
            os._exit(1)
        del found
        time.sleep(WATCHDOG_SECONDS)


def read_beat(data_dir: Path, name: str) -> Beat | None:
    """The last heartbeat under a name, None if it never ran here."""
    try:
        content = json.loads((folder_of(data_dir, name) / HEARTBEAT).read_text())
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
    return Beat(
        name=name,
        role=content["role"],
        state=content["state"],
        pid=content["pid"],
        age_seconds=age,
        alive=exists and age < STALLED_SECONDS,
        detail=content["detail"],
    )


def read_beats(data_dir: Path, role: str | None = None) -> list[Beat]:
    """The last heartbeats of all that ever ran here, or of a role under whatever names; in order of
    roles and names."""
    wanted = ROLES if role is None else (role,)
    beats = [
        beat
        for name in names_in(data_dir)
        if (beat := read_beat(data_dir, name)) and beat.role in wanted
    ]
    return sorted(beats, key=lambda beat: ROLES.index(beat.role))


def refusals(data_dir: Path, roles: Sequence[str]) -> dict[str, str]:
    """Roles that refused their data, and why."""
    beats = {role: read_beat(data_dir, role) for role in roles}
    return {
        role: str(beat.detail.get("why", ""))
        for role, beat in beats.items()
        if beat is not None and beat.state == REFUSED_STATE
    }
