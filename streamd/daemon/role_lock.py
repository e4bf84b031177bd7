"""The lock of a role's name. One process holds it at a time; another may wait for it."""

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
Held = TypeVar("Held")


def once_unlocked(
    take: Callable[[], Held], beat: Heartbeat | None, stop: threading.Event
) -> Held | None:
    """Take a lock, and wait for its owner to end, as after the supervisor of an older role was
    killed.

    Args: take: raises LockedError while another process has the lock; beat: the heartbeat of the
    waiting process, None if the owner writes under that name. Returns: the result of `take`, None
    if `stop` was set meanwhile.
    """
    logged = False
    while True:
        try:
            return take()
        except LockedError as error:
            if not logged:
                logger.warning("waiting_for_lock", error=str(error))
            logged = True
        if beat is not None:
            beat.touch("waiting for another process")
        if stop.wait(0.1):
            return None


def lock_name(data_dir: Path, name: str, stop: threading.Event) -> int | None:
    """Lock a server's name until this process ends.

    Under a supervisor it waits, because the server of a killed supervisor may still be ending.
    Returns: the lock's descriptor, None if `stop` was set meanwhile. Raises: LockedError.
    """
    from streamd.eventlog.recovery import lock_directory

    def take() -> int:
        return lock_directory(
            make_folder(data_dir, name) / LOCK,
            "stop that process, or start this server with a --name of its own, such as serve-2.",
        )

    return once_unlocked(take, None, stop) if SUPERVISED_BY in os.environ else take()
