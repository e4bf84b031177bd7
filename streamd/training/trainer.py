"""The trainer's loop: wait for a window to close, score it, learn it, publish, and checkpoint."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from streamd.clock import Clock
from streamd.errors import RanksError
from streamd.eventlog.reader import LogReader
from streamd.graph.facts.columns import FACT_NAMES
from streamd.models.rule import NAME as RULE
from streamd.ranks import ALONE, Ranks
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, PublishResult, TrainResult
from streamd.settings.loading import Settings
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.progress import Reading, RoleProgress
from streamd.training.checkpoint import TrainerPosition
from streamd.training.learner import Learner
from streamd.training.learning_settings import LearningSettings
from streamd.training.ledger import FOLDER, Ledger, Step
from streamd.training.measures import LabelScores, Measures
from streamd.training.recorder import Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.training.resumption import Resumption
from streamd.training.tally import ScoredWindow, Tally
from streamd.training.versions.contest import Contest, Verdict
from streamd.training.versions.nightly import Nightly
from streamd.training.window_attempts import MAX_FAILURES, Stopped
from streamd.training.window_report import (
    Forgetting,
    rebuilding,
    records_of,
    report,
    report_trained_until,
)
from streamd.windows import Window, is_mostly_late, mergeable, next_window, num_late
from streamd.windows.history import ONE_DESTINATION, WindowRecord

logger = structlog.get_logger()
POLL_SECONDS = 0.05
"""Seconds between two looks at the log while no window is closed: far less than a window takes."""


class Trainer:
    """Learns windows as they close. Its owner is the train process's main thread; chunks are
    recorded and sent to a GPU ahead of time in threads of their own.

    It owns the graph and facts (`recorder`), the model and its past (`learner`), the comparison of
    versions (`contest`), the nightly baseline (`nightly`), and the durable state (`_ledger`).
    Others read the first four and change nothing in them.

    log: reader of the event log that it learns; `run` refreshes it.
    position: its progress through the log.
    """

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        device: str,
        reader: LogReader,
        versions: Registry,
        clock: Clock,
        beat: Heartbeat,
        on_step: Callable[[str], None] = lambda _: None,
        ranks: Ranks = ALONE,
        stop: threading.Event | None = None,
    ) -> None:
        """device: the chosen one, of graph and model. on_step: called with the name of each step
        as it begins, and with "rest" where nothing is under way and all that was learned is
        durable; what it raises ends the trainer. ranks: that learn together, each of which runs a
        trainer. stop: ends the rebuild of graph and facts, if this is the only rank.

        Raises: Stopped; VersionError where the checkpoint is not of this log or this release.
        """
        # What it reads and reports to.
        self._settings = LearningSettings.of(settings, device)
        self.log = reader
        self._versions = versions
        self._clock = clock
        self._beat = beat
        self._on_step = on_step
        self._ranks = ranks
        self._stop = stop or threading.Event()
        self._rebuilding = partial(rebuilding, reader, beat, stop if ranks.size == 1 else None)
        if ranks.size > 1 and not self._read_on():
            raise RanksError("The log was extended while the ranks started.", "none is needed.")

        # What it owns: the parts that learn, those that are durable, and those that are compared.
        own, rebuild = self._settings, self._rebuilding
        folder = paths.learned / FOLDER
        replay = ReplayStore.of(own, folder / "replay", ranks)
        self.learner = learner = Learner(own, reader, replay, ranks)
        self.recorder = recorder = Recorder(own, reader, ranks)
        learner.on_progress = self._when_learning = lambda *_: self._touch("learning")
        learner.free_device_memory = recorder.free_device_memory
        self._forgetting = Forgetting(learner)
        self._ledger = ledger = Ledger(
            paths, own, settings.bootstrap, reader, versions, recorder.live, ranks
        )
        store = ledger.checkpoint_memory.store
        self.nightly = Nightly(own, reader, learner, recorder, folder, store)
        events = settings.registry.gate_events
        self.contest = Contest(paths, own, events, reader, versions, learner, recorder, rebuild)

        # All of them as they were at the last checkpoint.
        self.position = Resumption(
            own, reader, versions, learner, recorder, ledger, self.contest, self.nightly, rebuild
        ).resume()

    @property
    def edge(self) -> int:
        """Id of the first event that is not yet in a finished window."""
        return self.position.event

    def run(self, stop: threading.Event) -> bool:
        """Learn windows as they close, until the log has another schema: then it returns True, to
        continue with another reader. It returns False soon after `stop` is set on the first rank; a
        restart begins the work of then again."""
        self._stop = stop
        with contextlib.suppress(Stopped):
            self.bootstrap()
            while self._read_on():
                report_trained_until(self.log, self.edge, self._settings.width_us)
                self._on_step("rest")
                if windows := self.due():
                    self.process(*windows)
                    continue
                self._touch("waiting")
                if self._ledger.should_keep():
                    self._renew_shadow()
                    self._ledger.keep(self.position)
                stop.wait(POLL_SECONDS)
            return True
        return False

    def _read_on(self) -> bool:
        """Read new commits, on all ranks up to the same one. Returns: False where the log goes on
        with another schema.

        Followers apply them once a window, in `process`: to clear the replay store takes long, and
        all ranks have to do it at the same commit.
        """
        self.log.read()
        while True:
            told = self._ranks.told_by_all([self.log.state.seq, self.log.superseded])
            seqs, superseded = zip(*told, strict=True)
            if any(superseded) or len(set(seqs)) == 1:
                return not any(superseded)
            self.log.read(max(seqs))

    def due(self) -> list[Window]:
        """The windows to learn next: one, or several as one if the trainer lags. A window of mostly
        late events, which is left out, comes alone.

        Windows that were begun before a stop are tried again together, or singly once they failed
        too often together.
        """
        # Closed windows, at most one more than may be merged: that many show that the trainer lags.
        begun = self._ledger.begun()
        merge_after = self._settings.windows.merge_after
        closed: list[Window] = []
        edge = self.edge
        while (window := next_window(self.log, edge, self._settings.width_us)) is not None and len(
            closed
        ) <= merge_after:
            closed.append(window)
            edge = window.end_edge

        # What was begun before a stop goes first.
        if begun.edge == self.edge:
            again = [w for w in closed if w.end_edge <= begun.end_edge]
            return mergeable(self.log, again if begun.failures < MAX_FAILURES else again[:1])
        several = len(closed) > merge_after > 0
        return mergeable(self.log, closed[:merge_after] if several else closed[:1])

    def process(self, *windows: Window) -> WindowRecord:
        """Score each window singly, learn and publish them as one, record each, and write one
        checkpoint.

        Windows that a stop cut short are processed from their start. Returns: the last one's
        record.
        """
        self.log.apply_changes()
        # Where someone moved the champion by hand, learning goes on from that version.
        followed = self.contest.follow(self.edge)
        if followed is not None:
            self.learner.continue_from(followed.model.state_dict(), followed.memory)
        self._touch("scoring")
        step = self._ledger.begin(windows, self.contest.version, self.learner)
        with self._ledger.counting_failures():
            return self._process(step)

    def _process(self, step: Step) -> WindowRecord:
        """Do a step that the ledger wrote down. Returns: the last window's record."""
        # 1. Score each window, before anything of it is learned.
        begun_at = time.monotonic()
        scored = [self._score(window, step) for window in step.windows]

        # 2. Decide, once enough events were compared, whether the learner's version is proven or
        # worse.
        scored_at = time.monotonic()
        self._touch("learning")
        self._on_step("learn")
        verdict = self.contest.judge()

        # 3. Learn the windows as one, unless the champion is worse than the shadow: what it learned
        # lately, or these windows, may be the cause.
        learned = None
        if verdict.back_to is None:
            learned = self.learner.learn(step.range.first_edge, step.epochs, step.replay)

        # 4. Publish what was learned, or go back to the shadow.
        outcome = self._hand_over(step, verdict, learned, scored[-1].table)
        self.position = TrainerPosition(step.range.end_edge, step.range.first_edge)
        times = begun_at, scored_at, time.monotonic()

        # 5. Record each window. The records count once a checkpoint follows them.
        self._on_step("record")
        nightly_seconds = self.nightly.take_seconds()
        records = records_of(step, scored, outcome, learned, times, nightly_seconds, self._clock)
        records = [self._ledger.record(record) for record in records]

        # 6. Checkpoint: a restart goes on from here. If a stop comes between the checkpoint and the
        # proof, the restart writes the proof to the registry's journal.
        self._on_step("checkpoint")
        self.nightly.drop_before(self._ledger.compaction_request())
        self._checkpoint()
        self._ledger.prove(verdict.proof)
        self.learner.begin()
        self._renew_shadow()
        for record in records:
            report(record, self.learner, self.contest.compared)
        self._forgetting.measure()
        return records[-1]

    def _score(self, window: Window, step: Step) -> ScoredWindow:
        """Score a window by all models that are compared, before any of it is learned."""
        # Merged windows share `windows.max_events`.
        self.nightly.enter(window, self.position.window_event)
        tally = Tally(self.log.state.schema)
        num_labelled = len(self.learner.label_scores)
        chunks = self.recorder.chunks(
            window,
            recorded=step.do == "learn",
            max_events=max(1, self._settings.windows.max_events // len(step.windows)),
        )

        # Chunk by chunk: the learner's version (the rule before there is one), and the shadow.
        for chunk in prefetch(chunks):
            logits_EC = self.learner.score(chunk)
            self._touch("scoring")
            self.nightly.note(chunk)
            shadow_EC = self.contest.score(chunk)
            if chunk.score is not None:
                tally.add(chunk, logits_EC if step.version else None, shadow_EC)

        # The events of all ranks, and the shadow over them.
        tally = tally.gathered(self._ranks)
        if (shadow_EC := tally.shadow_EC) is not None:
            self.contest.compare(tally.live_EC, shadow_EC, tally.novelty.known_E)

        # The incumbent, with windows of its own width, and the nightly baseline.
        incumbent = of_night = None
        on_chunk = partial(self._touch, "scoring")
        if len(tally) and step.version:
            incumbent = self.contest.score_window(
                tally.event_E, tally.live_EC, tally.novelty, window, on_chunk
            )
            of_night = self.nightly.score(tally.event_E, on_chunk)
        labels = self.learner.label_scores[num_labelled:]
        if labels:
            labels = [LabelScores.joined(labels).gathered(self._ranks)]
        scored = tally.measured(incumbent, of_night, labels, self._settings.model.labels)
        return scored._replace(num_late=num_late(self.log, window))

    def _hand_over(
        self, step: Step, verdict: Verdict, learned: TrainResult | None, scores: dict[str, Measures]
    ) -> PublishResult:
        """Publish what was learned, or roll back. scores: of the step's last window.

        Returns: the version that learning goes on from, whether it was promoted, and why.
        """
        if step.do == "pass over":
            logger.error(
                "window_passed_over",
                start=step.range.start_us,
                first_edge=step.range.first_edge,
                failures=MAX_FAILURES,
            )

        # Back to the shadow, or on with what was learned, if anything was.
        if verdict.back_to is not None:
            self._on_step("publish")
            self._ledger.rollback(verdict.why)
            self.learner.continue_from(
                verdict.back_to.model.state_dict(), verdict.back_to.memory.copy()
            )
            outcome = PublishResult(self.contest.version, False, f"rolled back: {verdict.why}")
        elif learned is None:
            why = "no event of this window could be learned yet"
            if self.recorder.live.facts.has_one_destination:
                why = ONE_DESTINATION
            outcome = PublishResult(step.version, False, why)
        else:
            self._on_step("publish")
            outcome = self._publish(step, learned, scores)
            metrics.versions.labels(str(outcome.promoted).lower()).inc()

        # If the windows were neither scored nor learned, record that reason, not a rollback.
        return PublishResult(self.contest.version, False, step.why) if step.why else outcome

    def _publish(
        self, step: Step, learned: TrainResult, scores: dict[str, Measures]
    ) -> PublishResult:
        """Publish the learner's model as a version. What a refused version learned is undone."""
        learner = self.learner
        outcome = self._ledger.publish(
            Candidate(
                window=step.range,
                edge=step.range.end_edge,
                seq=step.seq,
                weights=learner.model.arrays(),
                memory=partial(self._ledger.store_memory, learner.memory),
                memory_us=learner.memory.now_us,
                parent=step.version,
                facts=FACT_NAMES,
                schema=self.log.state.schema,
                scores=scores,
                learned=learned,
                model=self._settings.model,
                training=self._settings.training,
                window_seconds=self._settings.windows.width_seconds,
            ),
            self.contest.incumbent_name,
        )

        # The gate may refuse it: then the weights from before the step are restored.
        if outcome.refused:
            learner.refuse()
        self._ledger.prove(self.contest.after(outcome))
        return outcome

    def bootstrap(self) -> None:
        """Where nothing was learned under these settings yet, learn the log's newest windows at
        once and publish. No scores of them are kept. Otherwise nothing happens.
        """
        # Whether there is a range to learn, even a short one beside an incumbent.
        if self.learner.num_learned or self.edge > self.log.first_edge:
            return
        short = self.contest.incumbent is not None
        step = self._ledger.begin_bootstrap(short, self.contest.version, self.learner)
        if step is None:
            return
        begun = time.monotonic()
        num_events = step.range.num_edges
        logger.info("bootstrap", first_edge=step.range.first_edge, events=num_events)

        # Record the range: graph and facts from the log's first edge, memory from the range's.
        first = step.range.first_edge
        self.position = replace(self.position, event=first)
        self.recorder.rebuild(self.edge, on_slice=self._rebuilding(self.edge))
        self.learner.start_at(self.edge)
        recording = RoleProgress("bootstrapping", step="record")
        while self.edge < step.range.end_edge:
            window = next_window(self.log, self.edge, self._settings.width_us)
            assert window is not None
            for chunk in self.recorder.chunks(window, not is_mostly_late(self.log, window)):
                self.learner.score(chunk)
                self._touch("bootstrapping", recording.at(self.recorder.edge - first, num_events))
            self.position = replace(self.position, event=window.end_edge)

        # Learn and publish it. `run` goes on with the windows after it.
        learning = RoleProgress("bootstrapping", step="learn")
        self.learner.on_progress = lambda *done: self._touch("bootstrapping", learning.at(*done))
        learned = self.learner.learn(first, step.epochs, step.replay)
        self.learner.on_progress = self._when_learning
        if learned is not None:
            self._publish(step, learned, {})
        self.position = replace(self.position, window_event=first)
        self._checkpoint()
        self.learner.begin()
        logger.info(
            "bootstrapped",
            version=self.contest.version,
            events=num_events,
            loss=learned and round(learned.loss, 4),
            seconds=round(time.monotonic() - begun, 1),
        )

    def _renew_shadow(self) -> None:
        """Make the champion the shadow, unproven, where compaction waits for the shadow only: the
        older shadow may hold what was deleted.
        """
        compaction_request = self._ledger.compaction_request()
        self.nightly.drop_before(compaction_request)
        if compaction_request is None or not self.contest.shadow_is_older:
            return
        if self.position.window_event >= compaction_request > self._ledger.oldest_window():
            proof = self.contest.renew_shadow(
                "compaction was asked for; the version before may hold what was deleted"
            )
            self._checkpoint()
            self._ledger.prove(proof)
            self._ledger.keep(self.position)

    def _checkpoint(self) -> None:
        self._ledger.checkpoint(self.position, self.learner, self.contest, self.nightly)

    def _touch(self, state: str, reading: Reading | None = None) -> None:
        self._beat.touch(
            state,
            edge=self.edge,
            version=self.contest.version or RULE,
            lag=self.log.num_edges - self.edge,
            ranks=self._ranks.size,
            **(reading.fields() if reading else {}),
        )

        # Ranks stop together: each calls this as often as the others.
        if self._ranks.tell(self._stop.is_set()):
            raise Stopped
