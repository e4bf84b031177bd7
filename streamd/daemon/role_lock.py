"""The lock of a role: one process holds it, and another may wait for it."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from streamd.errors import LockedError
from streamd.processes import SUPERVISED_BY
from streamd.roles import LOCK, make_folder
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
Locked = TypeVar("Locked")


def wait_for_lock(
    acquire: Callable[[], Locked], beat: Heartbeat | None, stop: threading.Event
) -> Locked | None:
    """Acquire a lock, and wait while another process holds it: after a supervisor was killed, its
    roles take a moment to end.

    Args: acquire: raises LockedError while another process holds the lock; beat: the heartbeat of
    the waiting process, None if the other process writes under the same name. Returns: the result
    of `acquire`, None if `stop` was set meanwhile.
    """
    logged = False
    while True:
        try:
            return acquire()
        except LockedError as error:
            if not logged:
                logger.warning("waiting_for_lock", error=str(error))
            logged = True
        if beat is not None:
            beat.touch("waiting for another process")
        if stop.wait(0.1):
            return None


def lock_name(data_dir: Path, name: str, stop: threading.Event) -> int | None:
    """Lock the name of a role or server until this process ends.

    Under a supervisor it waits for the lock, as `wait_for_lock`. Returns: the lock's descriptor,
    None if `stop` was set meanwhile. Raises: LockedError without a supervisor.
    """
    from streamd.eventlog.recovery import lock_directory

    def acquire() -> int:
        return lock_directory(
            make_folder(data_dir, name) / LOCK,
            "stop that process, or start this server with a --name of its own, such as serve-2.",
        )

    return wait_for_lock(acquire, None, stop) if SUPERVISED_BY in os.environ else acquire()
