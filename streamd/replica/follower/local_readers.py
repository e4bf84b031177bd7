"""Retention on a follower: it drops the segments that the leader dropped, once the servers on this
machine do not need them."""

from pathlib import Path

import structlog

from streamd.errors import CorruptionError
from streamd.eventlog.recovery import is_locked
from streamd.eventlog.upkeep.holds import read_holds
from streamd.roles import LOCK, folder_of

logger = structlog.get_logger()
DROP_SECONDS = 120.0
"""Longest wait for a server that still needs segments that the leader dropped. A healthy server
stores facts within seconds, and later commits must not wait for one that is stuck."""


def readers_before(data_dir: Path, event: int) -> list[str]:
    """Names of the servers that run here and would need events before an id after a restart.

    Servers that do not run rebuild from the log's first event, as on a new machine.
    """
    try:
        holds = read_holds(data_dir)
    except CorruptionError as error:
        logger.error(
            "holds_unreadable",
            error=str(error),
            meaning="segments are dropped at once; servers here may rebuild at their next start",
        )
        return []
    return [
        name
        for name, hold in holds.items()
        if hold.edge < event and is_locked(folder_of(data_dir, name) / LOCK)
    ]
