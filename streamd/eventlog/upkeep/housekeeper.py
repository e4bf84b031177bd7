"""Housekeeping of the log between commits: retention drops old segments, pruning superseded node
features before them, and compaction overwrites rows that deletes hide."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from streamd.eventlog.deletions import deletes_until
from streamd.eventlog.journal.journal import SegmentState, journal_files
from streamd.eventlog.reader import DeletesReader
from streamd.eventlog.segment_files import SegmentFiles
from streamd.eventlog.upkeep.compact import Compaction, PurgeLetters, compaction
from streamd.eventlog.upkeep.holds import (
    Hold,
    asked_to_compact,
    compact_done,
    end_lease,
    read_holds,
)
from streamd.eventlog.upkeep.prune import Pruner
from streamd.eventlog.upkeep.retries import Retries
from streamd.eventlog.upkeep.snapshot_leases import read_leases
from streamd.eventlog.writer import LogWriter
from streamd.roles import COMPACT
from streamd.settings.loading import RetentionSettings
from streamd.storage import stored_bytes
from streamd.telemetry import metrics
from streamd.telemetry.failure_log import NoteFailure, ignore
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
STEP_SECONDS = 0.05
"""Time after which a step of compaction begins no further segment, and one of pruning no further
slice. A compaction's first step also reads all deletes of the log, which may take longer."""

HOLDS = "holds"
COMPACTION = "compaction"
RETENTION = "retention"
PRUNING = "pruning"
WORKS = (HOLDS, COMPACTION, RETENTION, PRUNING)
"""Parts of housekeeping, each of which may fail while the others continue. Compaction includes the
purge of dead letters."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The request and the limits of housekeeping.

    request: event id before which deletes are to become physical, None for no request. edge: the
    smallest event id of all holds. are_purged: whether the files of all roles have none of this
    deleted data.
    """

    request: int | None = None
    edge: int = 0
    are_purged: bool = False


