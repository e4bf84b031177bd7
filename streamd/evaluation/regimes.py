"""Regimes are ways of keeping a model up to date, compared over the same windows and negatives.

All have the same architecture, and share epochs, replay and starting point:

- live: trains on every window after scoring it;
- live without replay: the same, but never trains on past events again;
- frozen: trains like live until a cut. Then its weights and its rate of new destinations are fixed,
  while graph, facts, memory and the running statistics of its inputs advance;
- nightly weights, live state: trains at each midnight (of event time) on the day before, with
  inputs as of each event;
- nightly: the same, but its weights, graph, facts and memory are fixed for the day, and it trains
  on equally stale inputs. On the first day, with no day before it, it equals the regime above.

Rules without training are scored too: EdgeBank, popularity at each half-life, and partners +
popularity; for labels, means.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from streamd.evaluation.freshness import NightlyView, StaleView, nightly_memory_step
from streamd.evaluation.label_scores import LabelRules
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64
from streamd.graph.facts.columns import LOG_SHARES, NUM_HALF_LIVES
from streamd.graph.ranking import among_candidates
from streamd.models.rule import NAME as RULE
from streamd.models.rule import edgebank_scores, rule_scores
from streamd.training.event_view import FreshView
from streamd.training.learner import Learner
from streamd.training.learning_settings import LearningSettings
from streamd.training.measures import Measures, measures, scores_of_sets
from streamd.training.recorder import Chunk, Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.windows import Window, is_mostly_late
from streamd.windows.history import SetScores
from streamd.windows.novelty import Novelty

T = TypeVar("T")
DAY_US = 86_400_000_000
"""A day in microseconds."""
SKIPPED = 0.05
"""Share of the events before the cut that are not trained on: they only fill graph, facts and
memory."""
LEARNED = ("live", "no_replay", "nightly", "nightly_live", "frozen")
"""The regimes, which train; rules do not."""
ALIKE = {"frozen": "live", "nightly": "nightly_live"}
"""Regime -> the one that it equals at first: until the cut, and until the first night."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegimeWindow:
    """The scores of one window.

    num_scored: number of scored events. num_known: of those with a known destination. novelty: of
    the scored events.
    scores: regime or rule -> measures; popularity once for each half-life.
    seconds: regime -> wall time to score and train.
    num_labels: number of scored labels. labels: regime or rule of labels -> measures of them.
    edge_sets: as in `scores_of_sets`. node_sets: as in `label_scores_of_sets`.
    nightly_learned: whether the nightly models trained before this window; until then they answer
    as the rule does.
    mean_negatives: mean number of negatives of a scored event, 0 without any.
    """

    window: Window
    num_scored: int
    num_known: int
    scores: dict[str, Measures]
    seconds: dict[str, float]
    num_labels: int = 0
    labels: dict[str, Measures] = field(default_factory=dict)
    edge_sets: dict[str, SetScores] = field(default_factory=dict)
    node_sets: dict[str, SetScores] = field(default_factory=dict)
    nightly_learned: bool = True
    mean_negatives: float = 0.0
    novelty: Novelty = field(default_factory=lambda: Novelty.join([]))


