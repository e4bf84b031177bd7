"""The roles that write or archive the log, each as one process: ingest, follow, archive."""

import os
import threading
from functools import partial
from typing import TYPE_CHECKING

import structlog

from streamd.clock import Clock, SystemClock
from streamd.daemon.role_lock import wait_for_lock
from streamd.errors import SettingsError
from streamd.events import Progress
from streamd.exchange.warm_start.import_mark import unfinished_import
from streamd.processes import collect_garbage_rarely
from streamd.roles import ARCHIVE, FOLLOW, make_folder, take_over
from streamd.settings.loading import Settings, schema_of
from streamd.telemetry import registries, replica_metrics
from streamd.telemetry.api_keys import ApiKeys
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from streamd.eventlog.writer import LogWriter
    from streamd.ingest.loop import IngestLoop
    from streamd.replica.follow_loop import FollowLoop
    from streamd.replica.leader.publisher import ChangelogPublisher
    from streamd.replica.leader.succession import Succession

logger = structlog.get_logger()


def run_ingest(settings: Settings, stop: threading.Event) -> None:
    """Run ingest until `stop`.

    1. Wait for the lock of the log, since the log has one writer: the process before may still be
       ending. A standby first follows the leader until it leads itself.
    2. Check the log and build the loop.
    3. Send the first heartbeat, then read events into the log.

    Raises: SettingsError on a replica, or if an import into the log is unfinished.
    """
    if settings.log.member == "replica":
        raise SettingsError(
            "On a replica the role follow writes the log.",
            "run --role follow, or set log.member: leader on the one machine that leads.",
        )

    beat = Heartbeat(settings.data_dir, "ingest")
    is_standby = settings.log.member == "standby"

    # 1. Wait for the lock. A standby needs its metrics and watchdog already while it follows.
    if is_standby:
        _open_ingest_port(settings, beat, (registries.FOLLOW,))
        beat.touch("starting")
        beat.end_when_stalled()
    writer = wait_for_lock(partial(_open_log, settings, beat, stop), beat, stop)
    if writer is None:
        return

    try:
        # 2. Build the loop.
        check_import(writer.progress)
        take_over(settings.data_dir, "ingest")
        loop = make_loop(settings, writer, SystemClock(), beat)

        # 3. Run it.
        if not is_standby:
            _open_ingest_port(settings, beat)
            beat.touch("starting")
            beat.end_when_stalled()
        collect_garbage_rarely()
        loop.run(stop)
    finally:
        writer.close()


def _open_log(settings: Settings, beat: Heartbeat, stop: threading.Event) -> "LogWriter | None":
    """Open the log for writing, on a member of a replicated log once it leads. Returns: None if
    `stop` was set before. Raises: LockedError while another process has the log."""
    from streamd.eventlog.writer import LogWriter

    schema = schema_of(settings)
    size = settings.ingest.segment_edges
    if not settings.log.name:
        return LogWriter(settings.data_dir, schema, size)
    from streamd.replica.leader.connect import connect_leader

    # A standby follows until it leads; a fixed leader only connects to the changelog.
    is_standby = settings.log.member == "standby"
    find = _stand_by if is_standby else connect_leader
    publisher = find(settings, beat, stop)
    if publisher is None:
        return None
    try:
        log = LogWriter(settings.data_dir, schema, size, publisher=publisher)
    except BaseException:
        publisher.close()
        raise
    if is_standby:
        from streamd.replica.leader.leading import note_led

        note_led(settings.data_dir, publisher.term)

    # Only now other roles may see this machine as the leader.
    beat.note(term=publisher.term, leading=True)
    replica_metrics.leads.set(1)
    replica_metrics.leader_term.set(publisher.term)
    return log


def check_import(progress: Progress) -> None:
    """Refuse a log with an unfinished import: new events would follow a part of the history only.
    Raises: SettingsError."""
    unfinished = unfinished_import(progress)
    if unfinished:
        raise SettingsError(
            f"The import of {unfinished} into this log is unfinished.",
            "repeat `streamd import` with its options, or use a new data_dir.",
        )


def make_loop(
    settings: Settings, writer: "LogWriter", clock: Clock, beat: Heartbeat
) -> "IngestLoop":
    """Make the loop that reads events into a log, with its dead letters and housekeeping."""
    from streamd.eventlog.upkeep.housekeeper import Housekeeper
    from streamd.ingest.dead_letters.sinks import make_dead_letters
    from streamd.ingest.loop import IngestLoop

    letters = make_dead_letters(settings)
    lease = settings.holds.lease_seconds
    keeper = Housekeeper(writer, settings.retention, letters.purge, lease, beat.note_failure)
    doing = "leading" if settings.log.name else "running"
    return IngestLoop(settings, writer, letters, clock, beat, keeper.step, doing)


