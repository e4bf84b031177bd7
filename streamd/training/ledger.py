"""What the trainer leaves behind a stop: all of it goes through here, in the order that a restart
relies on."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from typing import Literal

import structlog

from streamd.graph.live import LiveGraph
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, PublishResult
from streamd.registry.registry import fixed_settings
from streamd.segments.journal import LogState
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.training import attempts, bootstrap
from streamd.training.checkpoint import (
    Cursor,
    build_facts,
    load_checkpoint,
    read_cursor,
    save_checkpoint,
)
from streamd.training.contest import Contest, Proof
from streamd.training.learner import Learner
from streamd.training.retention_hold import RetentionHold
from streamd.windows import Window
from streamd.windows.history import WindowRecord, append_record, history_until, truncate_records

logger = structlog.get_logger()
FOLDER = "train"
KEEP_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What the trainer does next, decided whole before any of it is done: all that others who learn
    along must be told.

    do: "learn" the windows as one after each was scored; "pass over" windows that failed too often;
    "bootstrap", which learns a range without scoring it. windows: closed ones, each beginning where
    the one before ends. seq: the log's commit up to which deletes and features count. version:
    whose weights it goes on from, "" before the first; another than the step before left where
    someone moved the champion by hand. epochs: passes over the windows. replay: first edges of the
    chunks of the past that are learned with them.
    """

    do: Literal["learn", "pass over", "bootstrap"]
    windows: tuple[Window, ...]
    seq: int
    version: str
    epochs: int
    replay: tuple[int, ...]

    @property
    def range(self) -> Window:
        """All windows as one."""
        first, last = self.windows[0], self.windows[-1]
        return Window(first.start_us, last.end_us, first.first_edge, last.end_edge)


