"""The supervisor starts the roles as its children, restarts one that dies, kills one that gives no
heartbeat, and stops them together.

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
"""How long a role may take to stop before it is killed: a trainer may be writing a checkpoint."""
MAX_BACKOFF_SECONDS = 30.0
"""Longest pause before a role is started again: a broker that is back is noticed soon."""
SILENT_SECONDS = STALLED_SECONDS
"""A role that has sent no heartbeat for so long cannot watch itself: it is killed. Its own
watchdog waits as long for a loop that stalls."""
STEADY_SECONDS = 60.0
"""A role that ran so long begins again with the shortest pause."""
MAX_FIRST_FAILURES = 3
"""A role that ends so often without one heartbeat will not come to run by itself."""
REFUSED = 2
"""Exit status of a role whose settings are wrong: the daemon ends with it."""
ROLE_REFUSED = 3
"""Exit status of a role that refuses its data, as after a loss in Kafka: it is not started again,
the others go on."""
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Variables that OpenMP, MKL, OpenBLAS and numba read once, as they are loaded."""


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
    """Starts the roles, restarts one that dies after growing pauses, kills one that gives no sign
    of life, and stops them together."""

    def __init__(
        self,
        settings: Settings,
        roles: tuple[str, ...] | None = None,
        read: Callable[[], Settings] | None = None,
    ) -> None:
        """roles: None for those of the settings. read: reads the settings again at SIGHUP; without
        it the signal changes nothing."""
        asked_for = roles_here(settings)
        roles = asked_for if roles is None else roles
        self._settings = settings
        self._read = read or (lambda: settings)
        self._hangup = threading.Event()
        self._replaced: set[str] = set()
        """Roles that end in order to start again with other settings."""
        # Several servers share one port, each under a name of its own.
        servers = server_names(settings.server.workers)
        self._roles = tuple(
            name for role in roles for name in (servers if role == "serve" else (role,))
        )
        """Names under which the roles run; a role has its own but for further servers."""
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._failures = dict.fromkeys(self._roles, 0)
        self._refused: set[str] = set()
        self._heartbeats = HeartbeatWatch(lambda name: Paths.of(settings, name).learned)
        self._beaten: set[str] = set()
        """Roles that wrote a heartbeat once: they are started again however often they die."""
        self._stop = threading.Event()

    def run(self) -> int:
        """Run the roles until a signal.

        Returns: exit status, 2 if a role refuses its settings or never starts up, or if all refuse
        their data. Raises: SettingsError if data_dir is unusable or two roles have the same port.
        """
        check_ports([one for one in listeners_here(self._settings) if one.name in self._roles])
        make_data_dir(self._settings.data_dir)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, lambda *_: self._hangup.set())
        had_terminal = is_terminal()
        for role in self._roles:
            self._start(role)
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

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Stop the roles at the first signal; pass on a second one, which ends a drain."""
        if self._stop.is_set():
            for child in self._children.values():
                child.terminate()
        self._stop.set()

    def _reload(self) -> None:
        """Read the settings again, and restart ingest if they declare further sets or features, or
        other sources. The other roles continue: they see the change in the log.

        It refuses settings that a running daemon cannot adopt, and changes nothing then.
        """
        settings, differ = read_again(self._settings, self._read, RELOADED)
        self._settings = settings
        child = self._children.get("ingest")
        if differ and child is not None:
            self._replaced.add("ingest")
            child.terminate()

    def _start(self, name: str) -> None:
        """Start the process of a role, or of a further server, by its name."""
        role = name if name in ALL_ROLES else "serve"
        named = () if name == role else ("--name", name)
        self._heartbeats.begin(name, time.monotonic())
        env = role_environment(self._settings, role, os.environ) | {SUPERVISED_BY: str(os.getpid())}
        self._children[name] = subprocess.Popen(
            [*PYTHON, "-m", "streamd", "run", "--role", role, *named], env=env
        )
        self._started[name] = time.monotonic()
        logger.info("role_started", child=name, pid=self._children[name].pid)

    def _watch(self) -> int | None:
        """Look at each role once, and start those that are due.

        Returns: the exit status with which the daemon must end, None if it continues.
        """
        now = time.monotonic()
        for role in self._roles:
            if role in self._refused:
                continue
            # A role that is not running is started when its pause is over.
            child = self._children.get(role)
            if child is None:
                if now >= self._due[role]:
                    self._start(role)
            elif (status := child.poll()) is not None:
                # A start that replaces this one must not be given up because it was slow to beat.
                self._note_heartbeat(role)
                if role in self._replaced:
                    self._replaced.remove(role)
                    self._start(role)
                elif self._is_over(role, status, now):
                    return REFUSED
            else:
                self._kill_where_silent(role, child, now)
        return None

    def _note_heartbeat(self, role: str) -> None:
        """Note that a role which ended had written a heartbeat, itself or through its first
        rank."""
        if self._heartbeats.has_begun(role):
            self._beaten.add(role)

    def _kill_where_silent(self, role: str, child: subprocess.Popen[bytes], now: float) -> None:
        """Kill a role that is stopped, or whose own watchdog does not run."""
        # Before its first sign a role is never silent: imports may take any time.
        silent = self._heartbeats.silent_seconds(role, now)
        if silent < SILENT_SECONDS:
            return
        logger.error(
            "role_silent",
            child=role,
            pid=child.pid,
            seconds=round(silent),
            meaning="it is stopped or stuck: it sent no heartbeat",
            action="it is killed and started again",
        )
        # A stopped process ends by no other signal; one that waits for a disk ends later.
        child.kill()
        self._beaten.add(role)
        self._heartbeats.begin(role, now)

    def _is_over(self, role: str, status: int, now: float) -> bool:
        """Handle the end of a role: plan its next start, if another start can help.

        Args: status: its exit status; now: monotonic seconds. Returns: whether the daemon must end.
        """
        # Wrong settings or data end the next start too.
        if status == REFUSED:
            logger.error("role_refused", child=role, hint="see its message above")
            return True
        if status == ROLE_REFUSED:
            self._refused.add(role)
            del self._children[role]
            logger.error(
                "role_refused",
                child=role,
                hint="see its message above",
                meaning="the other roles go on",
            )
            return self._refused.issuperset(self._roles)

        # It died. One that never wrote a heartbeat is given up after a few times.
        if role not in self._beaten and self._failures[role] + 1 >= MAX_FIRST_FAILURES:
            logger.error(
                "role_never_ran",
                child=role,
                status=status,
                attempts=MAX_FIRST_FAILURES,
                action="see its messages above; then start the daemon again",
            )
            return True

        # Others are started again, after 0.5 s, 1 s, 2 s and so on.
        if now - self._started[role] > STEADY_SECONDS:
            self._failures[role] = 0
        pause = min(MAX_BACKOFF_SECONDS, 0.5 * 2 ** self._failures[role])
        self._failures[role] += 1
        self._due[role] = now + pause
        del self._children[role]
        logger.warning("role_died", child=role, status=status, restart_seconds=pause)
        return False

    def _stop_all(self) -> None:
        """Stop all roles together, and kill those that have not ended in time."""
        for child in self._children.values():
            child.terminate()
        patience = STOP_SECONDS + self._settings.server.drain_seconds
        deadline = time.monotonic() + patience
        for role, child in self._children.items():
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.error("role_killed", child=role, after_seconds=patience)
                child.kill()
                child.wait()


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