class Regimes:
    """Runs regimes over windows. It owns its learners, which others only read, and its recorders.

    learners: regime -> its learner.
    base: the one model of the initial training on all events before the cut; None after that
    training, and without it.

    Owner: one thread.
    """

    def __init__(
        self,
        settings: LearningSettings,
        log: LogReader,
        names: Sequence[str],
        cut: int,
        initial_epochs: int = 0,
        stale_events: int | None = 0,
        novelty_of: Mapping[int, Novelty] | None = None,
    ) -> None:
        """names: of LEARNED. cut: id of the event at which the frozen weights become fixed.
        initial_epochs: above 0, events before the cut are not scored. One model trains on them at
        once, for this many epochs, and all regimes begin as copies of it. The first twentieth only
        fills graph, facts and memory.
        stale_events: age of facts in events; None: a window.
        novelty_of: first event of a window -> novelty of its scored events, for a run with older
        facts; it comes from a run with fresh ones.
        """
        # Settings and the bounds of windows.
        self._settings = settings
        self._log = log
        self._cut = cut
        self._epochs = initial_epochs
        self._novelty_of = novelty_of
        self._first = log.first_edge
        self._edge_sets = log.state.schema.edge_set_names
        self._width_us = settings.width_us
        self._day: int | None = None
        self._day_edge = 0

        # One recorder for the regimes with a live state, one for the nightly model.
        self._recorder = Recorder(settings, log)
        if stale_events != 0:
            fresh = FreshView(self._recorder.live)
            self._recorder.view = StaleView(fresh, self._recorder.live, stale_events)
        self._nightly_recorder = Recorder(settings, log) if "nightly" in names else None

        # A learner for each regime. A night replays as many events as the windows of its day
        # together.
        hours = max(1, DAY_US // self._width_us)
        daily = _with_training(settings, replay_events=settings.training.replay_events * hours)
        of_regime = {
            "no_replay": _with_training(settings, replay="none", replay_events=0),
            "nightly": daily,
            "nightly_live": daily,
        }
        self.learners = {
            name: _new_learner(of_regime.get(name, settings), log, stale_events) for name in names
        }
        # While two regimes are equal, only one of them runs.
        self._alike = {n: other for n, other in ALIKE.items() if {n, other} <= set(names)}
        self._label_rules = LabelRules(log.state.schema.node_set_names)
        self.base = _new_learner(settings, log, stale_events) if initial_epochs else None
        self._nightly_is_stale = False
        self._seconds = dict.fromkeys(names, 0.0)
        self.on_initial: Callable[[int, int], None] = lambda done, total: None
        """Called with (steps done, steps in all) during the initial training."""

    @property
    def _running(self) -> dict[str, Learner]:
        """The learners of regimes that differ from all others by now."""
        return {name: own for name, own in self.learners.items() if name not in self._alike}

    def _part(self, name: str) -> None:
        """Separate a regime, with a copy of the state of the one that it has equalled."""
        if name in self._alike:
            self.learners[name].take_over(self.learners[self._alike.pop(name)])

    def _add_alike(self, of_regime: dict[str, T]) -> None:
        """Copy the values of running regimes to the regimes that still equal them."""
        for name, other in self._alike.items():
            if other in of_regime:
                of_regime[name] = of_regime[other]

    def is_initial(self, window: Window) -> bool:
        """Whether a window is only part of the initial training, and not scored."""
        return self._epochs > 0 and window.first_edge < self._cut

    def window(self, window: Window) -> RegimeWindow | None:
        """Score a window under every regime, then train the regimes that are due.

        1. Train those that are due at the cut or at midnight.
        2. Score events and labels under all regimes and rules.
        3. Train those that are due after each window: earlier, scores would not be predictions.
        Returns: None for a window that is only part of the initial training.
        """
        # Like the trainer, neither score nor train on a window of mostly late events.
        recorded = not is_mostly_late(self._log, window)

        # Before the cut: record the window for the initial training.
        if self.base is not None and self.is_initial(window):
            self._read(window, recorded, self.base)
            return None

        # 1. Regimes that train at the cut or at midnight do so before the window is scored.
        if self.base is not None:
            self._begin_alike(window.first_edge)
        self._seconds = dict.fromkeys(self.learners, 0.0)
        self._midnight(window)
        if window.first_edge >= self._cut:
            self._freeze()
        nightly_learned = "nightly" in self.learners and self.learners["nightly"].num_learned > 0

        # 2. Score by all, before any training on the window.
        for name in ("live", "no_replay", "frozen"):
            if name in self._running:
                self.learners[name].begin()
        self._label_rules.begin()
        num_labelled = {name: len(own.label_scores) for name, own in self._running.items()}
        parts, novelty, set_E, num_negatives_E = self._score(window, recorded)
        heads = {
            name: own.label_scores[num_labelled[name] :]
            for name, own in self._running.items()
            if len(own.label_scores) > num_labelled[name]
        }
        self._add_alike(parts)
        self._add_alike(heads)
        labels = self._label_rules.measured(self._settings.model.labels, heads)
        # 3. Train.
        self._learn_by_turns(window.first_edge)
        self._add_alike(self._seconds)

        novelty = novelty if self._novelty_of is None else self._novelty_of[window.first_edge]
        all_scores = {name: np.concatenate(scores) for name, scores in parts.items()}
        return RegimeWindow(
            window=window,
            num_scored=len(set_E),
            num_known=int(novelty.known_E.sum()),
            scores=self._measure(all_scores, novelty),
            seconds=self._seconds,
            num_labels=labels.num_scored,
            labels=labels.table,
            edge_sets=scores_of_sets(all_scores, novelty, set_E, num_negatives_E, self._edge_sets),
            node_sets=labels.node_sets,
            nightly_learned=nightly_learned,
            mean_negatives=float(num_negatives_E.mean()) if len(set_E) else 0.0,
            novelty=novelty,
        )

    def _measure(self, all_scores: dict[str, Float32], novelty: Novelty) -> dict[str, Measures]:
        """Measures of every regime and rule. Regimes that are alike are measured once."""
        running = {name: s for name, s in all_scores.items() if name not in self._alike}
        measured = {name: measures(scores, novelty) for name, scores in running.items()}
        self._add_alike(measured)
        return {name: measured[name] for name in all_scores}

    def _read(self, window: Window, recorded: bool, base: Learner) -> None:
        """Record a window before the cut for the initial training."""
        first = self._first + int(SKIPPED * (self._cut - self._first))
        for chunk in prefetch(self._recorder.chunks(window, recorded, first_recorded=first)):
            base.score(chunk)
            if chunk.labels is not None:
                self._label_rules.add(chunk.labels)

    def _score(
        self, window: Window, recorded: bool
    ) -> tuple[dict[str, list[Float32]], Novelty, Int64, Int64]:
        """Score a window chunk by chunk under every regime and rule.

        Returns: their scores, float32[E, 101] for each chunk; the novelty of the events; and for
        each event the number of its edge set and the number of its negatives, int64[E].
        """
        if self._nightly_is_stale and self._nightly_recorder is not None:
            # The pool of fresh facts, so that nightly ranks the same negatives as the others.
            pool = self._recorder.view.pool_of(window)
            self._nightly_recorder.view = NightlyView(self._nightly_recorder.live, pool)

        # Rules, and regimes with a live state.
        parts: dict[str, list[Float32]] = {}
        novelty = []
        sets = [np.zeros(0, np.int64)]
        num_negatives = [np.zeros(0, np.int64)]
        for chunk in prefetch(self._recorder.chunks(window, recorded)):
            if chunk.labels is not None:
                self._label_rules.add(chunk.labels)
            for name in self._running:
                if name != "nightly" or not self._nightly_is_stale:
                    self._add(parts, name, chunk)
            if chunk.score is not None:
                novelty.append(chunk.novelty)
                sets.append(chunk.edge_set_E)
                num_negatives.append(chunk.num_negatives_E)
                for name, scores in _rules(chunk.scored_facts).items():
                    ranked = among_candidates(scores, chunk.is_candidate_EC)
                    parts.setdefault(name, []).append(ranked)

        # The nightly model, with its own recorder.
        if self._nightly_is_stale and self._nightly_recorder is not None:
            for chunk in self._nightly_recorder.chunks(window, recorded):
                self._add(parts, "nightly", chunk)
        return (
            parts,
            Novelty.join(novelty),
            np.concatenate(sets),
            np.concatenate(num_negatives),
        )

    def _learn_by_turns(self, edge: int) -> None:
        """Train the regimes that train after each window. edge: the window's first event."""
        for name in ("live", "no_replay"):
            if name in self.learners:
                self._learn(name, edge)
        # A frozen model's statistics of inputs keep advancing.
        if "frozen" in self._running and edge < self._cut:
            self._learn("frozen", edge)
        elif "frozen" in self._running:
            self.learners["frozen"].update_statistics()

    def _begin_alike(self, edge: int) -> None:
        """Train on all events before the cut, and let every regime begin as a copy of that
        model."""
        assert self.base is not None
        self.base.on_progress = self.on_initial
        self.base.learn(edge, epochs=self._epochs)
        self.base.begin()
        # Equal copies, so that regimes differ only by their later training.
        for learner in self.learners.values():
            learner.take_over(self.base)
        self.base = None

    def _freeze(self) -> None:
        """Fix the frozen regime's rate of new destinations; its weights get no more training."""
        self._part("frozen")
        if "frozen" in self.learners:
            self.learners["frozen"].model.new_destinations.hold()

    def _midnight(self, window: Window) -> None:
        """If a window begins another day, train the nightly models on the day before it.

        1. Train, on inputs and memory recorded during the day.
        2. Separate nightly from nightly_live.
        3. Advance nightly's graph and facts to the window, fixed for the new day.
        """
        day = window.start_us // DAY_US
        if day == self._day:
            return
        for name in ("nightly_live", "nightly"):
            if self._day is not None and name in self._running:
                self._learn(name, self._day_edge)
                self.learners[name].begin()
        if self._day is not None:
            self._part("nightly")
        if self._day is not None and self._nightly_recorder is not None:
            # From here on its memory and facts are those of midnight, so it has no rate of new
            # destinations.
            self.learners["nightly"].memory_step = nightly_memory_step
            self.learners["nightly"].model.new_destinations.stop()
            self._nightly_is_stale = True
            self._nightly_recorder.rebuild(window.first_edge)
        self._day = day
        self._day_edge = window.first_edge

    def _learn(self, name: str, edge: int) -> None:
        """Train a regime on the events that it scored, and add to its wall time. edge: the first
        event."""
        begun = time.perf_counter()
        self.learners[name].learn(edge)
        self._seconds[name] += time.perf_counter() - begun

    def _add(self, parts: dict[str, list[Float32]], name: str, chunk: Chunk) -> None:
        """Score a chunk under a regime, by the rule before its first training; add the scores."""
        begun = time.perf_counter()
        learner = self.learners[name]
        logits = learner.score(chunk)
        self._seconds[name] += time.perf_counter() - begun
        if chunk.score is not None:
            # Logits of an untrained model are random, so the rule answers, as in production.
            scores = logits if learner.num_learned else rule_scores(chunk.scored_facts)
            ranked = among_candidates(scores, chunk.is_candidate_EC)
            parts.setdefault(name, []).append(ranked)


def _new_learner(settings: LearningSettings, log: LogReader, stale_events: int | None) -> Learner:
    """A learner for facts of an age, as in `Regimes`."""
    learner = Learner(settings, log, ReplayStore.of(settings))
    if stale_events != 0:
        # Older facts take destinations for new that had their first events since.
        learner.model.new_destinations.stop()
    return learner


def _with_training(settings: LearningSettings, **changed: int | str) -> LearningSettings:
    """The settings with some valid values of `training` replaced."""
    return replace(settings, training=settings.training.model_copy(update=changed))


def _rules(facts_ECF: Float32) -> dict[str, Float32]:
    """Scores by each rule, float32[E, C]."""
    return {"edgebank": edgebank_scores(facts_ECF), RULE: rule_scores(facts_ECF)} | {
        f"popularity_{h}": facts_ECF[..., LOG_SHARES][..., h] for h in range(NUM_HALF_LIVES)
    }


def best_half_life(windows: Sequence[RegimeWindow], first: int, cut: int) -> int:
    """Number of the popularity half-life with the best MRR before the cut.

    It is chosen on scored windows that begin in the events [first, cut); without any it is the
    third.
    """
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
