"""Processes that a benchmark starts: one that ends by itself ends the benchmark, with its last words, where it would wait for ever."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from streamd.daemon.supervisor import role_environment
from streamd.settings.loading import Settings

LAST_LINES = 20


class ChildDiedError(RuntimeError):
    """A process that should run ended by itself."""


class Children:
    """Processes of one benchmark, ended with its block. Raises ChildDiedError in the main thread as soon as one of them ends by itself.

    A signal handler sees to that, so the block belongs to the main thread, and threads that ask a dead child must end by themselves.
    """

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen] = {}
        self._may_end: set[str] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="children-")
        self._handler: object = None

    def __enter__(self) -> "Children":
        self._handler = signal.signal(signal.SIGCHLD, self._on_end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.signal(signal.SIGCHLD, self._handler)
        for name in list(self._running):
            self.end(name)
        self._folder.cleanup()

    def start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen:
        """Start a process whose output goes to a file."""
        with self._output(name).open("wb") as output:
            self._running[name] = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        # It may have ended before it was known here.
        self._check()
        return self._running[name]

    def role(self, s: Settings, role: str, name: str = "") -> subprocess.Popen:
        """A role of streamd, with the settings as its environment. name: where there are several of a role."""
        own = ["--name", name] if name else []
        return self.start(name or role, [sys.executable, "-m", "streamd", "run", "--role", role, *own], role_environment(s, role, os.environ))

    def run_to_end(self, name: str, command: list[str], env: dict[str, str] | None = None) -> Callable[[], str]:
        """Start a process that ends by itself with status 0. Returns: a function that waits for it, and returns its output."""
        child = self.start(name, command, env)
        self._may_end.add(name)

        def output() -> str:
            child.wait()
            self._check()
            return self._output(name).read_text()

        return output

    def end(self, name: str) -> None:
        """Terminate and reap a process, one that was stopped by a signal too."""
        child = self._running.pop(name)
        child.send_signal(signal.SIGCONT)
        child.terminate()
        child.wait()

    def _output(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _on_end(self, number: int, frame: object) -> None:
        self._check()

    def _check(self) -> None:
        for name, child in self._running.items():
            if child.poll() is not None and not (child.returncode == 0 and name in self._may_end):
                words = self._output(name).read_text(errors="replace").splitlines()[-LAST_LINES:]
                raise ChildDiedError("\n".join([f"{name} ended with status {child.returncode}; its last lines:", *words]))
