"""The heartbeat of a role: a small file with the time of its loop's last turn, and the loop's
state.

A thread of the role renews the file's modification time each second, even during a long compilation
or read. If that time does not change, the process is stopped, stuck or dead.
"""

import contextlib
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from streamd.roles import ALL_ROLES, HEARTBEAT, folder_of, make_folder, names_in

logger = structlog.get_logger()
STALLED_SECONDS = 60.0
"""A loop without a turn for this long is stalled: no intended work takes half of it."""
WATCHDOG_SECONDS = 1.0
"""Interval of the watchdog's checks, short compared to STALLED_SECONDS."""
HEARTBEAT_SECONDS = 1.0
"""Interval at which a process touches its heartbeat file: this shows that a process exists which
cannot be checked by its pid."""
UNSEEN_SECONDS = 10.0
"""A process of another container is considered dead after this long without a heartbeat. Ten
were due by then; a process under load may skip some."""


def _host() -> str:
    """Machine or container of this process; pids of other ones cannot be checked here."""
    # Containers of one pod share the host name, but each has its own pids.
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()} {namespace}".strip()


HOST = _host()
REFUSED_STATE = "refused"
"""State of a role that stopped because of invalid data; it is not restarted."""

FAILING = "failing"
"""The detail with the tasks that fail and are retried: name -> since (wall seconds) and error."""
HELD_STATE = "first times held"
"""State of ingest while it delays the first commit of a log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """The last heartbeat of a role.

    name: under which the role writes it. age_seconds: since the loop's last turn. exists: whether
    the role's process exists, as far as can be checked. alive: whether it exists and the loop
    turned recently. heartbeat_ns: time at which its file was last touched. detail: further fields
    of the role.
    """

    name: str
    role: str
    state: str
    pid: int
    age_seconds: float
    exists: bool
    alive: bool
    heartbeat_ns: int
    detail: dict[str, Any]


class Heartbeat:
    """Writes a role's heartbeat; the role's loop calls `touch` at each turn.

    A change of state is written immediately. Everything else is written by a thread every
    `interval_seconds`: a rename takes milliseconds, too long for a loop that answers requests. A
    heartbeat that cannot be written is logged, and the loop continues.
    """

    def __init__(
        self, data_dir: Path | None, role: str, name: str = "", interval_seconds: float = 0.2
    ) -> None:
        """data_dir: None to write no file. name: under which the role writes; empty for the role's
        own name."""
        self.role = role
        self.name = name or role
        self._path = None if data_dir is None else make_folder(data_dir, self.name) / HEARTBEAT
        self._interval = interval_seconds
        self._turned = time.monotonic()
        self._noted: dict[str, Any] = {}
        self._state = ""
        self._latest: dict[str, Any] = {}
        self._written: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._begun = self._failing = False

    def touch(self, state: str, **detail: Any) -> None:
        """Record a turn of the loop, with its state and details.

        Nothing is synced: a heartbeat need not survive a crash.
        """
        self._turned = time.monotonic()
        self._latest = {
            "role": self.role,
            "state": state,
            "pid": os.getpid(),
            "host": HOST,
            "time": time.time(),
            "detail": self._noted | detail,
        }
        if state != self._state:
            self._state = state
            self._write()
        if self._path is not None and not self._begun:
            self._begun = True
            threading.Thread(
                target=_keep_writing, args=(weakref.ref(self), self._interval), daemon=True
            ).start()

    def until(self, stop: threading.Event, state: str) -> Callable[[], bool]:
        """A callback for long work: each call touches the heartbeat, and returns whether `stop` is
        set. state: of the heartbeat."""

        def is_stopped() -> bool:
            self.touch(state)
            return stop.is_set()

        return is_stopped

    def note(self, **detail: Any) -> None:
        """Add details to all later heartbeats."""
        with self._lock:
            self._noted = self._noted | detail

    def note_failure(self, work: str, error: str) -> None:
        """Add the failure of a task that is retried to all later heartbeats, with the wall time
        since when it fails. work: its name. error: "" once it succeeds."""
        with self._lock:
            failing = dict(self._noted.get(FAILING, {}))
            since = failing[work]["since"] if work in failing else time.time()
            failing.pop(work, None)
            if error:
                failing[work] = {"since": since, "error": error}
            # A new mapping each time, since another thread may be writing the last one.
            self._noted = self._noted | {FAILING: failing}

    def _write(self) -> None:
        """Write the newest heartbeat, unless it is written already."""
        with self._lock:
            if self._path is None or (latest := self._latest) is self._written:
                return
            # Renamed into place, so that a reader never sees a partial file.
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

    def _touch_file(self) -> None:
        """Renew the file's modification time, which also works on a full disk."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def end_when_stalled(self) -> None:
        """Start a watchdog thread that ends the process when the loop stalls.

        A stalled loop may wait forever and not handle signals; the supervisor starts a new process.
        """
        threading.Thread(
            target=_end_when_stalled, args=(weakref.ref(self),), name="watchdog", daemon=True
        ).start()

    def well(self) -> tuple[bool, str]:
        """Whether the loop turned recently, and the reason as text; idle and busy loops are
        well."""
        age = time.monotonic() - self._turned
        return (
            age < STALLED_SECONDS,
            f"its loop's last turn was {age:.1f} s ago, its state: {self._state or 'starting'}",
        )


