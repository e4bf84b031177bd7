"""Runs the process that erases nodes while a request to erase is open."""

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
CHECK_SECONDS = 1.0
"""Interval of the checks for open requests."""
RETRY_SECONDS = 30.0
"""Pause after a failure of the process, for example because there is no log yet."""


def run_erasures(settings: Settings, stop: threading.Event) -> None:
    """Start the process whenever a request is open and no other server on the data directory runs
    one, until `stop`. A thread of each server calls it."""
    requests = ErasureRequests(settings.data_dir)
    while not stop.wait(CHECK_SECONDS):
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
            return child.wait(CHECK_SECONDS)
    # Each change of a request is one rename, so the process may be killed at any time.
    child.terminate()
    return child.wait()
