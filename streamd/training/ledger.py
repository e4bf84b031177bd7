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
from streamd.registry.journal import TRAINER
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
from streamd.training.window_records import WindowRecords
from streamd.windows import Window, is_mostly_late, num_late
from streamd.windows.drift import Drift
from streamd.windows.history import WindowRecord
from streamd.windows.over_rule import BelowRule

logger = structlog.get_logger()
T = TypeVar("T")
FOLDER = "train"
"""The trainer's folder in the data directory."""
MEMORY = "memory"
"""Folder of the memory's files, in the trainer's folder; versions and checkpoints link to them."""
HOLD_SECONDS = 1.0
"""Minimum interval of two calls of `write_hold` while compaction waits: each reads every version's
manifest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The trainer's next step, decided in full before any part of it is executed.

    do: "learn" scores each window, then trains on all of them as one. "skip" only updates graph,
    facts and memory, with windows that failed too often; "leave out" does the same with a window of
    mostly late events. "bootstrap" trains on a range without keeping scores of it.
    windows: closed windows; each begins at the `end_edge` of the one before.
    seq: sequence number of the log's commit up to which deletes and node features are applied.
    version: name of the version from which training continues, "" before the first. It differs from
    the previous step's result if an operator moved the champion.
    epochs: number of epochs over the windows.
    replay: first event ids of the past chunks that are replayed.
    why: for the records, the reason for "skip" or "leave out".
    """

    do: Literal["learn", "skip", "leave out", "bootstrap"]
    windows: tuple[Window, ...]
    seq: int
    version: str
    epochs: int
    replay: tuple[int, ...]
    why: str = ""

    @property
    def range(self) -> Window:
        """All windows of the step merged into one."""
        first, last = self.windows[0], self.windows[-1]
        return Window(first.start_us, last.end_us, first.first_edge, last.end_edge)


