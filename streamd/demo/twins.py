"""What a user would have otherwise: nightly and frozen twins of the live model, scored on the same negatives.

All are of the live model's architecture, epochs, replay and starting point. They read the log as it grows, each window
after it closed, in the demo's own process:

- frozen: learns hour by hour like the live model until 30% of the events are past, then its weights stand still while
  graph, facts and memory move on;
- nightly weights, live state: learns each midnight (of event time) over the day before, from inputs as of each event;
- nightly: the same, but weights and state stand still for the day, and it learns from inputs of that staleness. On the
  first day, with no day before to stand on, it is the twin above.
"""

import threading
from dataclasses import dataclass

import numpy as np

from streamd.events import Float32
from streamd.graph.facts import LOG_SHARE, LOG_SINCE_SENT, NEVER_LOG_SECONDS
from streamd.models.rule import rule_scores
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.training.learner import Learner
from streamd.training.recorder import RecordedChunk, Recorder
from streamd.training.replay import ReplayStore
from streamd.training.scores import Measures, measures
from streamd.windows import Window, next_window

DAY_US = 86_400_000_000
FROZEN_AFTER = 0.3
NUM_HALF_LIVES = 5
REGIMES = ("nightly", "nightly_live", "frozen", "edgebank")


@dataclass(frozen=True)
class TwinWindow:
    """Scores of one window: regime -> measures; popularity once per half-life."""

    window: Window
    num_scored: int
    scores: dict[str, Measures]


class Twins:
    """Owner of three learners and two recorders, all on its one thread; results appear in `windows`."""

    def __init__(self, settings: Settings, num_events: int) -> None:
        """num_events: how many edges the stream will have in all."""
        self._settings = settings
        self._cut = int(FROZEN_AFTER * num_events)
        self._width_us = settings.windows.width_seconds * 1_000_000
        self._stop = threading.Event()
        self._day: int | None = None
        self._day_edge = 0
        self.windows: list[TwinWindow] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="twins", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def cut(self) -> int:
        """First edge after the first 30% of events."""
        return self._cut

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - told to the main thread, which ends the demo
            self.error = error

    def _follow(self) -> None:
        log = LogReader(self._settings.data_dir)
        while not log.refresh() or not log.num_edges:
            if self._stop.wait(0.05):
                return
        assert log.state is not None
        schema = log.state.schema
        hours = DAY_US // self._width_us
        daily = self._settings.model_copy(update={"training": self._settings.training.model_copy(
            update={"replay_events": self._settings.training.replay_events * hours})})
        self._frozen = Learner(self._settings, schema, self._replay())
        self._nightly_live = Learner(daily, schema, self._replay())
        self._nightly = Learner(daily, schema, self._replay())
        self._moving, self._standing = Recorder(self._settings, log), Recorder(self._settings, log)
        edge = 0
        while not self._stop.is_set():
            log.refresh()
            window = next_window(log, edge, self._width_us)
            if window is None:
                self._stop.wait(0.05)
                continue
            self._midnight(window)
            self.windows.append(self._window(window))
            edge = window.end_edge

    def _replay(self) -> ReplayStore:
        s = self._settings
        return ReplayStore(None, max(1, s.training.replay_capacity_events // s.model.memory_chunk), s.training.seed)

    def _midnight(self, window: Window) -> None:
        """When a window begins another day, the nightly twins learn the day before and catch up with it."""
        day = window.start_us // DAY_US
        if day == self._day:
            return
        if self._day is not None:
            for learner in (self._nightly_live, self._nightly):
                learner.learn(self._day_edge)
                learner.begin()
            self._nightly.standing = True
            self._standing.rebuild(window.first_edge)
        self._day, self._day_edge = day, window.first_edge

    def _window(self, window: Window) -> TwinWindow:
        pool = self._moving.live.destinations()
        parts: dict[str, list[Float32]] = {}
        frozen = window.first_edge >= self._cut
        self._frozen.begin()
        for chunk in self._moving.chunks(window):
            self._add(parts, "frozen", self._frozen, chunk)
            self._add(parts, "nightly_live", self._nightly_live, chunk)
            if not self._nightly.standing:
                self._add(parts, "nightly", self._nightly, chunk)
            if chunk.score is not None:
                for name, scores in _baselines(chunk.score.facts_ECF.numpy()).items():
                    parts.setdefault(name, []).append(scores)
        if self._nightly.standing:
            for chunk in self._standing.chunks(window, standing=True, pool=pool):
                self._add(parts, "nightly", self._nightly, chunk)
        if not frozen:
            self._frozen.learn(window.first_edge)
        table = {name: measures(np.concatenate(scores)) for name, scores in parts.items()}
        return TwinWindow(window, sum(len(x) for x in parts.get("frozen", [])), table)

    @staticmethod
    def _add(parts: dict[str, list[Float32]], name: str, learner: Learner, chunk: RecordedChunk) -> None:
        logits = learner.score(chunk)
        if chunk.score is not None:
            scores = logits if learner.num_learned else rule_scores(chunk.score.facts_ECF.numpy())
            parts.setdefault(name, []).append(scores)


def _baselines(facts_ECF: Float32) -> dict[str, Float32]:
    seen = (facts_ECF[..., LOG_SINCE_SENT] < NEVER_LOG_SECONDS).astype(np.float32)
    return {"edgebank": seen} | {f"popularity_{h}": facts_ECF[..., LOG_SHARE + h] for h in range(NUM_HALF_LIVES)}
