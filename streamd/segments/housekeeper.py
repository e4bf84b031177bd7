"""Housekeeping of the log between commits: retention drops old segments, pruning the node features
that lie before them, and compaction overwrites what deletes hide."""

import math
import time
from collections.abc import Callable, Collection, Iterator

import structlog

from streamd.errors import CorruptionError
from streamd.events import Key
from streamd.roles import COMPACT
from streamd.segments.compact import Compaction, compaction, deleted_keys
from streamd.segments.holds import (
    Hold,
    asked_to_compact,
    compact_done,
    end_lease,
    read_holds,
)
from streamd.segments.journal import SegmentState, journal_files
from streamd.segments.log import LogWriter
from streamd.segments.prune import Pruner
from streamd.segments.reader import LogReader
from streamd.segments.tguf import open_tguf
from streamd.settings import RetentionSettings
from streamd.storage import stored_bytes
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
STEP_SECONDS = 0.05
"""Time after which a step of compaction begins no further segment, and one of pruning no further
slice. A compaction's first step also reads the log's keys and deletes, and rewrites keys, however
long that takes."""


class Housekeeper:
    """Drops segments and compacts the log, a little at a time. Owner: the process that writes the
    log, between its commits."""

    def __init__(
        self,
        writer: LogWriter,
        retention: RetentionSettings,
        purge_letters: Callable[[Collection[Key]], None],
        lease_seconds: float = math.inf,
    ) -> None:
        """purge_letters: removes the dead letters that mention any of the given keys.
        lease_seconds: how long the hold of a server that does not run counts."""
        self._writer = writer
        self._retention = retention
        self._purge_letters = purge_letters
        self._lease_seconds = lease_seconds
        self._steps: Iterator[Compaction] | None = None
        self._pass: tuple[int, int] | None = None
        self._progress = Compaction()
        self._beat = Heartbeat(writer.data_dir, COMPACT)
        self._counted = 0
        self._blocked = 0
        self._blocked_until = 0
        """End of the newest segment that retention would drop and a hold keeps, 0 for none."""
        self._pruner = Pruner(writer)

    def step(self) -> None:
        """Do a little work, so that events hardly wait; call it about once a second. Raises:
        DiskError."""
        try:
            holds = read_holds(self._writer.data_dir)
        except CorruptionError as error:
            logger.error("housekeeping_stopped", error=str(error))
            return
        request = asked_to_compact(self._writer.data_dir)
        self._end_leases(holds, request or 0)
        held = min((h.edge for h in holds.values()), default=self._writer.num_edges)
        if request is not None and not self._pruner.is_busy:
            purged = min((h.purged_before_event for h in holds.values()), default=request)
            self._compact(request, held, purged)
        # A compaction and a pruning under way count on the log's segments being there.
        if self._steps is None and not self._pruner.is_busy:
            self._retain(held)
        if self._steps is None:
            self._pruner.step(STEP_SECONDS)

    def _end_leases(self, holds: dict[str, Hold], request: int) -> None:
        """End the holds that stand in the way and whose lease has run out, and take them out of
        `holds`.

        request: event id before which deletes are to become physical, 0 for none.
        """
        for name, hold in list(holds.items()):
            in_the_way = (
                hold.edge < max(self._blocked_until, request) or hold.purged_before_event < request
            )
            if not in_the_way:
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
                    meaning="the log no longer waits for it; it starts anew when it returns",
                )

    def _compact(self, request: int, held: int, purged: int) -> None:
        """Work on a request to compact, for about STEP_SECONDS.

        Args: request: event id before which deletes are to become physical; held, purged: the least
        `edge` and `purged_before_event` of all holds.
        """
        # Another pass can do more only where the request or the oldest hold has moved.
        if self._steps is None and self._pass != (request, held):
            reader = LogReader.open(self._writer.data_dir)
            assert reader is not None, "its writer has made the log"
            self._purge_letters(set(deleted_keys(self._writer, reader).values()))
            self._steps = compaction(self._writer, reader, held)
            self._pass = (request, held)
            self._counted = 0

        # Rewrite segments until the time is up or the pass is through.
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
        self._beat.touch(
            "compacting", wish=request, passed=self._progress.passed, total=self._progress.total
        )

        # The request is fulfilled once the roles' own files are rid of the deletes too.
        if self._steps is None and not self._progress.waiting and purged >= request:
            compact_done(self._writer.data_dir, self._writer.state.seq)
            logger.info("compaction_done", deletes_before_edge=request)

    def compact(self, progress: Callable[[int, int], None] = lambda done, of: None) -> Compaction:
        """Work on the request to compact until a pass is through.

        progress: called with (segments passed, segments in all).
        Returns: what the pass did.
        """
        # A pass waits for the end of a pruning, and may leave one to be done.
        while self._pruner.is_busy:
            self.step()
        self.step()
        while self._steps is not None or self._pruner.is_busy:
            progress(self._progress.passed, self._progress.total)
            self.step()
        progress(self._progress.passed, self._progress.total)
        return self._progress

    def _retain(self, held: int) -> None:
        """Drop the oldest segments that retention no longer keeps, unless a role holds them.

        held: the oldest event id that a role still needs.
        """
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

        # Drop the free ones; say once that others are held.
        if drop_until:
            dropped = self._writer.drop_before(drop_until)
            logger.info(
                "segments_dropped", segments=len(dropped), first_edge=self._writer.state.first_edge
            )
        if blocked and not self._blocked:
            logger.warning(
                "retention_blocked",
                num_bytes=blocked,
                held_at_edge=held,
                action="start the role whose hold in roles/ names that edge, or remove its folder",
            )
        self._blocked = blocked
        metrics.log_bytes.set(total + blocked)
        metrics.retention_blocked.set(blocked)
        metrics.log_first_edge.set(self._writer.state.first_edge)
        for path, file in self._writer.state.files.items():
            metrics.log_file_bytes.labels(file=path).set(file.num_bytes)
        metrics.journal_files.set(len(journal_files(self._writer.data_dir / "journal")))

    def _is_due(self, segment: SegmentState, total_bytes: int) -> bool:
        r = self._retention
        if r.max_bytes is not None and total_bytes > r.max_bytes:
            return True
        if r.max_age_seconds is None or not segment.num_edges:
            return False
        newest = int(
            open_tguf(self._writer.data_dir / segment.path, check_rows=False).column(
                "time", segment.num_edges
            )[-1]
        )
        return newest < self._writer.watermark - r.max_age_seconds * 1_000_000
