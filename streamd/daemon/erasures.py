"""Runs the process for requests to erase nodes, while any is open."""

import os
import subprocess
import threading
from contextlib import suppress

import structlog

from streamd.daemon.supervisor import role_environment
from streamd.errors import LockedError
from streamd.eventlog.recovery import lock_directory
from streamd.processes import PYTHON, SUPERVISED_BY
from streamd.roles import LOCK
from streamd.settings.loading import Settings
from streamd.store.erasure_requests import ErasureRequests

logger = structlog.get_logger()
LOOK_SECONDS = 1.0
"""Pause between two looks for open requests."""
RETRY_SECONDS = 30.0
"""Pause after the process failed, for example because there is no log yet."""


def keep_erasing(settings: Settings, stop: threading.Event) -> None:
    """Start the process if a request is open and no other server on the directory runs it, until
    `stop`. It runs in a thread of a server."""
    requests = ErasureRequests(settings.data_dir)
    while not stop.wait(LOOK_SECONDS):
        if not requests.num_open:
            continue
        with suppress(LockedError):
            lock = lock_directory(requests.folder / LOCK)
            try:
                status = _run(settings, stop)
            finally:
                os.close(lock)
            if status and not stop.is_set():
                logger.error("erasing_failed", status=status, meaning="it is started again")
                stop.wait(RETRY_SECONDS)


def _run(settings: Settings, stop: threading.Event) -> int:
    """Run the process until it ends, or `stop`. Returns: its exit status."""
    env = role_environment(settings, "serve", os.environ) | {SUPERVISED_BY: str(os.getpid())}
    child = subprocess.Popen([*PYTHON, "-m", "streamd", "erase", "--requests"], env=env)
    while not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            return child.wait(LOOK_SECONDS)
    # Requests are whole at each moment, so it may end anywhere.
    child.terminate()
    return child.wait()