class Ledger:
    """Writes attempts, versions, records of windows, checkpoints and holds.

    Nothing else in `training` makes these durable. The replay store writes its own files; the
    ledger decides when files of chunks no longer held are deleted. Owner: the trainer's thread.

    All ranks call the same methods at the same time. Only the first rank writes, except for rows of
    memory, and it broadcasts everything it reads that may change meanwhile.
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
        # Checkpoints and versions have separate folders, so that they share no file: if one is
        # damaged, training resumes from the other.
        self.checkpoint_memory = MemoryFiles(self._folder / MEMORY / "checkpoints", ranks=ranks)
        """The memory files of checkpoints and of the nightly baseline, which link to them."""
        self._version_memory = MemoryFiles(self._folder / MEMORY / "versions", ranks=ranks)
        self._version_memory.sweep()
        self._records = WindowRecords(paths.learned, versions.journal)
        self._drift = Drift()
        self._below_rule = BelowRule()
        if ranks.is_first:
            versions.sweep()

    # Before a step

    def last_attempt(self) -> attempts.Attempt:
        """Read the newest attempt, perhaps from before a restart."""
        last = attempts.last_attempt(self._folder)
        return attempts.Attempt(*self._ranks.broadcast(astuple(last)))

    def begin(self, windows: Sequence[Window], version: str, learner: Learner) -> Step:
        """Record durably that the trainer is about to train on windows, so that a restart takes the
        same ones.

        Returns: the complete step; "leave out" for a single window of mostly late events, "skip"
        for windows that failed MAX_FAILURES times.
        """
        step = self._step("learn", windows, version, learner)
        failures = 0
        if self._ranks.is_first:
            failures = attempts.begin_attempt(self._folder, step.range)
        failures = self._ranks.broadcast(failures)
        if is_mostly_late(self._log, windows[0]):
            late = f"{num_late(self._log, windows[0]):,} of its {windows[0].num_edges:,} events"
            return replace(
                step, do="leave out", why=f"left out: {late} came late, with a time before it"
            )
        if failures < attempts.MAX_FAILURES:
            return step
        why = f"skipped: scoring or training failed {attempts.MAX_FAILURES} times"
        return replace(step, do="skip", why=why)

    def begin_bootstrap(self, short: bool, version: str, learner: Learner) -> Step | None:
        """Record durably the range that is trained on at once, before any window.

        short: as in `planned_range`. Returns: None if the log is trained on window by window from
        its start.
        """
        planned = None
        if self._ranks.is_first:
            planned = initial_training.planned_range(
                self._bootstrap, self._settings.windows, self._log, self._folder, short
            )
        fields = self._ranks.broadcast(planned and astuple(planned))
        if fields is None:
            return None
        window = initial_training.Range(*fields).window()
        return self._step("bootstrap", [window], version, learner, self._bootstrap.epochs)

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count an error inside this context as a failure of the recorded attempt."""
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

    # Versions, and the moves of champion and shadow

    def publish(self, candidate: Candidate, incumbent: str | None) -> PublishResult:
        """Publish a version.

        incumbent: name of the champion with other settings, which stays champion; None if there is
        none.

        With several ranks:
        1. Every rank writes its rows of memory, unless the gate refuses the candidate.
        2. The first rank writes the version with a manifest that names all files. Before step 1 is
           complete, the manifest would name files that do not exist.
        """
        if self._ranks.size == 1:
            return self._versions.publish(candidate, incumbent)
        # 1. Every rank writes its rows of a version that the gate promotes.
        if self._ranks.broadcast(candidate.judged().promote):
            files = candidate.memory()
            candidate = replace(candidate, memory=lambda: files)
        # 2. The first rank names them all in the manifest.
        result = self._versions.publish(candidate, incumbent) if self._ranks.is_first else None
        return PublishResult(*self._ranks.broadcast(result and astuple(result)))

    def store_memory(self, memory: Memory) -> tuple[ImmutableFile, ...]:
        """Write the rows of a version's memory that changed since the last call; all rows in the
        first call after a start. Returns: all files of the memory."""
        return self._version_memory.store(memory)

    def prove(self, proof: Proof | None) -> None:
        """Record in the registry's journal which version is the shadow; None changes nothing."""
        if proof is not None and self._ranks.is_first:
            self._versions.prove(proof.version, proof.why)

    def rollback(self, why: str) -> None:
        """Make the shadow the champion again. why: the reason, for the journal."""
        if self._ranks.is_first:
            self._versions.rollback(TRAINER, why)

    # Results of a step, and the position of a restart

    def record(self, record: WindowRecord) -> WindowRecord:
        """Add a window's record to the history, with its surprise. Returns: the record as added.

        The record becomes valid with the next checkpoint: a restart before it drops the record.
        """
        if not self._ranks.is_first:
            return record
        record = replace(record, surprise=self._drift.surprise(record))
        self._records.add(record)
        self._below_rule.add(record)
        metrics.below_rule.set(self._below_rule.holds)
        return record

    def checkpoint(
        self, position: TrainerPosition, learner: Learner, contest: Contest, nightly: Nightly
    ) -> None:
        """Write a checkpoint, then delete the files that only older checkpoints named.

        1. Write the checkpoint durably.
        2. Send the records that it holds to the log. Before step 1, a restart would repeat windows
           that the log has.
        3. Delete unused files of replay, nightly baseline and memory. Before step 1, the newest
           checkpoint could still name them.
        4. Release the log up to the new position. Before step 1, a restart would lack events.

        position: from which a restart continues.
        """
        # 1. The new checkpoint.
        self.save(position, learner, contest, nightly)
        # 2. The records in it.
        if self._ranks.is_first:
            self._records.send()
        # 3. Files that no checkpoint names any more.
        learner.replay.sweep()
        nightly.sweep()
        self.checkpoint_memory.sweep()
        self._version_memory.sweep()
        # 4. The log before the new position.
        self.write_hold(position)

    def save(
        self, position: TrainerPosition, learner: Learner, contest: Contest, nightly: Nightly
    ) -> None:
        """Write a checkpoint and delete only older checkpoints. Arguments: as in `checkpoint`."""
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
                history_bytes=self._records.num_bytes,
                records=self._records.waiting,
                version=contest.version,
                champion=contest.version,
                shadow=contest.shadow.name if contest.shadow else "",
                compared=list(astuple(contest.compared)),
                settings=self._settings.resume_settings,
                build=build_facts(learner.model.device.type),
                replay=learner.replay.index(),
                tail=[c.first_edge for c in learner.tail],
                schema=learner.model.schema.fields(),
                nightly=nightly.name,
            ),
        )

    def write_hold(self, position: TrainerPosition) -> None:
        """Write the hold for a position, so that the log keeps the events that a restart needs.
        Before it, store facts if due, and drop the versions that a compaction request makes
        stale."""
        if self._hold is not None:
            self._hold.write(position)
        self._hold_log_here()

    def _hold_log_here(self) -> None:
        """Write the first rank's hold also for this machine's log, if that is another log."""
        fields = self._ranks.broadcast(self._hold and astuple_of(self._hold.written))
        if self._paths.log == self._paths.learned or not self._ranks.is_first_here:
            return
        hold = Hold(*fields)
        if hold != self._held_here:
            write_hold(self._paths.log, self._paths.role, hold)
            self._held_here = hold

    def compaction_request(self) -> int | None:
        """Id of the event before which compaction was requested; None without a request."""
        asked: int | None = self._ranks.broadcast(self._hold and self._hold.compaction_request())
        return asked

    def should_write_hold(self) -> bool:
        """Whether compaction waits and the hold was last written at least HOLD_SECONDS ago."""
        is_due = self._hold is not None and (
            time.monotonic() - self._hold.written_at >= HOLD_SECONDS
            and self._hold.compaction_request() is not None
        )
        return bool(self._ranks.broadcast(is_due))

    def oldest_window(self) -> int:
        """First event id of the older of two windows: the one that produced the champion, and the
        one that produced the shadow."""
        oldest: int = self._ranks.broadcast(
            min(first for first, _ in self._versions.named_windows())
        )
        return oldest

    # After a stop

    def read(self) -> Cursor | None:
        """Read the newest checkpoint's cursor; None without a checkpoint. Raises: as
        `read_cursor`."""
        return self._on_all_ranks(lambda: read_cursor(self._checkpoints))

    def _on_all_ranks(self, read: Callable[[], T]) -> T:
        """Read a checkpoint on every rank, so that all continue from the same position.

        Raises: CorruptionError on all ranks if it is damaged on one of them.
        """
        damage = None
        try:
            found = read()
        except CorruptionError as error:
            damage = error
        if not self._ranks.all(damage is None):
            raise damage or CorruptionError(
                "Another rank cannot read the trainer's checkpoint.",
                "read that rank's log, which names the file and the remedy.",
            )
        return found

    def load(self, cursor: Cursor, learner: Learner, state: LogState) -> None:
        """Load the newest checkpoint into the learner. cursor: as returned by `read`.

        Raises: as `load_checkpoint`.
        """
        cursor = self._with_schema(cursor)
        loaded = self._on_all_ranks(
            lambda: load_checkpoint(self._checkpoints, cursor, learner, state)
        )
        loaded.restore(learner)
        self.checkpoint_memory.resume(loaded.files, learner.memory)
        self._records.restore(cursor)
        build = build_facts(learner.model.device.type)
        if cursor.build != build:
            logger.warning(
                "build_differs",
                checkpoint=cursor.build,
                now=build,
                meaning="resumed weights may differ in the last bits",
            )

    def _with_schema(self, cursor: Cursor) -> Cursor:
        """Add the schema under which a checkpoint was written. Older releases stored it only in the
        manifests of versions."""
        if cursor.schema or not cursor.champion:
            return cursor
        try:
            return replace(cursor, schema=self._versions.manifest(cursor.champion).schema)
        except (VersionError, OSError):
            return cursor

    def begin_with_new_settings(self, cursor: Cursor) -> None:
        """Delete the recorded attempt and range of a checkpoint that has other settings than the
        trainer."""
        for name in (initial_training.FILE, attempts.FILE) if self._ranks.is_first else ():
            (self._folder / name).unlink(missing_ok=True)
        self._records.restore(cursor)
        if not self._bootstrap.max_events:
            self._records.forget()

    @property
    def has_new_history(self) -> bool:
        """Whether the records have moved out of the log, which the checkpoint does not know yet."""
        return bool(self._ranks.broadcast(self._records.was_moved))

    def rewind_to(self, edge: int) -> None:
        """Invalidate the records of windows after event `edge`: training continues from there
        without a checkpoint."""
        self._records.rewind_to(edge)

    def resume(self, edge: int) -> None:
        """Load the newest facts stored at or before event `edge`. The first rank also makes the
        history hold the valid records."""
        if self._hold is None:
            self._live.restore_facts(self._paths.folder / FACTS, edge)
            return
        records = self._records.resume(edge)
        self._drift, self._below_rule = Drift(records), BelowRule(records)
        metrics.below_rule.set(self._below_rule.holds)
        self._hold.resume(edge)
