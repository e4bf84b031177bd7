"""Ways of keeping a model up to date, side by side over the same windows and negatives.

All are of one architecture, and share epochs, replay and starting point:

- live: learns every window after it was scored;
- frozen: learns like the live one until a cut, then its weights stand still while graph, facts,
  memory and the running statistics of its inputs move on;
- nightly weights, live state: learns each midnight (of event time) over the day before, from
  inputs as of each event;
- nightly: the same, but weights and state stand still for the day, and it learns from inputs of
  that staleness. On the first day, with no day before to stand on, it is the twin above.

And rules that cost nothing: EdgeBank, popularity at each half-life, partners + popularity.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamd.evaluation.sights import NightlySight, StaleSight, nightly_memory_step
from streamd.events import Bools, Float32
from streamd.graph.fact_columns import LOG_SHARES, NUM_HALF_LIVES
from streamd.models.rule import NAME as RULE
from streamd.models.rule import edgebank_scores, rule_scores
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.training.learner import Learner
from streamd.training.recorder import Chunk, FreshSight, Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.training.scores import Measures, measures
from streamd.windows import Window

DAY_US = 86_400_000_000
SKIPPED = 0.05
LEARNED = ("live", "nightly", "nightly_live", "frozen")


@dataclass(frozen=True, kw_only=True, slots=True)
class RegimeWindow:
    """Scores of one window: regime or rule -> measures; popularity once per half-life. num_known:
    scored events whose destination was one before. seconds: regime -> wall time."""

    window: Window
    num_scored: int
    num_known: int
    scores: dict[str, Measures]
    seconds: dict[str, float]


class Regimes:
    """Owner of a learner per regime and of up to two recorders; one thread."""

    def __init__(
        self,
        settings: Settings,
        log: LogReader,
        names: Sequence[str],
        cut: int,
        initial_epochs: int = 0,
        stale_events: int | None = 0,
    ) -> None:
        """names: of LEARNED. cut: the edge from which the frozen one stands still.

        initial_epochs: where above 0, what lies before the cut is not scored but learned at once,
        for so many epochs, by one model that all begin as; its first twentieth only fills the
        state. stale_events: how many events old facts are; None: a window.
        """
        self._settings = settings
        self._cut = cut
        self._epochs = initial_epochs
        self._first = log.first_edge
        self._width_us = settings.windows.width_seconds * 1_000_000
        self._day: int | None = None
        self._day_edge = 0
        self._recorder = Recorder(settings, log)
        if stale_events != 0:
            fresh = FreshSight(self._recorder.live)
            self._recorder.sight = StaleSight(fresh, self._recorder.live, stale_events)
        self._nightly_recorder = Recorder(settings, log) if "nightly" in names else None
        hours = max(1, DAY_US // self._width_us)
        daily = settings.model_copy(
            update={
                "training": settings.training.model_copy(
                    update={"replay_events": settings.training.replay_events * hours}
                )
            }
        )
        self._learners = {
            name: Learner(own, log, ReplayStore.of(own))
            for name, own in ((n, daily if n.startswith("nightly") else settings) for n in names)
        }
        self._base = Learner(settings, log, ReplayStore.of(settings)) if initial_epochs else None
        self._nightly_is_stale = False
        self._seconds = dict.fromkeys(names, 0.0)
        self.on_initial: Callable[[int, int], None] = lambda done, total: None
        """Told (steps, in all) while what lies before the cut is learned at once."""

    def is_initial(self, window: Window) -> bool:
        """Whether a window is learned at once with those before it, and not scored."""
        return self._epochs > 0 and window.first_edge < self._cut

    def window(self, window: Window) -> RegimeWindow | None:
        """Score a window under every regime, then let those learn whose turn it is. None for one
        before the cut that is learned at once."""
        if self._base is not None and self.is_initial(window):
            shown = self._first + int(SKIPPED * (self._cut - self._first))
            for chunk in prefetch(self._recorder.chunks(window, first_recorded=shown)):
                self._base.score(chunk)
            return None
        if self._base is not None:
            self._begin_alike(window.first_edge)
        self._seconds = dict.fromkeys(self._learners, 0.0)
        self._midnight(window)
        parts: dict[str, list[Float32]] = {}
        known: list[Bools] = [np.zeros(0, np.bool_)]
        if self._nightly_is_stale and self._nightly_recorder is not None:
            pool = self._recorder.sight.pool_of(window)
            self._nightly_recorder.sight = NightlySight(self._nightly_recorder.live, pool)
        for name in ("live", "frozen"):
            if name in self._learners:
                self._learners[name].begin()
        for chunk in prefetch(self._recorder.chunks(window)):
            for name in self._learners:
                if name != "nightly" or not self._nightly_is_stale:
                    self._add(parts, name, chunk)
            if chunk.score is not None:
                known.append(chunk.known_E)
                for name, scores in _rules(chunk.scored_facts).items():
                    parts.setdefault(name, []).append(scores)
        if self._nightly_is_stale and self._nightly_recorder is not None:
            for chunk in self._nightly_recorder.chunks(window):
                self._add(parts, "nightly", chunk)
        if "live" in self._learners:
            self._learn("live", window.first_edge)
        if "frozen" in self._learners and window.first_edge < self._cut:
            self._learn("frozen", window.first_edge)
        elif "frozen" in self._learners:
            self._learners["frozen"].observe()
        known_E = np.concatenate(known)
        table = {name: measures(np.concatenate(scores), known_E) for name, scores in parts.items()}
        return RegimeWindow(
            window=window,
            num_scored=len(known_E),
            num_known=int(known_E.sum()),
            scores=table,
            seconds=self._seconds,
        )

    def _begin_alike(self, edge: int) -> None:
        """Learn all before the cut, and let every regime begin as the model that did."""
        assert self._base is not None
        self._base.on_progress = self.on_initial
        self._base.learn(edge, epochs=self._epochs)
        self._base.begin()
        for learner in self._learners.values():
            learner.take_over(self._base)
        self._base = None

    def _midnight(self, window: Window) -> None:
        """When a window begins another day, the nightly ones learn the day before and catch up with
        it."""
        day = window.start_us // DAY_US
        if day == self._day:
            return
        for name in ("nightly_live", "nightly"):
            if self._day is not None and name in self._learners:
                self._learn(name, self._day_edge)
                self._learners[name].begin()
        if self._day is not None and self._nightly_recorder is not None:
            self._learners["nightly"].memory_step = nightly_memory_step
            self._nightly_is_stale = True
            self._nightly_recorder.rebuild(window.first_edge)
        self._day = day
        self._day_edge = window.first_edge

    def _learn(self, name: str, edge: int) -> None:
        begun = time.perf_counter()
        self._learners[name].learn(edge)
        self._seconds[name] += time.perf_counter() - begun

    def _add(self, parts: dict[str, list[Float32]], name: str, chunk: Chunk) -> None:
        begun = time.perf_counter()
        learner = self._learners[name]
        logits = learner.score(chunk)
        self._seconds[name] += time.perf_counter() - begun
        if chunk.score is not None:
            scores = logits if learner.num_learned else rule_scores(chunk.scored_facts)
            parts.setdefault(name, []).append(scores)


def _rules(facts_ECF: Float32) -> dict[str, Float32]:
    return {"edgebank": edgebank_scores(facts_ECF), RULE: rule_scores(facts_ECF)} | {
        f"popularity_{h}": facts_ECF[..., LOG_SHARES][..., h] for h in range(NUM_HALF_LIVES)
    }


def best_half_life(windows: Sequence[RegimeWindow], first: int, cut: int) -> int:
    """Number of the popularity half-life with the best MRR over scored windows that begin in edges
    [first, cut); the third where there are none."""
    tuning = [w for w in windows if first <= w.window.first_edge < cut and w.num_scored]
    if not tuning:
        return 2
    weight = [w.num_scored for w in tuning]
    return int(
        np.argmax(
            [
                np.average([w.scores[f"popularity_{h}"]["mrr"] for w in tuning], weights=weight)
                for h in range(NUM_HALF_LIVES)
            ]
        )
    )
