"""The ledger writes the trainer's durable state, except for the replay store's files, in the order
that a restart relies on."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from typing import Literal, TypeVar

import structlog
from msgspec.structs import astuple as astuple_of

from streamd.errors import CorruptionError, VersionError
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import Hold, write_hold
from streamd.graph.live import LiveGraph
from streamd.models import Memory
from streamd.models.memory.files import MemoryFiles
from streamd.ranks import ALONE, Ranks
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, PublishResult
from streamd.roles import FACTS
from streamd.settings.loading import BootstrapSettings
from streamd.settings.paths import Paths
from streamd.storage import ImmutableFile
from streamd.telemetry import metrics
from streamd.training import initial_training
from streamd.training import window_attempts as attempts
from streamd.training.checkpoint import (
    Cursor,
    TrainerPosition,
    build_facts,
    load_checkpoint,
    read_cursor,
    save_checkpoint,
)
from streamd.training.learner import Learner
from streamd.training.learning_settings import LearningSettings
from streamd.training.retention_hold import RetentionHold
from streamd.training.versions.contest import Contest, Proof
from streamd.training.versions.nightly import Nightly
from streamd.windows import Window, is_mostly_late, num_late
from streamd.windows.drift import Drift
from streamd.windows.history import (
    HistoryReader,
    WindowRecord,
    append_record,
    history_until,
    truncate_records,
)
from streamd.windows.over_rule import BelowRule

logger = structlog.get_logger()
T = TypeVar("T")
FOLDER = "train"
"""The trainer's folder in the data directory."""
MEMORY = "memory"
"""Folder in the trainer's with the files that versions and checkpoints link to."""
KEEP_SECONDS = 1.0
"""Least time between two holds while compaction waits: each reads every version's manifest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What the trainer does next, decided in full before any of it is done.

    do: "learn" scores each window and then learns them as one; "pass over" only advances graph,
    facts and memory over windows that failed too often, "leave out" over one of mostly late events;
    "bootstrap" learns a range without scoring it.
    windows: closed windows, each beginning where the one before ends.
    seq: sequence number of the log's commit up to which deletes and features count.
    version: name of the version whose weights it goes on from, "" before the first. It differs from
    what the step before left where someone moved the champion by hand.
    epochs: passes over the windows.
    replay: first event ids of the past chunks that are learned with them.
    why: why the windows are passed over or left out, for their records.
    """

    do: Literal["learn", "pass over", "leave out", "bootstrap"]
    windows: tuple[Window, ...]
    seq: int
    version: str
    epochs: int
    replay: tuple[int, ...]
    why: str = ""

    @property
    def range(self) -> Window:
        """All windows of the step as one."""
        first, last = self.windows[0], self.windows[-1]
        return Window(first.start_us, last.end_us, first.first_edge, last.end_edge)


