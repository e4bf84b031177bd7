"""The trainer's loop: wait for a window to close, score it, train on it, publish, and
checkpoint."""

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
from streamd.training.window_attempts import MAX_FAILURES, Attempt, Stopped
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
"""Pause between two refreshes of the log while no window is closed: much less than a window
takes."""


class Trainer:
    """Trains on windows as they close.

    Owner: the main thread of the train process; separate threads record chunks and transfer them to
    a GPU ahead of time.

    It owns graph and facts (`recorder`), the model and its past (`learner`), the comparison of
    versions (`contest`), the nightly baseline (`nightly`), and the durable state (`_ledger`). Other
    objects read the first four and change nothing in them.

    log: reader of the event log; `run` refreshes it.
    position: the trainer's progress through the log.
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
        """device: "cpu" or "cuda", for graph and model.
        on_step: called with the name of each step as it begins, and with "rest" when no step is
        under way and all results are durable; an exception from it ends the trainer.
        ranks: the ranks that train together; each runs a trainer.
        stop: interrupts the rebuild of graph and facts, if there is only one rank.

        Raises: Stopped; VersionError if the checkpoint is of another log or a newer release;
        RanksError if the log's schema was extended while the ranks started.
        """
        # Inputs, and the receivers of its reports.
        self._settings = LearningSettings.of(settings, device)
        self.log = reader
        self._versions = versions
        self._clock = clock
        self._beat = beat
        self._on_step = on_step
        self._ranks = ranks
        self._stop = stop or threading.Event()
        self._rebuilding = partial(rebuilding, reader, beat, stop if ranks.size == 1 else None)
        if ranks.size > 1 and not refresh_log(reader, ranks):
            raise RanksError(
                "The log's schema was extended while the ranks started.", "none is needed."
            )

        # The parts that it owns: for training, for durable state, and for comparisons.
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

        # Restore all of them from the last checkpoint.
        self.position = Resumption(
            own, reader, versions, learner, recorder, ledger, self.contest, self.nightly, rebuild
        ).resume()

    @property
    def edge(self) -> int:
        """Id of the first event that is not yet in a finished window."""
        return self.position.event

    def run(self, stop: threading.Event) -> bool:
        """Train on windows as they close.

        Returns: True when the log continues under another schema, so that the caller opens a new
        reader; False soon after `stop` is set on the first rank. A restart repeats the step that
        the stop interrupted.
        """
        self._stop = stop
        with contextlib.suppress(Stopped):
            self.bootstrap()
            while refresh_log(self.log, self._ranks):
                report_trained_until(self.log, self.edge, self._settings.width_us)
                self._on_step("rest")
                if windows := self.due():
                    self.process(*windows)
                    continue
                self._touch("waiting")
                if self._ledger.should_write_hold():
                    self._renew_shadow()
                    self._ledger.write_hold(self.position)
                stop.wait(POLL_SECONDS)
            return True
        return False

    def due(self) -> list[Window]:
        """The windows to train on next: see `due_windows`."""
        return due_windows(self.log, self._settings, self._ledger.last_attempt(), self.edge)

    def process(self, *windows: Window) -> WindowRecord:
        """Score each window, train on them as one, publish, record each window, and write one
        checkpoint.

        A restart processes windows that a stop interrupted from their start. Returns: the last
        window's record.
        """
        self.log.apply_changes()
        # If an operator moved the champion, training continues from that version.
        followed = self.contest.follow(self.edge)
        if followed is not None:
            self.learner.continue_from(followed.model.state_dict(), followed.memory)
        self._touch("scoring")
        step = self._ledger.begin(windows, self.contest.version, self.learner)
        with self._ledger.counting_failures():
            return self._process(step)

    def _process(self, step: Step) -> WindowRecord:
        """Execute a step that the ledger has recorded. Returns: the last window's record.

        1. Score each window, before the training: later, scores would not be predictions.
        2. Judge the comparison: the learner's version may be proven, or worse.
        3. Train on the windows as one, unless step 2 rolls back.
        4. Publish the result, or roll back to the shadow.
        5. Append the records to the history.
        6. Write a checkpoint. A restart before it repeats all steps and truncates the records;
           after it, a restart continues with the next window.
        7. Journal the proof. Before step 6, the journal could name a shadow that the checkpoint
           lacks; if a stop prevents step 7, the restart journals it.
        """
        # 1. Score each window, before any training on it.
        begun_at = time.monotonic()
        scored = [self._score(window, step) for window in step.windows]

        # 2. Once enough events were compared, decide whether the learner's version is proven or
        # worse.
        scored_at = time.monotonic()
        self._touch("learning")
        self._on_step("learn")
        verdict = self.contest.judge()

        # 3. Train, unless the champion is worse than the shadow: recent training, or these windows,
        # may be the cause.
        learned = None
        if verdict.back_to is None:
            learned = self.learner.learn(step.range.first_edge, step.epochs, step.replay)

        # 4. Publish the result, or roll back to the shadow.
        outcome = self._publish_or_roll_back(step, verdict, learned, scored[-1].table)
        self.position = TrainerPosition(step.range.end_edge, step.range.first_edge)
        times = begun_at, scored_at, time.monotonic()

        # 5. Record each window. The next checkpoint makes the records valid.
        self._on_step("record")
        nightly_seconds = self.nightly.take_seconds()
        records = records_of(step, scored, outcome, learned, times, nightly_seconds, self._clock)
        records = [self._ledger.record(record) for record in records]

        # 6. Checkpoint: a restart continues from here.
        self._on_step("checkpoint")
        self.nightly.drop_before(self._ledger.compaction_request())
        self._checkpoint()
        # 7. Journal the proof.
        self._ledger.prove(verdict.proof)
        self.learner.begin()
        self._renew_shadow()
        for record in records:
            report(record, self.learner, self.contest.compared)
        self._forgetting.measure()
        return records[-1]

    def _score(self, window: Window, step: Step) -> ScoredWindow:
        """Score a window by all models that are compared, before any training on it."""
        # Merged windows share `windows.max_events`.
        self.nightly.enter(window, self.position.window_event)
        tally = Tally(self.log.state.schema)
        num_labelled = len(self.learner.label_scores)
        chunks = self.recorder.chunks(
            window,
            recorded=step.do == "learn",
            max_events=max(1, self._settings.windows.max_events // len(step.windows)),
        )

        # Score chunk by chunk, by the learner's version (the rule before the first one) and the
        # shadow.
        for chunk in prefetch(chunks):
            logits_EC = self.learner.score(chunk)
            self._touch("scoring")
            self.nightly.note(chunk)
            shadow_EC = self.contest.score(chunk)
            if chunk.score is not None:
                tally.add(chunk, logits_EC if step.version else None, shadow_EC)

        # Gather the events of all ranks, and compare with the shadow over them.
        tally = tally.gather(self._ranks)
        if (shadow_EC := tally.shadow_EC) is not None:
            self.contest.compare(tally.live_EC, shadow_EC, tally.novelty.known_E)

        # Score by the incumbent, with windows of its own width, and by the nightly baseline.
        incumbent = of_night = None
        on_chunk = partial(self._touch, "scoring")
        if len(tally) and step.version:
            incumbent = self.contest.score_window(
                tally.event_E, tally.live_EC, tally.novelty, window, on_chunk
            )
            of_night = self.nightly.score(tally.event_E, on_chunk)
        labels = self.learner.label_scores[num_labelled:]
        if labels:
            labels = [LabelScores.join(labels).gather(self._ranks)]
        scored = tally.measure(incumbent, of_night, labels, self._settings.model.labels)
        return scored._replace(num_late=num_late(self.log, window))

    def _publish_or_roll_back(
        self, step: Step, verdict: Verdict, learned: TrainResult | None, scores: dict[str, Measures]
    ) -> PublishResult:
        """Publish the result of the training, or roll back. scores: of the step's last window.

        Returns: the version from which training continues, whether it was promoted, and the reason.
        """
        if step.do == "skip":
            logger.error(
                "window_skipped",
                start=step.range.start_us,
                first_edge=step.range.first_edge,
                failures=MAX_FAILURES,
                meaning="nothing is trained on this window; the errors before name the cause",
            )

        # Roll back to the shadow, or publish if a training step was made.
        if verdict.back_to is not None:
            self._on_step("publish")
            self._ledger.rollback(verdict.why)
            self.learner.continue_from(
                verdict.back_to.model.state_dict(), verdict.back_to.memory.copy()
            )
            outcome = PublishResult(self.contest.version, False, f"rolled back: {verdict.why}")
        elif learned is None:
            why = "no event of this window could be trained on yet"
            if self.recorder.live.facts.has_one_destination:
                why = ONE_DESTINATION
            outcome = PublishResult(step.version, False, why)
        else:
            self._on_step("publish")
            outcome = self._publish(step, learned, scores)
            metrics.versions.labels(str(outcome.promoted).lower()).inc()

        # Windows that were skipped or left out record that reason, even if the step rolled back.
        return PublishResult(self.contest.version, False, step.why) if step.why else outcome

    def _publish(
        self, step: Step, learned: TrainResult, scores: dict[str, Measures]
    ) -> PublishResult:
        """Publish the learner's model as a version. If it is refused, its training step is
        undone."""
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

        # If the gate refuses it, restore the weights from before the step.
        if outcome.refused:
            learner.undo_training()
        self._ledger.prove(self.contest.after(outcome))
        return outcome

    def bootstrap(self) -> None:
        """Train on the log's newest windows at once and publish the result, if nothing was learned
        under these settings yet; else do nothing. Their scores are not kept."""
        # Find a range to train on; while an incumbent serves, even a short one.
        if self.learner.num_learned or self.edge > self.log.first_edge:
            return
        short = self.contest.incumbent is not None
        step = self._ledger.begin_bootstrap(short, self.contest.version, self.learner)
        if step is None:
            return
        begun = time.monotonic()
        num_events = step.range.num_edges
        logger.info("bootstrap", first_edge=step.range.first_edge, events=num_events)

        # Record the range: graph and facts from the log's first event, memory from the range's.
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

        # Train on it and publish. `run` continues with the next window.
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
        """Make the champion the shadow, although unproven, if compaction waits only for the older
        shadow, which may hold deleted data.

        1. Write a checkpoint with the new shadow.
        2. Journal the proof; before step 1, a restart could load the older shadow, which step 3
           allows to be dropped.
        3. Write the hold, which releases the older shadow's windows.
        """
        compaction_request = self._ledger.compaction_request()
        self.nightly.drop_before(compaction_request)
        if compaction_request is None or not self.contest.shadow_is_older:
            return
        # An operator may have rolled back from this very version: the next window decides.
        if self.contest.has_move_to_follow:
            return
        if self.position.window_event >= compaction_request > self._ledger.oldest_window():
            proof = self.contest.renew_shadow(
                "compaction was requested; the older shadow may hold deleted data"
            )
            self._checkpoint()
            self._ledger.prove(proof)
            self._ledger.write_hold(self.position)

    def _checkpoint(self) -> None:
        self._ledger.checkpoint(self.position, self.learner, self.contest, self.nightly)

    def _touch(self, state: str, reading: Reading | None = None) -> None:
        """Update the heartbeat. All ranks call this equally often.

        Raises: Stopped if `stop` is set on the first rank.
        """
        self._beat.touch(
            state,
            edge=self.edge,
            continues_from=self.contest.version or RULE,
            lag=self.log.num_edges - self.edge,
            ranks=self._ranks.size,
            **(reading.fields() if reading else {}),
        )

        # All ranks stop at the same call, by the first rank's flag.
        if self._ranks.broadcast(self._stop.is_set()):
            raise Stopped


def refresh_log(log: LogReader, ranks: Ranks) -> bool:
    """Refresh the log to the same commit on every rank. Returns: False if the log continues under
    another schema.

    Followers apply the new commits once a window, in `Trainer.process`: clearing the replay store
    takes long, and all ranks have to do it at the same commit.
    """
    log.read()
    while True:
        states = ranks.gather_messages([log.state.seq, log.superseded])
        seqs, superseded = zip(*states, strict=True)
        if any(superseded) or len(set(seqs)) == 1:
            return not any(superseded)
        log.read(max(seqs))


def due_windows(
    log: LogReader, settings: LearningSettings, begun: Attempt, edge: int
) -> list[Window]:
    """The windows to train on next, from event `edge`: one, or several to merge if the trainer
    lags. A window of mostly late events, which is left out, comes alone.

    begun: the newest attempt. After a restart, its windows are retried together; after
    MAX_FAILURES, one at a time.
    """
    # Find closed windows, at most one more than may be merged: with that many, the trainer lags.
    merge_after = settings.windows.merge_after
    closed: list[Window] = []
    end = edge
    while (window := next_window(log, end, settings.width_us)) is not None and len(
        closed
    ) <= merge_after:
        closed.append(window)
        end = window.end_edge

    # Windows of an interrupted attempt come first.
    if begun.edge == edge:
        again = [w for w in closed if w.end_edge <= begun.end_edge]
        return mergeable(log, again if begun.failures < MAX_FAILURES else again[:1])
    several = len(closed) > merge_after > 0
    return mergeable(log, closed[:merge_after] if several else closed[:1])
