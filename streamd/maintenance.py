"""What the command line does to a data directory, whether or not the daemon runs on it."""

import time
from collections.abc import Callable
from pathlib import Path

from streamd.errors import LockedError, StreamdError
from streamd.ingest.deadletter import make_dead_letters
from streamd.segments.holds import ask_to_compact, asked_to_compact, read_holds
from streamd.segments.keeper import Keeper
from streamd.segments.log import LogWriter
from streamd.segments.reader import LogReader
from streamd.segments.tail import JournalTail
from streamd.settings import Settings

POLL_SECONDS = 0.2


def open_log(data_dir: Path) -> LogReader:
    """A reader of the log in a directory. Raises: StreamdError where there is none."""
    reader = LogReader(data_dir)
    if not reader.refresh():
        raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
    return reader


def compact_log(settings: Settings, wait_seconds: float, say: Callable[[str], None]) -> tuple[bool, str]:
    """Ask for compaction, and do it here where no ingest runs. Returns: whether all is gone, and what to tell the user."""
    places = open_log(settings.data_dir).deletions.places
    if not len(places):
        return True, "nothing was deleted"
    wish = int(places.max())
    ask_to_compact(settings.data_dir, wish)
    deadline = time.monotonic() + wait_seconds
    while asked_to_compact(settings.data_dir) is not None:
        _try_here(settings)
        waiting = _waiting_for(settings.data_dir, wish)
        if time.monotonic() >= deadline and asked_to_compact(settings.data_dir) is not None:
            return False, f"not all is gone yet: {waiting}; the wish stands, and ingest goes on with it"
        say(f"compacting, {waiting}")
        time.sleep(POLL_SECONDS)
    return True, "compacted: what was deleted is gone from the log and from all that was learned"


def _try_here(settings: Settings) -> None:
    """A pass by this process, unless an ingest has the directory, which then does it."""
    tail = JournalTail(settings.data_dir)
    tail.refresh()
    assert tail.state is not None
    try:
        writer = LogWriter(settings.data_dir, tail.state.schema, settings.ingest.segment_edges)
    except LockedError:
        return
    try:
        Keeper(writer, settings.retention.model_copy(update={"max_age_seconds": None, "max_bytes": None}),
               make_dead_letters(settings).purge).compact()
    finally:
        writer.close()


def _waiting_for(data_dir: Path, wish: int) -> str:
    behind = [f"{role} (at edge {min(h.edge, h.clean_edge)} of {wish})" for role, h in read_holds(data_dir).items()
              if min(h.edge, h.clean_edge) < wish]
    return f"waiting for {', '.join(behind)}" if behind else "rewriting segments"
