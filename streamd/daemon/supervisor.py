"""The supervisor starts the roles as its children, restarts one that dies, kills one that sends
no heartbeat, and stops them together.

It imports neither torch nor numba.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import structlog

from streamd.daemon.child import Child, ChildState
from streamd.daemon.heartbeat_watch import HeartbeatWatch
from streamd.daemon.reload import RELOADED, is_terminal, read_again
from streamd.errors import SettingsError
from streamd.processes import PYTHON, SUPERVISED_BY
from streamd.roles import ALL_ROLES, server_names
from streamd.settings.loading import Settings, as_environment
from streamd.settings.paths import Paths, roles_here
from streamd.settings.ports import check_ports, listeners_here
from streamd.telemetry.heartbeat import STALLED_SECONDS

logger = structlog.get_logger()
STOP_SECONDS = 30.0
"""Time that a role may take to stop before it is killed: a trainer may be writing a checkpoint."""
MAX_BACKOFF_SECONDS = 30.0
"""Longest pause before a restart, short enough that a role soon notices a broker that is back."""
SILENT_SECONDS = STALLED_SECONDS
"""A role that has sent no heartbeat for this long is killed, since its own watchdog, which waits as
long for a stalled loop, does not run."""
STEADY_SECONDS = 60.0
"""After a role ran this long, its next restart has the shortest pause again."""
MAX_FIRST_FAILURES = 3
"""A role that dies this often before its first heartbeat is given up, and the daemon ends."""
REFUSED = 2
"""Exit status of a role whose settings are wrong; the daemon ends too."""
ROLE_REFUSED = 3
"""Exit status of a role that refuses its data, for example after Kafka lost records: it is not
restarted, and the other roles continue."""
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Variables that OpenMP, MKL, OpenBLAS and numba read only when they are loaded."""