class Housekeeper:
    """Drops segments and compacts the log, a little at a time. Owner: the process that writes the
    log, between its commits."""

    def __init__(
        self,
        writer: LogWriter,
        retention: RetentionSettings,
        purge_letters: PurgeLetters,
        lease_seconds: float = math.inf,
        note_failure: NoteFailure = ignore,
    ) -> None:
        """purge_letters: removes the dead letters that contain any of the given keys.
        lease_seconds: how long the hold of a stopped server counts. note_failure: called with the
        name of a part that fails and its error, "" once it succeeds."""
        self._writer = writer
        self._retention = retention
        self._purge_letters = purge_letters
        self._lease_seconds = lease_seconds
        self._steps: Iterator[Compaction] | None = None
        self._pass: tuple[int, int, int] | None = None
        """Request, oldest hold, and number of deletes of the newest pass."""
        self._progress = Compaction()
        self._beat = Heartbeat(writer.data_dir, COMPACT)
        self._counted = 0
        self._blocked = 0
        self._blocked_until = 0
        """End of the newest segment that retention would drop but a hold keeps, 0 for none."""
        self._dropping: Iterator[object] | None = None
        self._pruner = Pruner(writer)
        self._needs = Needs()
        self._retries = Retries(WORKS, lambda: writer.files.in_doubt, note_failure=note_failure)

    def step(self) -> None:
        """Do a little work, so that events wait only briefly; call it about once a second.

        Failures are logged, counted and retried later. Raises: DiskError, or another error, only if
        it leaves the log in doubt: see `LogFiles.in_doubt`.
        """
        self._step(self._retries.run)

    def _step(self, run: Callable[[str, Callable[[], bool]], bool]) -> None:
        """Do a little of each part. run: runs a part, given its name; returns whether it
        succeeded."""
        # Measure for pruning before retention moves the log's first event.
        run(PRUNING, self._look)
        # Holds limit all other parts: without them nothing may be done.
        if not run(HOLDS, self._read_needs):
            return
        request = self._needs.request
        if request is not None and not self._pruner.is_busy:
            run(COMPACTION, lambda: self._compact(request))
        # During a compaction or a pruning no segment may be dropped.
        if self._steps is None and not self._pruner.is_busy:
            run(RETENTION, self._retain)
        if self._steps is None:
            run(PRUNING, self._prune)

    def _read_needs(self) -> bool:
        """Read the holds of the roles and the request to compact. Raises: CorruptionError for an
        unreadable hold, ValueError for an unreadable request."""
        holds = read_holds(self._writer.data_dir)
        request = asked_to_compact(self._writer.data_dir)
        seq = 0 if request is None else self._deletes(request)[1]
        self._end_leases(holds, request or 0, seq)
        edge = min((h.edge for h in holds.values()), default=self._writer.num_edges)
        are_purged = all(h.has_purged(request or 0, seq) for h in holds.values())
        self._needs = Needs(request, edge, are_purged)
        return True

    def _look(self) -> bool:
        self._pruner.look()
        return False

    def _prune(self) -> bool:
        self._pruner.step(STEP_SECONDS)
        return not self._pruner.is_busy

    def _end_leases(self, holds: dict[str, Hold], request: int, seq: int) -> None:
        """Remove expired holds that block the work, also from `holds`.

        request: event id before which deletes are to become physical, 0 for none. seq: commit of
        the newest of these deletes.
        """
        for name, hold in list(holds.items()):
            # A hold blocks only retention or a request that needs it to move.
            needed = max(self._blocked_until, request)
            if hold.edge >= needed and hold.has_purged(request, seq):
                continue
            try:
                ended = end_lease(self._writer.data_dir, name, self._lease_seconds, time.time())
            except OSError as error:
                logger.error("lease_not_ended", child=name, error=str(error))
                continue
            if ended:
                del holds[name]
                metrics.leases_run_out.inc()
                logger.warning(
                    "lease_run_out",
                    child=name,
                    held_at_edge=hold.edge,
                    lease_seconds=self._lease_seconds,
                    meaning="its hold is removed; it rebuilds from the log when it returns",
                )

    def _compact(self, request: int) -> bool:
        """Work on a request to compact, for about STEP_SECONDS. Returns: whether the pass is done.

        request: event id before which deletes are to become physical.
        """
        # Another pass can do more only if the request or the oldest hold has moved, or if the
        # request covers new deletes: several may come between two events.
        held = self._needs.edge
        wanted = request, held, self._deletes(request)[0]
        if self._steps is None and self._pass != wanted:
            # Files that an earlier pass could not unlink contain deleted data.
            if self._writer.files.is_untidy:
                next(self._writer.tidying())
            # The pass itself reads keys, slice by slice, and keeps only those to remove.
            reader = DeletesReader.open(self._writer.data_dir, keep_keys=False)
            assert reader is not None, "its writer has made the log"
            self._steps = compaction(self._writer, reader, held, self._purge_letters)
            self._pass = wanted
            self._counted = 0

        # Continue until the time is up or the pass is done; a failed pass starts again.
        error = ""
        try:
            self._take_steps()
        except Exception as failure:
            self._steps = self._pass = None
            error = str(failure)
            raise
        finally:
            progress = self._progress
            self._beat.touch(
                "compacting",
                wish=request,
                passed=progress.passed,
                total=progress.total,
                error=error,
            )

        # The request is fulfilled once the roles' own files have no deleted data either.
        is_through = self._steps is None
        is_done = is_through and not self._progress.waiting
        has_all = self._pass == (request, held, self._deletes(request)[0])
        if is_done and has_all and self._needs.are_purged:
            compact_done(self._writer.data_dir, self._writer.state.seq)
            logger.info("compaction_done", deletes_before_edge=request)
        return is_through

    def _deletes(self, until_event: int) -> tuple[int, int]:
        """Number of the log's deletes at or before an event, and commit of the newest of them."""
        return deletes_until(self._writer.data_dir, self._writer.state, until_event)

    def _take_steps(self) -> None:
        """Take steps of the current pass, if there is one."""
        begun = time.monotonic()
        while self._steps is not None and time.monotonic() - begun < STEP_SECONDS:
            progress = next(self._steps, None)
            if progress is None:
                self._steps = None
                logger.info(
                    "compacted",
                    segments=self._progress.segments,
                    edges=self._progress.edges,
                    keys=self._progress.keys,
                    waiting=self._progress.waiting,
                )
            else:
                self._progress = progress
                metrics.compacted_edges.inc(progress.edges - self._counted)
                self._counted = progress.edges

    def compact(self, progress: Callable[[int, int], None] = lambda done, of: None) -> Compaction:
        """Work on the request to compact until a pass ends.

        progress: called with (segments passed, segments in all). Returns: the result of the pass.
        Raises: StreamdError, OSError if some part fails.
        """
        # A pass waits for the end of a pruning, and another pruning may follow it.
        while self._pruner.is_busy:
            self._step(at_once)
        self._step(at_once)
        while self._steps is not None or self._pruner.is_busy:
            progress(self._progress.passed, self._progress.total)
            self._step(at_once)
        progress(self._progress.passed, self._progress.total)
        return self._progress

    def _retain(self) -> bool:
        """Drop the oldest segments that retention no longer keeps, unless a role or a snapshot
        holds them."""
        # A lease that has run out keeps nothing.
        leases = read_leases(self._writer.data_dir, time.time())
        held = min([self._needs.edge, *(lease.first_event for lease in leases)])
        sizes = {
            s.first_edge: stored_bytes(self._writer.data_dir / s.path)
            for s in self._writer.state.segments
        }
        total = sum(sizes.values())

        # Find how many of the oldest segments are due, and which of them a hold keeps.
        blocked = 0
        drop_until = 0
        self._blocked_until = 0
        for segment in self._writer.state.sealed:
            if not self._is_due(segment, total):
                break
            total -= sizes[segment.first_edge]
            if blocked or segment.end > held:
                blocked += sizes[segment.first_edge]
                self._blocked_until = segment.end
            else:
                drop_until = segment.end

        # Drop those that no hold keeps; log once that others are held.
        if drop_until:
            dropping = self._writer.drop_in_steps(drop_until)
            dropped = next(dropping)
            self._dropping = dropping
            logger.info(
                "segments_dropped", segments=dropped, first_edge=self._writer.state.first_edge
            )
        elif self._dropping is None and self._writer.files.is_untidy:
            self._dropping = self._writer.tidying()
        self._drop_journals()
        if blocked and not self._blocked:
            logger.warning(
                "retention_blocked",
                num_bytes=blocked,
                held_at_edge=held,
                action="start the role with this edge in roles/*/hold, or remove its folder",
            )
        self._blocked = blocked
        metrics.log_bytes.set(total + blocked)
        metrics.retention_blocked.set(blocked)
        metrics.log_first_edge.set(self._writer.state.first_edge)
        for path, file in self._writer.state.files.items():
            metrics.log_file_bytes.labels(file=path).set(file.num_bytes)
        metrics.journal_files.set(len(journal_files(self._writer.data_dir / "journal")))
        return self._dropping is None

    def _drop_journals(self) -> None:
        """Drop journal files of dropped segments, for about STEP_SECONDS."""
        begun = time.monotonic()
        steps, self._dropping = self._dropping, None
        while steps is not None and next(steps, None) is not None:
            if time.monotonic() - begun >= STEP_SECONDS:
                self._dropping = steps
                return

    def _is_due(self, segment: SegmentState, total_bytes: int) -> bool:
        r = self._retention
        if r.max_bytes is not None and total_bytes > r.max_bytes:
            return True
        if r.max_age_seconds is None or not segment.num_edges:
            return False
        # The last time is the newest one: a segment is sorted, even with several sets.
        files = SegmentFiles(self._writer.data_dir / segment.path, segment, self._writer.schema)
        return files.newest_us(segment) < self._writer.watermark - r.max_age_seconds * 1_000_000


def at_once(_: str, work: Callable[[], bool]) -> bool:
    """Run a part for a caller that waits for it: its errors are raised."""
    work()
    return True