class Ledger:
    """Owner: the trainer's thread. Attempts, versions, records of windows, checkpoints, holds:
    nothing else in this room makes any of them durable; of the replay store's files it says which
    may go."""

    def __init__(
        self, settings: Settings, reader: LogReader, versions: Registry, live: LiveGraph
    ) -> None:
        self._settings = settings
        self._log = reader
        self._versions = versions
        self._folder = settings.data_dir / FOLDER
        self._checkpoints = self._folder / "checkpoints"
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._keeping = RetentionHold(settings, versions, live)
        self._history_bytes = 0
        versions.sweep()

    # Before the work of a step

    def begun(self) -> attempts.Attempt:
        """What was begun last, perhaps before a restart."""
        return attempts.last_attempt(self._folder)

    def begin(self, windows: Sequence[Window], version: str, learner: Learner) -> Step:
        """Write down that windows are about to be learned, so that a restart takes the same.
        Returns: the whole step."""
        step = self._step("learn", windows, version, learner, self._settings.training.epochs)
        failures = attempts.begin_attempt(self._folder, step.range)
        return replace(step, do="pass over") if failures >= attempts.MAX_FAILURES else step

    def begin_bootstrap(self, short: bool, version: str, learner: Learner) -> Step | None:
        """The same of what is learned first; None where that is learned window by window. short:
        see `planned_range`."""
        found = bootstrap.planned_range(self._settings, self._log, self._folder, short)
        if found is None:
            return None
        return self._step(
            "bootstrap", [found.window()], version, learner, self._settings.bootstrap.epochs
        )

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count an error of the work inside against the step that was begun."""
        return attempts.counting_failures(self._folder)

    def _step(
        self,
        do: Literal["learn", "bootstrap"],
        windows: Sequence[Window],
        version: str,
        learner: Learner,
        epochs: int,
    ) -> Step:
        return Step(
            do=do,
            windows=tuple(windows),
            seq=self._log.state.seq,
            version=version,
            epochs=epochs,
            replay=learner.draw(windows[0].first_edge),
        )

    # Versions and who serves

    def publish(self, candidate: Candidate, beside: str | None) -> PublishResult:
        """Hand a version over. beside: the champion of other settings that goes on serving."""
        return self._versions.publish(candidate, beside)

    def prove(self, proof: Proof | None) -> None:
        """Tell the journal who is the shadow from now on; nothing where that did not change."""
        if proof is not None:
            self._versions.prove(proof.version, proof.why)

    def rollback(self, why: str) -> None:
        """Make the shadow the champion again."""
        self._versions.rollback("trainer", why)

    # What was done, and where to go on

    def record(self, record: WindowRecord) -> None:
        """Add a window to the history. It counts once a checkpoint is behind it."""
        self._history_bytes = append_record(self._settings.data_dir, record)

    def checkpoint(self, edge: int, window_edge: int, learner: Learner, contest: Contest) -> None:
        """A restart goes on from here; what only an older checkpoint named may go."""
        self.save(edge, window_edge, learner, contest)
        learner.replay.sweep()
        self.keep(edge, window_edge)

    def save(self, edge: int, window_edge: int, learner: Learner, contest: Contest) -> None:
        """A restart goes on from here; nothing goes yet."""
        memory = learner.memory
        save_checkpoint(
            self._checkpoints,
            learner,
            Cursor(
                edge=edge,
                window_edge=window_edge,
                memory_edge=memory.edge,
                memory_us=memory.now_us,
                num_learned=learner.num_learned,
                history_bytes=self._history_bytes,
                version=contest.version,
                champion=contest.version,
                shadow=contest.shadow.name if contest.shadow else "",
                compared=list(astuple(contest.compared)),
                settings=fixed_settings(self._settings),
                build=build_facts(),
                replay=learner.replay.index(),
                tail=[c.first_edge for c in learner.tail],
            ),
        )

    def keep(self, edge: int, window_edge: int) -> None:
        """Say what of the log a restart needs, and store facts where it is time to."""
        self._keeping.keep(edge, window_edge)

    def compaction_request(self) -> int | None:
        """The edge before which compaction was asked for."""
        return self._keeping.compaction_request()

    def should_keep(self) -> bool:
        """Whether compaction was asked for and it is a while since `keep`."""
        return (
            time.monotonic() - self._keeping.done >= KEEP_SECONDS
            and self.compaction_request() is not None
        )

    def oldest_window(self) -> int:
        """First edge of the oldest window that a version with a name was learned from."""
        return min(first for first, _ in self._versions.named_windows())

    # After a stop

    def read(self) -> Cursor | None:
        """Where the newest checkpoint stands; None where there is none. Raises: as `read_cursor`."""
        return read_cursor(self._checkpoints)

    def load(self, cursor: Cursor, learner: Learner, state: LogState) -> None:
        """Take the checkpoint whose cursor was read into the learner. Raises: as `load_checkpoint`."""
        load_checkpoint(self._checkpoints, cursor, learner, state)
        self._history_bytes = cursor.history_bytes
        if cursor.build != build_facts():
            logger.warning(
                "build_differs",
                checkpoint=cursor.build,
                now=build_facts(),
                meaning="resumed weights may differ in the last bits",
            )

    def begin_anew(self, cursor: Cursor) -> None:
        """Other settings than the checkpoint's: what was begun under those is nothing to go on
        with."""
        for name in (bootstrap.FILE, attempts.FILE):
            (self._folder / name).unlink(missing_ok=True)
        self._history_bytes = cursor.history_bytes if self._settings.bootstrap.max_events else 0

    def go_back_to(self, edge: int) -> None:
        """Records of windows behind an edge do not count: learning goes on from there without a
        checkpoint."""
        self._history_bytes = history_until(self._settings.data_dir, edge)

    def resume(self, edge: int) -> None:
        """Drop what was recorded behind the place where learning goes on, and take the facts stored
        before it."""
        truncate_records(self._settings.data_dir, self._history_bytes)
        self._keeping.resume(edge)