def _keep_writing(beat: "weakref.ref[Heartbeat]", interval: float) -> None:
    """Write the heartbeat if it changed, every `interval` seconds, and touch its file every
    HEARTBEAT_SECONDS, until the heartbeat or its directory is gone."""
    shown = time.monotonic()
    while True:
        time.sleep(interval)
        heartbeat = beat()
        if heartbeat is None or heartbeat._path is None or not heartbeat._path.parent.exists():
            return
        heartbeat._write()
        if time.monotonic() - shown >= HEARTBEAT_SECONDS:
            shown = time.monotonic()
            heartbeat._touch_file()
        # This reference must not keep the heartbeat alive during the sleep.
        del heartbeat


def _end_when_stalled(beat: "weakref.ref[Heartbeat]") -> None:
    """Watch a heartbeat until it is gone; end the process when its loop stalls."""
    while (heartbeat := beat()) is not None:
        well, why = heartbeat.well()
        if not well:
            logger.error(
                "role_stalled",
                child=heartbeat.role,
                why=why,
                action="the process ends, and the supervisor restarts it",
            )
            # Not sys.exit: it would end this thread only, and run handlers that may block too.
            os._exit(1)
        del heartbeat
        time.sleep(WATCHDOG_SECONDS)


def read_beat(data_dir: Path, name: str) -> Beat | None:
    """Read the last heartbeat of a name; None if no role has run here under that name."""
    path = folder_of(data_dir, name) / HEARTBEAT
    try:
        content = json.loads(path.read_text())
        heartbeat_ns = path.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
    age = max(0.0, time.time() - content["time"])
    if content.get("host") == HOST:
        exists = _is_process(content["pid"])
    else:
        exists = time.time() - heartbeat_ns / 1e9 < UNSEEN_SECONDS

    return Beat(
        name=name,
        role=content["role"],
        state=content["state"],
        pid=content["pid"],
        age_seconds=age,
        exists=exists,
        alive=exists and age < STALLED_SECONDS,
        heartbeat_ns=heartbeat_ns,
        detail=content["detail"],
    )


def _is_process(pid: int) -> bool:
    """Whether a process of this machine or container exists."""
    # Signal 0 only checks. PermissionError means that the process exists and is another user's.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def read_beats(data_dir: Path, role: str | None = None) -> list[Beat]:
    """Read the last heartbeats of all roles that have run here, or of one role under all its names.

    Sorted by role, then by name.
    """
    wanted = ALL_ROLES if role is None else (role,)
    beats = [
        beat
        for name in names_in(data_dir)
        if (beat := read_beat(data_dir, name)) and beat.role in wanted
    ]
    return sorted(beats, key=lambda beat: ALL_ROLES.index(beat.role))


def leads_here(data_dir: Path) -> bool:
    """Whether this machine is the leader of a replicated log, by the heartbeat of ingest."""
    beat = read_beat(data_dir, "ingest")
    return beat is not None and beat.alive and bool(beat.detail.get("leading"))


def refusals(data_dir: Path, roles: Sequence[str]) -> dict[str, str]:
    """Role -> reason, for those of `roles` that stopped because of invalid data."""
    beats = {role: read_beat(data_dir, role) for role in roles}
    return {
        role: str(beat.detail.get("why", ""))
        for role, beat in beats.items()
        if beat is not None and beat.state == REFUSED_STATE
    }


def held_times(data_dir: Path) -> str:
    """The reason why ingest delays the first commit of this log, with the operator's action; empty
    if it does not."""
    beat = read_beat(data_dir, "ingest")
    is_held = beat is not None and beat.alive and beat.state == HELD_STATE
    return str(beat.detail.get("held", "")) if beat is not None and is_held else ""