def _open_ingest_port(
    settings: Settings, beat: Heartbeat, also: "tuple[CollectorRegistry, ...]" = ()
) -> None:
    open_port(
        settings.telemetry.ingest_port,
        settings.server.host,
        beat,
        ApiKeys(settings.server).allows,
        also=also,
    )


def _stand_by(
    settings: Settings, beat: Heartbeat, stop: threading.Event
) -> "ChangelogPublisher | None":
    """Follow the leader until this member becomes the leader. Returns: the publisher of its commits
    to the changelog, None if `stop` was set before."""
    from streamd.replica.leader.election import run_election
    from streamd.replica.leader.succession import StandbySuccession

    succession = StandbySuccession(
        settings.data_dir,
        settings.log.store,
        settings.leader.timeout_seconds,
        SystemClock().monotonic,
        lambda after: run_election(settings, beat, stop, after),
        lambda: _check_could_lead(settings),
    )
    return _follow_loop(settings, beat, succession).run(stop)


def _follow_loop(
    settings: Settings, beat: Heartbeat, succession: "Succession | None" = None
) -> "FollowLoop":
    from streamd.replica.follow_loop import FollowLoop
    from streamd.replica.parts import follow_models

    # Versions follow the models topic, in threads that the loop ends.
    parts = follow_models(settings, beat)
    log, kafka = settings.log, settings.kafka
    return FollowLoop(settings.data_dir, log, kafka, SystemClock(), beat, parts, succession)


def _check_could_lead(settings: Settings) -> None:
    """Check whether this machine could lead: its log, disk and settings, and Kafka's offsets.
    Raises: StreamdError; KafkaError while the broker does not answer."""
    from streamd.decode.decoder import make_decoder
    from streamd.eventlog.writable import check_writable
    from streamd.ingest.kafka.consumer import KafkaSource

    schema = schema_of(settings)
    state = check_writable(settings.data_dir, schema, settings.ingest.segment_edges)
    make_decoder(settings, schema)
    source = KafkaSource(settings.kafka, settings.ingest)
    try:
        # Offsets that Kafka lost matter only if the settings do not accept data loss.
        if not source.discover() and settings.ingest.on_data_loss == "fail":
            source.begin(state.progress)
    finally:
        source.close()


def run_archive(settings: Settings, stop: threading.Event) -> None:
    """Upload the log to the store, for followers on other machines, until `stop`. Raises:
    SettingsError, StoreError."""
    from streamd.eventlog.recovery import lock_directory
    from streamd.replica.leader.leadership_check import LeadershipCheck, changelog_reader
    from streamd.store.archive import RUNNING, open_archive

    # One archive per data directory.
    beat = Heartbeat(settings.data_dir, ARCHIVE)
    folder = make_folder(settings.data_dir, ARCHIVE)
    lock = wait_for_lock(lambda: lock_directory(folder / RUNNING), beat, stop)
    if lock is None:
        return
    try:
        lead: LeadershipCheck | None = None
        if settings.log.member == "standby":
            connect = partial(changelog_reader, settings.kafka, settings.log.name)
            lead = LeadershipCheck(settings.data_dir, connect)
        archive = open_archive(settings, beat, stop, lead)
        open_port(
            settings.telemetry.archive_port,
            settings.server.host,
            beat,
            ApiKeys(settings.server).allows,
            archive.refresh_metrics,
        )
        beat.touch("starting")
        beat.end_when_stalled()
        archive.run()
    finally:
        os.close(lock)


def run_follow(settings: Settings, stop: threading.Event) -> None:
    """Follow the log of a leader on another machine until `stop`. Raises: SettingsError."""
    if not settings.log.name or settings.log.member != "replica":
        raise SettingsError(
            "This machine follows no log.", "set log.name to the leader's, and log.member: replica."
        )
    beat = Heartbeat(settings.data_dir, FOLLOW)
    open_port(
        settings.telemetry.ingest_port, settings.server.host, beat, ApiKeys(settings.server).allows
    )
    collect_garbage_rarely()
    beat.touch("starting")
    beat.end_when_stalled()
    _follow_loop(settings, beat).run(stop)