class Ledger:
    """Writes attempts, versions, records of windows, checkpoints and holds.

    Nothing else in `training` makes any of them durable. The replay store writes its own files; the
    ledger says when files of chunks no longer held may go. Owner: the trainer's thread.

    Among several ranks the first alone writes, but for the rows of memory, and what it reads that
    may change meanwhile it tells the others: all call the same methods at the same time.
    """

    def __init__(
        self,
        paths: Paths,
        settings: LearningSettings,
        bootstrap: BootstrapSettings,
        reader: LogReader,
        versions: Registry,
        live: LiveGraph,
        ranks: Ranks = ALONE,
    ) -> None:
        self._paths = paths
        self._settings = settings
        self._bootstrap = bootstrap
        self._log = reader
        self._versions = versions
        self._live = live
        self._ranks = ranks
        self._folder = paths.learned / FOLDER
        self._checkpoints = self._folder / "checkpoints"
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._hold = RetentionHold(paths, versions, live) if ranks.is_first else None
        self._held_here = Hold(-1, -1)
        # Two homes, so that a checkpoint and the versions have no file in common: where one is
        # damaged, learning goes on from the other.
        self.checkpoint_memory = MemoryFiles(self._folder / MEMORY / "checkpoints", ranks=ranks)
        """The files of memories in checkpoints and of the nightly baseline, which link to them."""
        self._version_memory = MemoryFiles(self._folder / MEMORY / "versions", ranks=ranks)
        self._version_memory.sweep()
        self._history_bytes = 0
        self._drift = Drift()
        self._below_rule = BelowRule()
        if ranks.is_first:
            versions.sweep()

    # Before the work of a step

    def begun(self) -> attempts.Attempt:
        """Read the attempt that was begun last, perhaps before a restart."""
        last = attempts.last_attempt(self._folder)
        return attempts.Attempt(*self._ranks.tell(astuple(last)))

    def begin(self, windows: Sequence[Window], version: str, learner: Learner) -> Step:
        """Write down that windows are about to be learned, so that a restart takes the same.

        Returns: the step in full; "leave out" for a single window of mostly late events, "pass
        over" if the windows failed MAX_FAILURES times.
        """
        step = self._step("learn", windows, version, learner)
        failures = 0
        if self._ranks.is_first:
            failures = attempts.begin_attempt(self._folder, step.range)
        failures = self._ranks.tell(failures)
        if is_mostly_late(self._log, windows[0]):
            late = f"{num_late(self._log, windows[0]):,} of its {windows[0].num_edges:,} events"
            return replace(
                step, do="leave out", why=f"left out: {late} came late, from a time before it"
            )
        if failures < attempts.MAX_FAILURES:
            return step
        why = f"passed over: scoring or learning it failed {attempts.MAX_FAILURES} times"
        return replace(step, do="pass over", why=why)

    def begin_bootstrap(self, short: bool, version: str, learner: Learner) -> Step | None:
        """Write down the range that is learned at once, before any window.

        short: as in `planned_range`. Returns: None where the log is learned window by window.
        """
        planned = None
        if self._ranks.is_first:
            planned = initial_training.planned_range(
                self._bootstrap, self._settings.windows, self._log, self._folder, short
            )
        told = self._ranks.tell(planned and astuple(planned))
        if told is None:
            return None
        window = initial_training.Range(*told).window()
        return self._step("bootstrap", [window], version, learner, self._bootstrap.epochs)

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count an error of the work inside against the step that was begun."""
        return attempts.counting_failures(self._folder)

    def _step(
        self,
        do: Literal["learn", "bootstrap"],
        windows: Sequence[Window],
        version: str,
        learner: Learner,
        epochs: int | None = None,
    ) -> Step:
        num_events = sum(w.end_edge - w.first_edge for w in windows)
        return Step(
            do=do,
            windows=tuple(windows),
            seq=self._log.state.seq,
            version=version,
            epochs=epochs or self._settings.epochs_of(num_events),
            replay=learner.draw(windows[0].first_edge, num_events),
        )

    # Versions and who serves

    def publish(self, candidate: Candidate, incumbent: str | None) -> PublishResult:
        """Publish a version. incumbent: name of the champion of other settings, which goes on
        serving; None where there is none."""
        if self._ranks.size == 1:
            return self._versions.publish(candidate, incumbent)
        # Every rank writes its rows, of a version that the gate lets through; then the first names
        # them all in the manifest.
        if self._ranks.tell(candidate.judged().promote):
            files = candidate.memory()
            candidate = replace(candidate, memory=lambda: files)
        result = self._versions.publish(candidate, incumbent) if self._ranks.is_first else None
        return PublishResult(*self._ranks.tell(result and astuple(result)))

    def store_memory(self, memory: Memory) -> tuple[ImmutableFile, ...]:
        """Write what of a version's memory changed since the last call, or all of it the first time
        after a start. Returns: all files of it."""
        return self._version_memory.store(memory)

    def prove(self, proof: Proof | None) -> None:
        """Write to the registry's journal which version is the shadow; None changes nothing."""
        if proof is not None and self._ranks.is_first:
            self._versions.prove(proof.version, proof.why)

    def rollback(self, why: str) -> None:
        """Make the shadow the champion again. why: for the journal."""
        if self._ranks.is_first:
            self._versions.rollback("trainer", why)

    # What was done, and where to go on

    def record(self, record: WindowRecord) -> WindowRecord:
        """Append a window to the history, with its surprise. A restart keeps it only if a
        checkpoint follows it. Returns: what was appended."""
        if not self._ranks.is_first:
            return record
        record = replace(record, surprise=self._drift.surprise(record))
        self._history_bytes = append_record(self._paths.learned, record)
        self._below_rule.add(record)
        metrics.below_rule.set(self._below_rule.holds)
        return record

    def checkpoint(
        self, position: TrainerPosition, learner: Learner, contest: Contest, nightly: Nightly
    ) -> None:
        """Write a checkpoint, then drop what only older checkpoints named. position: at which a
        restart continues."""
        self.save(position, learner, contest, nightly)
        learner.replay.sweep()
        nightly.sweep()
        self.checkpoint_memory.sweep()
        self._version_memory.sweep()
        self.keep(position)

    def save(
        self, position: TrainerPosition, learner: Learner, contest: Contest, nightly: Nightly
    ) -> None:
        """Write a checkpoint and drop nothing but older checkpoints. Arguments: as `checkpoint`."""
        memory = learner.memory
        save_checkpoint(
            self._checkpoints,
            learner,
            self.checkpoint_memory.store(memory),
            Cursor(
                edge=position.event,
                window_edge=position.window_event,
                memory_edge=memory.edge,
                memory_us=memory.now_us,
                num_learned=learner.num_learned,
                history_bytes=self._history_bytes,
                version=contest.version,
                champion=contest.version,
                shadow=contest.shadow.name if contest.shadow else "",
                compared=list(astuple(contest.compared)),
                settings=self._settings.fixed,
                build=build_facts(learner.model.device.type),
                replay=learner.replay.index(),
                tail=[c.first_edge for c in learner.tail],
                schema=learner.model.schema.fields(),
                nightly=nightly.name,
            ),
        )

    def keep(self, position: TrainerPosition) -> None:
        """Store facts if due, drop the versions that a compaction request makes stale, and write
        the hold, which says what of the log a restart needs."""
        if self._hold is not None:
            self._hold.keep(position)
        self._hold_log_here()

    def _hold_log_here(self) -> None:
        """Write the first rank's hold for this machine's log too, where it is another one."""
        told = self._ranks.tell(self._hold and astuple_of(self._hold.written))
        if self._paths.log == self._paths.learned or not self._ranks.is_first_here:
            return
        hold = Hold(*told)
        if hold != self._held_here:
            write_hold(self._paths.log, self._paths.role, hold)
            self._held_here = hold

    def compaction_request(self) -> int | None:
        """Id of the event before which compaction was asked for, None where it was not."""
        asked: int | None = self._ranks.tell(self._hold and self._hold.compaction_request())
        return asked

    def should_keep(self) -> bool:
        """Whether compaction waits and `keep` was last called KEEP_SECONDS ago or earlier."""
        is_due = self._hold is not None and (
            time.monotonic() - self._hold.kept_at >= KEEP_SECONDS
            and self._hold.compaction_request() is not None
        )
        return bool(self._ranks.tell(is_due))

    def oldest_window(self) -> int:
        """First event id of the oldest window that the champion or the shadow was learned from."""
        oldest: int = self._ranks.tell(min(first for first, _ in self._versions.named_windows()))
        return oldest

    # After a stop

    def read(self) -> Cursor | None:
        """Read the newest checkpoint's cursor; None where there is none.

        Raises: as `read_cursor`.
        """
        return self._on_all_ranks(lambda: read_cursor(self._checkpoints))

    def _on_all_ranks(self, read: Callable[[], T]) -> T:
        """Read a checkpoint on every rank. Raises: CorruptionError on all of them where it is
        damaged for one: they go on from the same place."""
        damage = None
        try:
            found = read()
        except CorruptionError as error:
            damage = error
        if not self._ranks.all(damage is None):
            raise damage or CorruptionError(
                "Another rank cannot read the trainer's checkpoint.", "see that rank's log."
            )
        return found

    def load(self, cursor: Cursor, learner: Learner, state: LogState) -> None:
        """Load the newest checkpoint into the learner. cursor: as `read` gave it.

        Raises: as `load_checkpoint`.
        """
        cursor = self._with_schema(cursor)
        loaded = self._on_all_ranks(
            lambda: load_checkpoint(self._checkpoints, cursor, learner, state)
        )
        loaded.restore(learner)
        self.checkpoint_memory.resume(loaded.files, learner.memory)
        self._history_bytes = cursor.history_bytes
        build = build_facts(learner.model.device.type)
        if cursor.build != build:
            logger.warning(
                "build_differs",
                checkpoint=cursor.build,
                now=build,
                meaning="resumed weights may differ in the last bits",
            )

    def _with_schema(self, cursor: Cursor) -> Cursor:
        """A cursor with the schema that its checkpoint was written under, which older releases said
        in the manifests of versions only."""
        if cursor.schema or not cursor.champion:
            return cursor
        try:
            return replace(cursor, schema=self._versions.manifest(cursor.champion).schema)
        except (VersionError, OSError):
            return cursor

    def begin_with_new_settings(self, cursor: Cursor) -> None:
        """Drop what was begun under a checkpoint's settings that are no longer the trainer's."""
        for name in (initial_training.FILE, attempts.FILE) if self._ranks.is_first else ():
            (self._folder / name).unlink(missing_ok=True)
        self._history_bytes = cursor.history_bytes if self._bootstrap.max_events else 0

    def rewind_to(self, edge: int) -> None:
        """Let no record of a window after event `edge` count: learning goes on from there without a
        checkpoint."""
        self._history_bytes = history_until(self._paths.learned, edge)

    def resume(self, edge: int) -> None:
        """Cut the history to the length that counts, and load the facts stored at or before event
        `edge`."""
        if self._hold is None:
            self._live.restore_facts(self._paths.folder / FACTS, edge)
            return
        truncate_records(self._paths.learned, self._history_bytes)
        records = HistoryReader(self._paths.learned).refresh()
        self._drift, self._below_rule = Drift(records), BelowRule(records)
        metrics.below_rule.set(self._below_rule.holds)
        self._hold.resume(edge)
