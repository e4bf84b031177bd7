"""Housekeeping of the log between commits: segments too old or too many are dropped, deletes are
made physical."""

import time
from collections.abc import Callable, Collection, Iterator

import structlog

from streamd.errors import CorruptionError
from streamd.events import Key
from streamd.roles import COMPACT
from streamd.segments.compact import Compaction, compaction, deleted_keys
from streamd.segments.holds import asked_to_compact, compact_done, read_holds
from streamd.segments.journal import SegmentState
from streamd.segments.log import LogWriter
from streamd.segments.reader import LogReader
from streamd.segments.tguf import open_tguf
from streamd.settings import RetentionSettings
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
STEP_SECONDS = 0.05
BLOCK_BYTES = 512
"""Unit of `st_blocks`."""


class Housekeeper:
    """Owner: the process that writes the log, between its commits."""

    def __init__(
        self,
        writer: LogWriter,
        retention: RetentionSettings,
        purge_letters: Callable[[Collection[Key]], None],
    ) -> None:
        """purge_letters: takes the dead letters away that speak of some keys."""
        self._writer = writer
        self._retention = retention
        self._purge_letters = purge_letters
        self._steps: Iterator[Compaction] | None = None
        self._pass: tuple[int, int] | None = None
        self._progress = Compaction()
        self._beat = Heartbeat(writer.data_dir, COMPACT)
        self._counted = 0
        self._blocked = 0

    def step(self) -> None:
        """A little work, so that events hardly wait; call it about once a second. Raises:
        DiskError."""
        try:
            holds = read_holds(self._writer.data_dir)
        except CorruptionError as error:
            logger.error("housekeeping_stopped", error=str(error))
            return
        held = min((h.edge for h in holds.values()), default=self._writer.num_edges)
        wish = asked_to_compact(self._writer.data_dir)
        if wish is not None:
            clean = min((h.purged_before_event for h in holds.values()), default=wish)
            self._compact(wish, held, clean)
        if self._steps is None:
            self._retain(held)

    def _compact(self, wish: int, held: int, clean: int) -> None:
        """Work towards a wish. held, clean: least edge and purged_before_event of all holds."""
        if self._steps is None and self._pass != (wish, held):
            reader = LogReader.open(self._writer.data_dir)
            assert reader is not None, "its writer has made the log"
            self._purge_letters(set(deleted_keys(self._writer, reader).values()))
            self._steps = compaction(self._writer, reader, held)
            self._pass = (wish, held)
            self._counted = 0
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
            "compacting", wish=wish, passed=self._progress.passed, total=self._progress.total
        )
        if self._steps is None and not self._progress.waiting and clean >= wish:
            compact_done(self._writer.data_dir)
            logger.info("compaction_done", deletes_before_edge=wish)

    def compact(self, progress: Callable[[int, int], None] = lambda done, of: None) -> Compaction:
        """Work towards the wish until a pass is through. progress: told (segments passed, in all).

        Returns: what the pass did.
        """
        self.step()
        while self._steps is not None:
            progress(self._progress.passed, self._progress.total)
            self.step()
        progress(self._progress.passed, self._progress.total)
        return self._progress

    def _retain(self, held: int) -> None:
        sizes = {
            s.first_edge: (self._writer.data_dir / s.path).stat().st_blocks * BLOCK_BYTES
            for s in self._writer.state.segments
        }
        total = sum(sizes.values())
        blocked = 0
        drop_until = 0
        for segment in self._writer.state.segments[:-1]:
            if not self._is_due(segment, total):
                break
            total -= sizes[segment.first_edge]
            end = segment.first_edge + segment.num_edges
            if blocked or end > held:
                blocked += sizes[segment.first_edge]
            else:
                drop_until = end
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
