"""Reads the settings again at SIGHUP, and adopts those that need no restart of the daemon."""

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
"""Settings of sets, features and their sources. Ingest adopts further ones by a restart of its own
process; the other roles see the change in the log."""


def read_again(
    old: Settings, read: Callable[[], Settings], adopted: tuple[str, ...]
) -> tuple[Settings, list[str]]:
    """Read the settings again.

    adopted: settings that this process can adopt. Returns: the new settings, and the keys that
    differ; or the old settings and no keys if a setting is wrong or another key differs, which is
    logged.
    """
    try:
        # All or nothing: if one change needs a restart, no change is adopted.
        settings = read()
        differ = changed_keys(old, settings)
        if others := [key for key in differ if key not in adopted]:
            raise SettingsError(
                f"Only a restart takes over {', '.join(others)}.",
                f"restart the process, or undo the change; taken over are {', '.join(adopted)}.",
            )
        # The log may have more sets than the old and the new settings.
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
    """Adopt settings at SIGHUP, in a thread of this role's process.

    stop: set to end the role. Returns: an event that is set if the role must then start again, with
    the new settings.
    """
    hangup, restart_requested = threading.Event(), threading.Event()
    had_terminal = is_terminal()

    def adopt() -> None:
        current = settings
        while hangup.wait():
            hangup.clear()
            # The signal also comes when the terminal closes, which ends its processes.
            if had_terminal and not is_terminal():
                stop.set()
                return

            # The log level changes at once. Only ingest reads the other settings.
            current, differ = read_again(current, read, (*RELOADED, LOG_LEVEL))
            set_log_level(current.telemetry.log_level)
            if role == "ingest" and any(key in RELOADED for key in differ):
                restart_requested.set()
                stop.set()
                return

    threading.Thread(target=adopt, name="reload", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: hangup.set())
    return restart_requested


def is_terminal() -> bool:
    """Whether standard input is an open terminal."""
    return os.isatty(0)
