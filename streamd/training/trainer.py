"""The trainer's loop: wait for a window to close, score it, learn it, hand the version over, remember where it is."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import structlog

from streamd.clock import Clock
from streamd.errors import CorruptionError, VersionError
from streamd.events import Bools, Float32, Int64
from streamd.graph.facts import LOG_SHARE
from streamd.models import Memory
from streamd.models.candidate import Candidate, Learned, Outcome
from streamd.models.rule import NAME as RULE
from streamd.models.rule import edgebank_scores, rule_scores
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.progress import Reading, RoleProgress
from streamd.training.attempts import FILE as ATTEMPT
from streamd.training.attempts import MAX_FAILURES, begin_attempt, counting_failures, last_attempt
from streamd.training.bootstrap import FILE as BOOTSTRAP
from streamd.training.bootstrap import planned_range
from streamd.training.checkpoint import Cursor, build_facts, load_checkpoint, read_cursor, save_checkpoint
from streamd.training.incumbent import Incumbent
from streamd.training.keeping import Keeping
from streamd.training.learner import Learner
from streamd.training.observe import report
from streamd.training.recorder import Recorder, one_ahead
from streamd.training.replay import ReplayStore
from streamd.training.scores import Measures, label_measures, measures, ranks
from streamd.training.shadow import Comparison, Shadow, judge
from streamd.training.versions import Versions
from streamd.windows import Window, next_window
from streamd.windows.history import WindowRecord, append_record, history_until, truncate_records

log = structlog.get_logger()
FOLDER = "train"
POLL_SECONDS, KEEP_SECONDS = 0.05, 1.0
POPULARITY_HALF_LIFE = 3


def baseline_scores(facts_ECF: Float32) -> dict[str, Float32]:
    """Two baselines that cost nothing, from fact columns: EdgeBank (seen before) and popularity decayed over 12 h."""
    return {"edgebank": edgebank_scores(facts_ECF), "popularity": facts_ECF[..., LOG_SHARE + POPULARITY_HALF_LIFE]}


class ScoredWindow(NamedTuple):
    """table: model name -> measure -> value; num_known: scored events whose destination was one before."""

    table: dict[str, Measures]
    num_scored: int
    num_known: int


class Trainer:
    """Owner of graph, facts, model and replay store in the train process; everything runs on its one thread."""

    def __init__(
        self, settings: Settings, reader: LogReader, versions: Versions, clock: Clock, beat: Heartbeat,
        on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        """on_step: told the name of each step as it begins; tests stop the process there."""
        assert reader.state is not None
        self._settings, self._log, self._versions, self._clock, self._beat = settings, reader, versions, clock, beat
        self._on_step = on_step
        self._folder = settings.data_dir / FOLDER
        replay = ReplayStore.of(settings, self._folder / "replay")
        self._learner = Learner(settings, reader.state.schema, replay, reader.first_edge)
        self._learner.on_progress = self._on_progress
        self._recorder = Recorder(settings, reader)
        self._learner.make_room = self._recorder.make_room
        self._width_us = settings.windows.width_seconds * 1_000_000
        self._version, self._champion = "", ""
        self._not_followed = ""
        self._shadow: Shadow | None = None
        self._incumbent: Incumbent | None = None
        self._compared = Comparison()
        self._history_bytes = 0
        self._num_hidden = 0
        self._window_edge = self.edge = reader.first_edge
        self._resume()

    def run(self, stop: threading.Event) -> None:
        """Learn windows as they close until told to stop; a stop waits for the window in progress."""
        self.bootstrap()
        while not stop.is_set():
            self._log.refresh()
            self._tell_trained_until()
            windows = self._due()
            if not windows:
                self._touch("waiting")
                if time.monotonic() - self._keeping.done >= KEEP_SECONDS and self._keeping.wish() is not None:
                    self._renew_shadow()
                    self._keeping.keep(self.edge, self._window_edge)
                stop.wait(POLL_SECONDS)
                continue
            self.process(*windows)

    def _due(self) -> list[Window]:
        """The windows to learn next: one, or several as one where the trainer lags; those it began before a stop again."""
        begun = last_attempt(self._folder)
        most = self._settings.windows.merge_after
        found: list[Window] = []
        cursor = self.edge
        while (window := next_window(self._log, cursor, self._width_us)) is not None and len(found) <= most:
            found.append(window)
            cursor = window.end_edge
        if begun.edge == self.edge:
            return [w for w in found if w.end_edge <= begun.end_edge][: None if begun.failures < MAX_FAILURES else 1]
        return found[:most] if len(found) > most > 0 else found[:1]

    def process(self, *windows: Window) -> WindowRecord:
        """Score each window singly; learn, publish, record and checkpoint them as one, from the start if a stop cut it
        short before. Returns: the last one's record."""
        self._follow_rollback()
        self._hide_deleted()
        self._touch("scoring")
        window = Window(windows[0].start_us, windows[-1].end_us, windows[0].first_edge, windows[-1].end_edge)
        passed_over = begin_attempt(self._folder, window) >= MAX_FAILURES
        with counting_failures(self._folder):
            return self._process(window, windows, passed_over)

    def _process(self, window: Window, windows: Sequence[Window], passed_over: bool) -> WindowRecord:
        begun, parts = time.perf_counter(), []
        for part in windows:
            parts.append(self._score(part, not passed_over, max(1, self._settings.windows.max_events // len(windows))))
        scores, scored_by = parts[-1].table, self._champion or RULE
        scored = time.perf_counter()
        self._touch("learning")
        self._on_step("learn")
        verdict, why = judge(self._compared, self._settings.registry.gate_events)
        beside = self._incumbent is not None
        if beside and verdict == "proven":
            self._take_over(why)
        proven = Shadow.of(self._champion, self._learner) if verdict == "proven" and not beside else None
        learned, outcome = self._roll_back(why) if verdict == "worse" and not beside else self._learn(window, scores)
        if passed_over:
            log.error("window_passed_over", start=window.start_us, first_edge=window.first_edge, failures=MAX_FAILURES)
            outcome = Outcome(self._version, False, f"passed over: scoring or learning it failed {MAX_FAILURES} times")
        self._window_edge, self.edge = window.first_edge, window.end_edge
        if verdict != "open":
            metrics.gate_verdicts.labels(verdict).inc()
            self._compared = Comparison()
        if proven is not None:
            self._shadow = proven
        done = time.perf_counter()
        self._on_step("record")
        records = []
        for part, scored_part in zip(windows, parts, strict=True):
            own = outcome if part is windows[-1] else Outcome(scored_by, False, "learned as one with those behind it")
            records.append(WindowRecord(
                part.start_us, part.end_us, part.first_edge, part.end_edge, scored_part.num_scored, own.version, scored_by,
                own.promoted, own.reason, scored_part.table,
                learned.loss if own is outcome and learned and learned.finite else None,
                {"score": (scored - begun) / len(windows), "learn": (done - scored) / len(windows)},
                self._clock.now_us() / 1e6, scored_part.num_known))
            self._history_bytes = append_record(self._settings.data_dir, records[-1])
        self._on_step("checkpoint")
        self._checkpoint()
        if proven is not None:
            self._versions.prove(proven.name, why)
        self._learner.begin()
        self._renew_shadow()
        for record in records:
            report(record, self._learner, self._compared)
        return records[-1]

    def bootstrap(self) -> None:
        """At a first start on a log with a past: learn the newest of it at once, without scoring it, and publish that."""
        if self._learner.num_learned or self.edge > self._log.first_edge:
            return
        found = planned_range(self._settings, self._log, self._folder, self._incumbent is not None)
        if found is None:
            return
        log.info("bootstrap", first_edge=found.first_edge, events=found.end_edge - found.first_edge)
        self._recorder.rebuild(found.first_edge, on_slice=self._rebuilding(found.first_edge))
        self._learner.start_at(found.first_edge)
        self.edge, begun = found.first_edge, time.monotonic()
        recording = RoleProgress("bootstrapping", step="record")
        while self.edge < found.end_edge:
            window = next_window(self._log, self.edge, self._width_us)
            assert window is not None
            for chunk in self._recorder.chunks(window):
                self._learner.score(chunk)
                done = self._recorder.edge - found.first_edge
                self._touch("bootstrapping", recording.at(done, found.end_edge - found.first_edge))
            self.edge = window.end_edge
        learning = RoleProgress("bootstrapping", step="learn")
        self._learner.on_progress = lambda *done: self._touch("bootstrapping", learning.at(*done))
        learned = self._learner.learn(found.first_edge, self._settings.bootstrap.epochs)
        self._learner.on_progress = self._on_progress
        if learned is not None:
            self._publish(found.window(), {}, learned)
        self._window_edge = found.first_edge
        self._checkpoint()
        self._learner.begin()
        log.info("bootstrapped", version=self._version, events=found.end_edge - found.first_edge,
                 loss=learned and round(learned.loss, 4), seconds=round(time.monotonic() - begun, 1))

    def _learn(self, window: Window, scores: dict[str, Measures]) -> tuple[Learned | None, Outcome]:
        """Learn what was scored, and hand the version over."""
        learned = self._learner.learn(window.first_edge)
        self._learner.memory.forget(self._log.deletions.of_nodes)
        if learned is None:
            return None, Outcome(self._version, False, "no event of this window could be scored yet")
        self._on_step("publish")
        outcome = self._publish(window, scores, learned)
        metrics.versions.labels(str(outcome.promoted).lower()).inc()
        return learned, outcome

    def _publish(self, window: Window, scores: dict[str, Measures], learned: Learned) -> Outcome:
        """Hand a version over; the first that serves is the shadow too."""
        assert self._log.state is not None
        outcome = self._versions.publish(
            Candidate(window, window.end_edge, self._log.state.seq, self._learner.model.state_dict(),
                      self._learner.memory.tensors(), self._learner.memory.now_us, self._version, scores, learned),
            self._incumbent.name if self._incumbent else None)
        if outcome.refused:
            self._learner.refuse()
        elif outcome.promoted and self._shadow is None:
            self._shadow = Shadow.of(outcome.version, self._learner)
            self._versions.prove(outcome.version, "the first under its settings to serve")
        self._version = self._champion = outcome.version
        return outcome

    def _take_over(self, why: str) -> None:
        """From here on what is learned serves, instead of the version of other settings it was compared with."""
        assert self._incumbent is not None
        log.warning("settings_proven", instead_of=self._incumbent.name, why=why)
        self._incumbent = None

    def _roll_back(self, why: str) -> tuple[None, Outcome]:
        """Back to the last proven version, the trainer with it; what this window held is passed over."""
        assert self._shadow is not None
        log.warning("rolled_back", version=self._shadow.name, instead_of=self._champion, why=why)
        self._on_step("publish")
        self._versions.rollback("trainer", why)
        self._learner.restore_weights(self._shadow.model.state_dict(), None)
        self._learner.memory, self._learner.tail = self._shadow.memory.copy(), []
        self._version = self._champion = self._shadow.name
        return None, Outcome(self._champion, False, f"rolled back: {why}")

    def _score(self, window: Window, recorded: bool, max_events: int) -> ScoredWindow:
        parts: dict[str, list[Float32]] = {}
        events: list[Int64] = []
        known: list[Bools] = [np.zeros(0, np.bool_)]
        labels_before = len(self._learner.label_scores)
        for chunk in one_ahead(self._recorder.chunks(window, recorded=recorded, max_events=max_events)):
            logits = self._learner.score(chunk)
            self._touch("scoring")
            stands = self._shadow.score(chunk) if self._shadow is not None else None
            if chunk.score is None:
                continue
            if stands is not None and self._shadow is not None and self._shadow.name != self._champion:
                self._compared = self._compared.added(1 / ranks(logits), 1 / ranks(stands))
                parts.setdefault("shadow", []).append(stands)
            facts = chunk.scored_facts
            known.append(chunk.known_E)
            live = logits if self._learner.num_learned else rule_scores(facts)
            events.append(chunk.score.event_E.numpy())
            for name, scores in {"live": live, **baseline_scores(facts)}.items():
                parts.setdefault(name, []).append(scores)
        served = np.zeros((0, 0), np.float32)
        if self._incumbent is not None and parts and self._learner.num_learned:
            ours, served = self._incumbent.compare(
                np.concatenate(events), np.concatenate(parts["live"]), window, lambda: self._touch("scoring"))
            self._compared = self._compared.added(1 / ranks(ours), 1 / ranks(served))
        known_E = np.concatenate(known)
        table = {name: measures(np.concatenate(scores), known_E) for name, scores in parts.items()}
        if len(served):
            table["incumbent"] = measures(served)
        if labels := self._learner.label_scores[labels_before:]:
            live, constant, target = map(np.concatenate, zip(*labels, strict=True))
            for name, said in (("labels", live), ("labels_constant", constant)):
                table[name] = label_measures(self._settings.model.labels, said, target)
        return ScoredWindow(table, len(known_E), int(known_E.sum()))

    def _follow_rollback(self) -> None:
        """When someone moved the champion by hand, go on from that version's weights, memory replayed to here; beside it
        where it has other settings."""
        champion = self._versions.moved_by_hand()
        if champion is None or (self._incumbent and champion == self._incumbent.name):
            return
        if champion == self._champion:
            self._incumbent = None
            return
        try:
            if self._stand_beside(champion):
                return
            version = self._restored(champion)
            reason = "the log or the trainer is elsewhere"
        except VersionError as error:
            version, reason = None, str(error)
        if version is None:
            if champion != self._not_followed:
                log.error("champion_not_followed", version=champion, reason=reason)
            self._not_followed = champion
            return
        log.warning("following_champion", version=champion, instead_of=self._champion)
        self._learner.restore_weights(version.model.state_dict(), None)
        self._learner.memory = version.memory
        self._learner.tail = []
        self._learner.num_learned = max(self._learner.num_learned, 1)
        self._learner.begin()
        self._version = self._champion = champion
        self._compared, self._incumbent = Comparison(), None

    def _stand_beside(self, champion: str) -> bool:
        """Learn beside a champion of other settings, until what is learned here is proven. False where it has ours."""
        stored = self._versions.stored(champion)
        if {"model": stored.model, "window": stored.window_seconds} == self._fixed_settings():
            return False
        if not self._log.first_edge <= stored.edge <= self._log.num_edges:
            log.warning("champion_not_compared", version=champion, reason=f"the log does not hold edge {stored.edge}")
            return False
        log.warning("learning_beside_champion", version=champion, reason="it has other model or window settings")
        self._incumbent = Incumbent(
            self._settings, self._log, champion, stored, self._rebuilding(stored.edge))
        self._shadow, self._compared = None, Comparison()
        return True

    def _restored(self, name: str) -> Shadow | None:
        """A version with its memory carried to here; None where the log or the trainer is elsewhere."""
        stored = self._versions.stored(name)
        if not self._log.first_edge <= stored.edge <= self.edge:
            return None
        model = copy.deepcopy(self._learner.model)
        model.restore(stored.weights)
        memory = Memory.restored(stored.memory, stored.edge, stored.memory_us, model.device)
        while memory.edge < self.edge:
            window = next_window(self._log, memory.edge, self._width_us)
            assert window is not None
            for chunk in self._recorder.cut(window):
                model.advance(memory, chunk)
        return Shadow(name, model.eval(), memory, self._learner.carrier)

    def _checkpoint(self) -> None:
        self._save()
        self._learner.replay.sweep()
        self._keeping.keep(self.edge, self._window_edge)

    def _save(self) -> None:
        memory = self._learner.memory
        save_checkpoint(self._folder / "checkpoints", self._learner, Cursor(
            self.edge, self._window_edge, memory.edge, memory.now_us, self._learner.num_learned, self._history_bytes,
            self._version, self._champion, self._shadow.name if self._shadow else "",
            list(astuple(self._compared)), self._fixed_settings(),
            build_facts(), self._learner.replay.index(), [c.first_edge for c in self._learner.tail]))

    def _hide_deleted(self) -> None:
        """Take what deletes hide out of replay, once for each delete."""
        deletions = self._log.deletions
        if len(deletions.places) > self._num_hidden:
            self._num_hidden = len(deletions.places)
            self._learner.hide_deleted(deletions)

    def _renew_shadow(self) -> None:
        """Where compaction waits for the shadow only, which may hold what was deleted, the champion becomes it unproven."""
        wish = self._keeping.wish()
        if wish is None or self._shadow is None or self._shadow.name == self._champion:
            return
        if self._window_edge >= wish > min(first for first, _ in self._versions.named_windows()):
            self._shadow, self._compared = Shadow.of(self._champion, self._learner), Comparison()
            self._checkpoint()
            self._versions.prove(self._champion, "compaction was asked for; the version before may hold what was deleted")
            self._keeping.keep(self.edge, self._window_edge)

    def _resume(self) -> None:
        folder = self._folder / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        assert self._log.state is not None
        self._versions.sweep()
        shadow, lost = "", False
        try:
            cursor = read_cursor(folder)
            ours = cursor is not None and cursor.settings == self._fixed_settings()
            if cursor is not None and ours:
                load_checkpoint(folder, cursor, self._learner, self._log.state)
        except CorruptionError as error:
            log.error("checkpoint_lost", error=str(error), meaning="learning goes on from the champion")
            cursor, lost = None, self._resume_from_champion()
            shadow = (self._versions.shadow() or "") if lost else ""
        if cursor is not None and not ours:
            log.warning("learning_anew", reason="model or window settings are not those of the trainer's checkpoint")
            for name in (BOOTSTRAP, ATTEMPT):
                (self._folder / name).unlink(missing_ok=True)
            self._history_bytes = cursor.history_bytes if self._settings.bootstrap.max_events else 0
            cursor = None
            self._save()
        elif cursor is not None:
            if cursor.build != build_facts():
                log.warning("build_differs", checkpoint=cursor.build, now=build_facts(),
                            meaning="resumed weights may differ in the last bits")
            self.edge, self._version, self._champion = cursor.edge, cursor.version, cursor.champion
            self._history_bytes, self._window_edge = cursor.history_bytes, cursor.window_edge
            num_events, *sums = cursor.compared
            self._compared, shadow = Comparison(int(num_events), *sums), cursor.shadow
        truncate_records(self._settings.data_dir, self._history_bytes)
        started = time.perf_counter()
        self._tell_trained_until()
        self._keeping = Keeping(self._settings, self._versions, self._recorder.live, self.edge)
        self._recorder.rebuild(self.edge, on_slice=self._rebuilding(self.edge))
        if shadow:
            self._resume_shadow(shadow)
        if lost:
            self._save()
        compared, champion = self._compared, self._versions.champion()
        try:
            if champion is not None and self._stand_beside(champion):
                self._compared = compared
        except VersionError as error:
            log.error("champion_not_compared", version=champion, reason=str(error))
        self._hide_deleted()
        self._keeping.keep(self.edge, self._window_edge)
        log.info("trainer_started", edge=self.edge, version=self._version or RULE,
                 rebuild_seconds=round(time.perf_counter() - started, 3))

    def _resume_shadow(self, name: str) -> None:
        """The last proven version as the checkpoint named it; a stop may have come before the journal heard of it."""
        try:
            self._shadow = self._restored(name)
        except VersionError as error:
            log.error("shadow_lost", version=name, error=str(error), meaning="the champion takes its place unproven")
            self._shadow, self._compared = Shadow.of(self._champion, self._learner), Comparison()
            self._versions.prove(self._champion, "the version proven before it cannot be read")
            return
        if self._versions.shadow() != name:
            self._versions.prove(name, "proven before a restart")

    def _resume_from_champion(self) -> bool:
        """Where there is no checkpoint that can be read: weights and memory of what serves, a fresh optimizer, no past to
        replay. Returns: False where there is no champion of ours that can be read; learning begins as at a first start."""
        name = self._versions.champion()
        if name is None:
            return False
        try:
            stored = self._versions.stored(name)
        except VersionError as error:
            log.error("champion_not_followed", version=name, reason=str(error))
            return False
        own = {"model": stored.model, "window": stored.window_seconds} == self._fixed_settings()
        if not own or not self._log.first_edge <= stored.edge <= self._log.num_edges:
            log.error("champion_not_followed", version=name, reason="the log or the settings are others")
            return False
        self._learner.restore_weights(stored.weights, None)
        self._learner.memory = Memory.restored(stored.memory, stored.edge, stored.memory_us, self._learner.model.device)
        self._learner.num_learned = 1
        self._learner.begin()
        self.edge, self._window_edge = stored.edge, stored.first_edge
        self._version = self._champion = name
        self._history_bytes = history_until(self._settings.data_dir, self.edge)
        return True

    def _fixed_settings(self) -> dict[str, Any]:
        return {"model": self._settings.model.model_dump(mode="json"), "window": self._settings.windows.width_seconds}

    def _tell_trained_until(self) -> None:
        """Where the window of the next edge begins: all before is learned, or had no edges."""
        if self._log.num_edges:
            waits = self.edge < self._log.num_edges
            next_us = int(self._log.time_of(np.array([self.edge]))[0]) if waits else self._log.watermark
            metrics.trained_until.set(next_us // self._width_us * self._width_us / 1e6)

    def _rebuilding(self, until_edge: int) -> Callable[[int], None]:
        """Takes the graph's newest edge while graph and facts are made up to `until_edge`."""
        first = self._log.first_edge
        work = RoleProgress("rebuilding", metrics.rebuild_ratio)
        work.at(0, until_edge - first)

        def on_slice(edge: int) -> None:
            reading = work.at(edge - first, until_edge - first)
            self._beat.touch("rebuilding", edge=edge, **reading.fields())

        return on_slice

    def _on_progress(self, done: int, total: int) -> None:
        self._touch("learning")

    def _touch(self, state: str, reading: Reading | None = None) -> None:
        self._beat.touch(state, edge=self.edge, version=self._version or RULE,
                         lag=self._log.num_edges - self.edge,
                         **(reading.fields() if reading else {}))
