"""Requests compaction for a command, runs it here if no ingest runs, and waits until it is done."""

import time
from pathlib import Path

from streamd.cli.maintenance import open_log
from streamd.clock import SystemClock
from streamd.errors import LockedError
from streamd.eventlog.upkeep.holds import Hold, ask_to_compact, asked_to_compact, read_holds
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.ingest.dead_letters.sinks import make_dead_letters
from streamd.roles import COMPACT
from streamd.settings.loading import Settings
from streamd.store.compaction_waits import (
    REWRITING,
    has_store_to_clean,
    late_roles,
    store_wait_reason,
    wait_reason,
)
from streamd.telemetry.heartbeat import read_beat
from streamd.telemetry.progress import ProgressLine

POLL_SECONDS = 0.2
"""Pause between two polls of the directory: short for a person, long for a disk."""


def compact_log(settings: Settings, deadline: float, line: ProgressLine) -> tuple[bool, str]:
    """Request compaction, and wait until it is done.

    1. Write the request durably; with `log.name`, to the trainer of all machines. Without it,
       compaction would not continue after this process ends.
    2. Compact, in this process if no ingest runs, until all roles have removed the deleted data.
    3. Wait until the archive has removed it from store and changelog. The archive can begin only
       after step 2.

    deadline: monotonic seconds. Returns: whether all deleted data is gone, and a text for the user.
    """
    # 1. Request. It is a file or a record, so it outlives this process.
    log = open_log(settings.data_dir)
    # The store may still wait for an earlier compaction.
    if not log.deletions.count:
        return _wait_for_store(settings, deadline, line, "nothing was deleted")
    request = log.deletions.newest_place
    if settings.log.name:
        from streamd.replica.models.topic import KafkaModelsTopic
        from streamd.replica.move_requests import compact_everywhere

        topic = KafkaModelsTopic(settings.kafka, settings.log.name)
        try:
            wait_seconds = max(0.0, deadline - time.monotonic())
            done, text = compact_everywhere(settings, request, wait_seconds, line.begin, topic)
        finally:
            topic.close()
        return _wait_for_store(settings, deadline, line, text) if done else (False, text)
    ask_to_compact(settings.data_dir, request)

    # 2. Compact. A further pass can remove more only after a role has advanced its hold.
    tried: dict[str, Hold] | None = None
    explained: set[str] = set()
    while asked_to_compact(settings.data_dir) is not None:
        holds = read_holds(settings.data_dir)
        if holds != tried and _try_here(settings, log.state.schema, line):
            tried = holds
        # Explain the wait again if a further role is late.
        late = late_roles(settings.data_dir, request)
        if late.keys() - explained:
            explained = set(late)
            line.note(reason_to_wait(settings, request))
        if time.monotonic() >= deadline and asked_to_compact(settings.data_dir) is not None:
            line.leave()
            return False, (
                f"not all deleted data is gone yet: {reason_to_wait(settings, request)}; the "
                "request stays open, and ingest continues with it"
            )
        _show_progress(settings.data_dir, request, late, line)
        time.sleep(POLL_SECONDS)
    # 3. Wait for the archive.
    gone = "compacted: deleted data is gone from the log and from the files of all roles"
    return _wait_for_store(settings, deadline, line, gone)


def reason_to_wait(settings: Settings, request: int) -> str:
    """The reason why a compaction waits now. request: event id before which deletes are to become
    physical."""
    width_us = int(settings.windows.width_seconds * 1_000_000)
    return wait_reason(settings.data_dir, request, width_us, SystemClock().now_us())


def _wait_for_store(
    settings: Settings, deadline: float, line: ProgressLine, done: str
) -> tuple[bool, str]:
    """Wait until the archive has removed compacted data from store and changelog, if other machines
    follow this log.

    deadline: monotonic seconds. Returns: whether it is gone, and a text for the user: `done` if
    there is nothing to wait for.
    """
    if not has_store_to_clean(settings.data_dir, settings.log):
        return True, done
    while reason := store_wait_reason(settings.data_dir):
        if time.monotonic() >= deadline:
            line.leave()
            return False, (
                f"{done}; store and changelog may still hold it: waiting for {reason}; the archive "
                "continues with it"
            )
        line.wait("waiting for store and changelog")
        time.sleep(POLL_SECONDS)
    return True, f"{done}, and from store and changelog"


def _try_here(settings: Settings, schema: Schema, line: ProgressLine) -> bool:
    """Run one pass of compaction in this process. Returns: False if an ingest has locked the
    directory; that ingest compacts then."""
    try:
        writer = LogWriter(
            settings.data_dir, schema, settings.ingest.segment_edges, lock_seconds=0.0
        )
    except LockedError:
        return False
    # Compaction only: the daemon applies retention, and may run under other settings.
    try:
        Housekeeper(
            writer,
            settings.retention.model_copy(update={"max_age_seconds": None, "max_bytes": None}),
            make_dead_letters(settings).purge,
            settings.holds.lease_seconds,
        ).compact(lambda done, total: line.of(REWRITING, done, total, "segments"))
    finally:
        writer.close()
    return True


def _show_progress(data_dir: Path, request: int, late: dict[str, int], line: ProgressLine) -> None:
    """Show the progress of compaction, by the late roles and by the heartbeat of the compacting
    process."""
    beat = read_beat(data_dir, COMPACT)
    if late:
        # No percentage: a role may wait for windows, which no progress brings nearer.
        line.wait(f"waiting for {', '.join(late)}")
    elif beat is not None and beat.detail["wish"] == request:
        line.of(REWRITING, beat.detail["passed"], beat.detail["total"], "segments")
