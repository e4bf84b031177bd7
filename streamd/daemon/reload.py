"""Settings that a running process adopts at SIGHUP, when it reads the settings again."""

import os
import signal
import threading
from collections.abc import Callable

import structlog

from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.journal.tail import JournalTail
from streamd.schema_change import check_extends
from streamd.settings.loading import Settings, changed_keys, schema_of
from streamd.telemetry.logs import set_log_level

logger = structlog.get_logger()
LOG_LEVEL = "telemetry.log_level"
RELOADED = (
    "graph.node_sets",
    "graph.edge_sets",
    "sources",
    "kafka.topics",
    "stream.edge_feature_dim",
    "stream.node_feature_dim",
)
"""Settings that ingest takes over by a start of its own: further sets and features, and their
sources. The other roles see the change in the log."""


def read_again(
    old: Settings, read: Callable[[], Settings], taken_over: tuple[str, ...]
) -> tuple[Settings, list[str]]:
    """Read the settings again.

    taken_over: settings that this process can adopt. Returns: the new settings, and the keys that
    differ. If other keys differ or one is wrong: the old settings and no keys, with a line in the
    log.
    """
    try:
        # All or nothing: one setting that needs a restart refuses the others.
        settings = read()
        differ = changed_keys(old, settings)
        if others := [key for key in differ if key not in taken_over]:
            raise SettingsError(
                f"Only a restart takes over {', '.join(others)}.",
                f"restart the process, or undo the change; taken over are {', '.join(taken_over)}.",
            )
        # The log may have more than both.
        if log := JournalTail.open(old.data_dir):
            check_extends(log.state.schema, schema_of(settings))
    except StreamdError as error:
        logger.error("reload_refused", error=str(error), meaning="the settings stay as they are")
        return old, []
    logger.info("settings_read_again", changed=differ)
    return settings, differ


def reload_at_hangup(
    settings: Settings, role: str, read: Callable[[], Settings], stop: threading.Event
) -> threading.Event:
    """Let the process of one role adopt settings at SIGHUP, in a thread of its own.

    stop: ends the role. Returns: an event that is set if the role must start again with other
    settings after it has stopped.
    """
    hangup, begins_again = threading.Event(), threading.Event()
    had_terminal = is_terminal()

    def take_over() -> None:
        current = settings
        while hangup.wait():
            hangup.clear()
            # The signal also comes when the terminal closes, which ends its processes.
            if had_terminal and not is_terminal():
                stop.set()
                return

            # The log level counts at once. Only ingest reads the other settings.
            current, differ = read_again(current, read, (*RELOADED, LOG_LEVEL))
            set_log_level(current.telemetry.log_level)
            if role == "ingest" and any(key in RELOADED for key in differ):
                begins_again.set()
                stop.set()
                return

    threading.Thread(target=take_over, name="reload", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: hangup.set())
    return begins_again


def is_terminal() -> bool:
    """Whether the standard input is a terminal that is still open."""
    return os.isatty(0)