def role_environment(settings: Settings, role: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a role's process: all settings, and thread counts, which must be set
    before torch is imported."""
    threads = settings.training.threads if role == "train" else 1
    inherited = {k: v for k, v in environ.items() if not k.startswith("STREAMD_")}
    return {
        **inherited,
        **as_environment(settings),
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
    }


class Supervisor:
    """Starts the roles, restarts one that dies after growing pauses, kills one that sends no
    heartbeat, and stops them together."""

    def __init__(
        self,
        settings: Settings,
        roles: tuple[str, ...] | None = None,
        read: Callable[[], Settings] | None = None,
    ) -> None:
        """roles: None for those of the settings. read: reads the settings again at SIGHUP; without
        it the signal changes nothing."""
        configured = roles_here(settings)
        roles = configured if roles is None else roles
        self._settings = settings
        self._read = read or (lambda: settings)
        self._hangup = threading.Event()
        self._stop = threading.Event()
        # Several servers share one port, each under its own name.
        servers = server_names(settings.server.workers)
        names = [name for role in roles for name in (servers if role == "serve" else (role,))]
        self._children = {name: Child(name) for name in names}
        self._heartbeats = HeartbeatWatch(lambda name: Paths.of(settings, name).learned)

    def run(self) -> int:
        """Run the roles until a signal.

        Returns: exit status, 2 if a role refuses its settings or never starts up, or if all refuse
        their data. Raises: SettingsError if data_dir is unusable or two roles have the same port.
        """
        listeners = listeners_here(self._settings)
        check_ports([one for one in listeners if one.name in self._children])
        make_data_dir(self._settings.data_dir)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, lambda *_: self._hangup.set())
        had_terminal = is_terminal()
        for child in self._children.values():
            self._start(child)
        status = 0
        while not self._stop.wait(0.1):
            if self._hangup.is_set():
                self._hangup.clear()
                # The signal also means that the terminal was closed, which ends its processes.
                if had_terminal and not is_terminal():
                    break
                self._reload()
            refused = self._watch()
            if refused is not None:
                status = refused
                break
        self._stop_all()
        return status

    def _processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """The processes by name, without those of roles that are paused or have ended."""
        children = self._children.values()
        return {child.name: child.process for child in children if child.process is not None}

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Stop the roles at the first signal; pass on a second one, which ends a drain."""
        if self._stop.is_set():
            for process in self._processes().values():
                process.terminate()
        self._stop.set()

    def _reload(self) -> None:
        """Read the settings again, and restart ingest if they declare further sets or features, or
        other sources. The other roles continue: they see the change in the log.

        If the settings are wrong, or differ in a key that needs a restart, nothing changes.
        """
        settings, differ = read_again(self._settings, self._read, RELOADED)
        self._settings = settings
        if differ and "ingest" in self._children:
            self._children["ingest"].replace()

    def _start(self, child: Child) -> None:
        """Start the process of a role, or of one of several servers."""
        name = child.name
        role = name if name in ALL_ROLES else "serve"
        options = () if name == role else ("--name", name)
        self._heartbeats.begin(name, time.monotonic())
        env = role_environment(self._settings, role, os.environ) | {SUPERVISED_BY: str(os.getpid())}
        process = subprocess.Popen(
            [*PYTHON, "-m", "streamd", "run", "--role", role, *options], env=env
        )
        child.start(process, time.monotonic())
        logger.info("role_started", child=name, pid=process.pid)

    def _watch(self) -> int | None:
        """Check each role once, and start those whose pause is over.

        Returns: the exit status with which the daemon must end, None if it continues.
        """
        now = time.monotonic()
        for child in self._children.values():
            if child.state is ChildState.ENDED:
                continue
            if child.process is None:
                if now >= child.due_at:
                    self._start(child)
            elif (status := child.process.poll()) is not None:
                # A process that sends its first heartbeat late must not count against a role that
                # ran before.
                if self._heartbeats.has_begun(child.name):
                    child.is_proven = True
                if child.state is ChildState.REPLACED:
                    self._start(child)
                elif self._must_end(child, status, now):
                    return REFUSED
            else:
                self._kill_if_silent(child, child.process, now)
        return None

    def _kill_if_silent(self, child: Child, process: subprocess.Popen[bytes], now: float) -> None:
        """Kill a role that is stopped, or whose own watchdog does not run."""
        # No role is silent before its first heartbeat: imports may take any time.
        silent = self._heartbeats.silent_seconds(child.name, now)
        if silent < SILENT_SECONDS:
            return
        logger.error(
            "role_silent",
            child=child.name,
            pid=process.pid,
            seconds=round(silent),
            meaning="it is stopped or stuck: it sent no heartbeat",
            action="it is killed and started again",
        )
        # A stopped process ends by no other signal; one that waits for a disk ends later.
        process.kill()
        child.is_proven = True
        self._heartbeats.begin(child.name, now)

    def _must_end(self, child: Child, status: int, now: float) -> bool:
        """Handle the end of a role's process: plan its next start, if that can help.

        Args: status: its exit status; now: monotonic seconds. Returns: whether the daemon must end.
        """
        # Wrong settings or data would end the next process too.
        if status in (REFUSED, ROLE_REFUSED):
            child.end()
            others = {} if status == REFUSED else {"meaning": "the other roles continue"}
            logger.error("role_refused", child=child.name, hint="see its message above", **others)
            ended = [one.state is ChildState.ENDED for one in self._children.values()]
            return status == REFUSED or all(ended)

        # It died. A role that never sent a heartbeat is given up after a few tries.
        if not child.is_proven and child.num_failures + 1 >= MAX_FIRST_FAILURES:
            child.end()
            logger.error(
                "role_never_ran",
                child=child.name,
                status=status,
                attempts=MAX_FIRST_FAILURES,
                action="see its messages above; then start the daemon again",
            )
            return True

        # Otherwise it is started again, after 0.5 s, 1 s, 2 s and so on.
        if now - child.started_at > STEADY_SECONDS:
            child.num_failures = 0
        pause = min(MAX_BACKOFF_SECONDS, 0.5 * 2**child.num_failures)
        child.num_failures += 1
        child.pause(now + pause)
        logger.warning("role_died", child=child.name, status=status, restart_seconds=pause)
        return False

    def _stop_all(self) -> None:
        """Stop all roles together, and kill those that have not ended in time."""
        processes = self._processes()
        for process in processes.values():
            process.terminate()
        patience = STOP_SECONDS + self._settings.server.drain_seconds
        deadline = time.monotonic() + patience
        for name, process in processes.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.error("role_killed", child=name, after_seconds=patience)
                process.kill()
                process.wait()


def make_data_dir(path: Path) -> None:
    """Make the data directory if it does not exist. Raises: SettingsError if it is unusable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is not a directory" if path.exists() else error.strerror
        raise SettingsError(
            f"data_dir {path} cannot be made: {why}.",
            "set data_dir to a directory that this user may write.",
        ) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise SettingsError(
            f"data_dir {path} cannot be written by user {os.getuid()}.",
            "give that user rights to it, or set data_dir to another.",
        )
