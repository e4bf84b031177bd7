"""A backtest runs the trainer's loop over a recorded log, to measure the scores that a user would
have seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from streamd.evaluation.compared import (
    MEASURES,
    NOVELTY_MEASURES,
    mean_seconds,
    means,
    measure_over,
    mrr_difference,
)
from streamd.evaluation.label_scores import AVERAGE, MEAN
from streamd.evaluation.regimes import DAY_US, LEARNED, Regimes, RegimeWindow, best_half_life
from streamd.eventlog.reader import LogReader
from streamd.graph.label_history import LAST_LABELS
from streamd.graph.negatives import NUM_SCORED
from streamd.number_texts import count_noun
from streamd.training.learning_settings import LearningSettings
from streamd.training.measures import Measures
from streamd.windows import Window, is_mostly_late, recorded_windows
from streamd.windows.history import SetScores
from streamd.windows.intervals import Difference, score_text
from streamd.windows.means import ALL, KNOWN, mean_negatives
from streamd.windows.novelty import NOVELTIES

# Regimes and rules in the order of the report, with the names that it prints.
TITLES = {
    "live": "live",
    "no_replay": "live without replay",
    "nightly": "nightly",
    "nightly_live": "nightly weights, live state",
    "frozen": "frozen weights, live state",
    "rule": "partners + popularity",
    "edgebank": "EdgeBank",
    "popularity": "popularity",
}
NIGHTLY = ("nightly", "nightly_live")
"""Regimes that train at midnight, UTC, of event time."""
RULES = ("rule", "edgebank", "popularity")
"""Rules, which need no training."""
SHORT_TITLES = {
    "live": "live",
    "nightly": "nightly",
    "frozen": "frozen\nweights",
    "rule": "partners +\npopularity",
    "edgebank": "EdgeBank",
}
"""Columns of the tables by set in a terminal of 80 columns."""
LABEL_RULES = {AVERAGE: f"mean of a node's last {LAST_LABELS}", MEAN: "mean of all so far"}
"""Rules for labels, with the names that the report prints."""
SHORT_LABEL_TITLES = {
    "live": "live",
    "nightly": "nightly",
    "frozen": "frozen\nweights",
    AVERAGE: f"mean of\nlast {LAST_LABELS}",
    MEAN: "mean",
}
COLUMNS = (
    "",
    "MRR",
    "MRR\nknown",
    "Hits@10",
    "AP",
    "AUC",
    "s per\nwindow",
    "live is\nbetter by",
)
"""Head of `Result.table`; the five columns after the first are MEASURES."""
SLICE_EDGES = 1_000_000
"""Events in one read of `has_one_destination`: 24 MB."""
LABEL_MEASURES = {"ndcg10": "NDCG@10", "ap": "AP", "auc": "AUC", "mae": "MAE", "rmse": "RMSE"}
"""Measures of labels, with the names that the report prints; a task has one or two of them."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a backtest.

    initial: share of the log's events before the reported ones.
    initial_epochs: number of epochs of one training on that share; 0 trains on it window by window.
    stale: ages of facts in events (None: a window) with each of which the live model is run again.
    from_cut: whether a window begins with the first reported event, as in published protocols.
    """

    initial: float = 0.3
    initial_epochs: int = 0
    stale: tuple[int | None, ...] = ()
    from_cut: bool = False


@dataclass(frozen=True)
class Result:
    """The results of a backtest.

    windows: the reported windows, of the run with fresh facts.
    half_life: number of the popularity half-life, chosen on the windows before them.
    stale: age of facts -> event-weighted means of the live model, the fresh run included.
    num_left_out: windows of mostly late events, which are not scored.
    """

    windows: list[RegimeWindow]
    half_life: int
    stale: dict[int | None, Measures]
    num_left_out: int = 0

    @property
    def num_events(self) -> int:
        """Number of scored events in the windows."""
        return sum(w.num_scored for w in self.windows)

    @property
    def mean_negatives(self) -> float:
        """Mean number of negatives of a scored event."""
        weights = [w.num_scored for w in self.windows]
        return float(np.average([w.mean_negatives for w in self.windows], weights=weights))

    def mean_negatives_of_sets(self) -> dict[str, float]:
        """`mean_negatives` of each edge set's events; empty if the log has one edge set."""
        # A window contains only the sets with events in it.
        names = dict.fromkeys(name for w in self.windows for name in w.edge_sets)
        return {
            name: mean
            for name in names
            if (
                mean := mean_negatives(
                    w.edge_sets[name] for w in self.windows if name in w.edge_sets
                )
            )
            is not None
        }

    def table(self) -> list[list[str]]:
        """The report's table as text: a row for each regime and rule, then one for each age of
        facts."""
        rows = []
        for name in self.names():
            seconds = self.seconds(name)
            rows.append(
                [
                    TITLES[name],
                    *cells(self.mean(name)),
                    "" if seconds is None else f"{seconds:.3f}",
                    "" if name == "live" else self.difference("live", name).text(4),
                ]
            )
        return rows + [
            [stale_title(age), *cells(m), "", ""] for age, m in self.stale.items() if age != 0
        ]

    def novelty_counts(self) -> dict[str, int]:
        """Number of scored events in each part of NOVELTIES."""
        counts = [asdict(w.novelty.counts) for w in self.windows]
        return {name: sum(one[name] for one in counts) for name in NOVELTIES}

    def novelty_table(self) -> list[list[str]]:
        """MRR by novelty of the events as text, the head first: numbers of events, then a row for
        each regime and rule, and one for each age of facts. "-" if a part has no events."""
        numbers = [self.num_events, *self.novelty_counts().values()]
        rows = [["MRR by novelty", "all", *(n.replace(" ", "\n") for n in NOVELTIES.values())]]
        rows.append(["events", *(f"{number:,}" for number in numbers)])
        means_of = {TITLES[name]: self.mean(name) for name in self.names()}
        means_of |= {stale_title(age): m for age, m in self.stale.items() if age != 0}
        return rows + [
            [title, *cells(m, ("mrr", *NOVELTY_MEASURES))] for title, m in means_of.items()
        ]

    def label_table(self) -> list[list[str]]:
        """Scores of labels as text, the head first: a row for each regime and each rule of labels.
        Empty if no labels were scored."""
        # A window of one class may have labels and no measure.
        measured = [m for m in LABEL_MEASURES if self._label_mean(AVERAGE, m) is not None]
        if not measured:
            return []
        rows = [["labels, by the head of", *(LABEL_MEASURES[m] for m in measured)]]
        for name, title in (TITLES | LABEL_RULES).items():
            means_of = [self._label_mean(name, m) for m in measured]
            if name not in self._absent() and any(m is not None for m in means_of):
                rows.append([title, *("" if m is None else score_text(m, 4) for m in means_of)])
        return rows

    def set_table(self, titles: Mapping[str, str] = TITLES) -> list[list[str]]:
        """MRR by `measure` of each edge set's events as text, the head first: a row for each set, a
        column for each regime and rule. Empty if the log has one edge set.

        titles: regime or rule -> head of its column; others get no column.
        """
        # Titles select the columns: a terminal has room for a few only.
        columns = {self.name_of(n): title for n, title in titles.items() if n in self.names()}
        windows = [w.edge_sets for w in self.windows]
        head = "MRR by edge set" + (", known" if self.measure == KNOWN else "")
        return _by_set([head, "events"], windows, self.measure, columns)

    def label_set_table(self, titles: Mapping[str, str] | None = None) -> list[list[str]]:
        """The first measure of each node set's labels as text, like `set_table`. Empty if the log
        has one node set, or no labels."""
        windows = [w.node_sets for w in self.windows]
        scored = [s.scores for sets in windows for s in sets.values()]
        # A window of one class may have labels and no measure.
        measured = [m for m in LABEL_MEASURES if any(m in scores[AVERAGE] for scores in scored)]
        if not measured:
            return []
        titles = titles or TITLES | LABEL_RULES
        absent = self._absent()
        columns = {n: title for n, title in titles.items() if n in scored[0] and n not in absent}
        head = [f"{LABEL_MEASURES[measured[0]]} by node set", "labels"]
        return _by_set(head, windows, measured[0], columns)

    @property
    def num_labels(self) -> int:
        """Number of scored labels in the windows."""
        return sum(w.num_labels for w in self.windows)

    @property
    def measure(self) -> str:
        """The measure by which regimes and rules are compared: `measure_over` the windows."""
        return measure_over(self.windows)

    @property
    def num_known_destinations(self) -> int:
        """Number of scored events with a known destination."""
        return sum(w.num_known for w in self.windows)

    def difference(self, name: str, other: str, measure: str | None = None) -> Difference:
        """By how much the MRR of a regime or rule is above that of another, over the events with a
        known destination.

        A nightly model is compared over the windows after its first day of training. measure: "mrr"
        over all events; None for `measure`.
        """
        is_nightly = name in NIGHTLY or other in NIGHTLY
        windows = self.nightly_windows if is_nightly else self.windows
        one, two = self.name_of(name), self.name_of(other)
        return mrr_difference((windows, one), (windows, two), measure)

    @property
    def nightly_windows(self) -> list[RegimeWindow]:
        """The windows after the nightly models' first day of training."""
        return [w for w in self.windows if w.nightly_learned]

    def nightly_note(self) -> str:
        """A sentence on the windows over which live is compared with the nightly models; empty if
        these are all."""
        num_left_out = len(self.windows) - len(self.nightly_windows)
        if "nightly" not in self.windows[0].scores or num_left_out == 0:
            return ""
        if num_left_out == len(self.windows):
            return "There is no nightly model: no midnight (UTC) is before any of the windows."
        return (
            "Nightly models first train at midnight (UTC). Live's difference to them leaves out "
            f"{count_noun(num_left_out, 'window')} before it."
        )

    def known_note(self) -> str:
        """A sentence on the events over which models are compared; empty if these are all."""
        if self.measure == ALL or self.num_known_destinations == self.num_events:
            return ""
        return (
            f"They compare over the {self.num_known_destinations:,} of {self.num_events:,} events "
            "with a destination known before."
        )

    def late_note(self) -> str:
        """A sentence with the number of windows left out for late events; empty for none."""
        if not self.num_left_out:
            return ""
        return (
            f"{count_noun(self.num_left_out, 'window')} left out: most of their events came late."
        )

    def few_note(self) -> str:
        """A sentence if events had fewer negatives than NUM_SCORED on average; else empty."""
        mean = self.mean_negatives
        if mean >= NUM_SCORED:
            return ""
        of_sets = ", ".join(f"{of:,.1f} of {n}" for n, of in self.mean_negatives_of_sets().items())
        return (
            f"An event had {mean:,.1f} negatives on average{of_sets and f' ({of_sets})'}, not "
            f"{NUM_SCORED}, as few destinations "
            "were known: compare its MRR with that of the rules here, not with other streams."
        )

    def names(self) -> list[str]:
        """Regimes and rules of the run, in the order of TITLES."""
        absent = self._absent()
        scores = self.windows[0].scores
        return [n for n in TITLES if self.name_of(n) in scores and n not in absent]

    def _absent(self) -> tuple[str, ...]:
        """Regimes that are not reported: nightly ones that never trained."""
        return () if self.nightly_windows else NIGHTLY

    def name_of(self, name: str) -> str:
        """The name of a regime or rule in the windows' scores."""
        return f"popularity_{self.half_life}" if name == "popularity" else name

    def mean(self, name: str) -> Measures:
        """Event-weighted means of a regime or rule over the windows."""
        return means(self.windows, self.name_of(name))

    def seconds(self, name: str) -> float | None:
        """Mean wall time in seconds to score a window and train on it; None for a rule."""
        return mean_seconds(self.windows, name)

    def _label_mean(self, name: str, measure: str) -> float | None:
        """Mean over the windows that have the measure, weighted by labels; None if none has."""
        scored = [w for w in self.windows if measure in w.labels.get(name, {})]
        if not scored:
            return None
        scores = [w.labels[name][measure] for w in scored]
        return float(np.average(scores, weights=[w.num_labels for w in scored]))


def cells(mean: Measures, measures: Sequence[str] = MEASURES) -> list[str]:
    """Measures as text, "-" for a measure without events."""
    return ["-" if np.isnan(mean.get(m, np.nan)) else score_text(mean[m], 4) for m in measures]


def stale_title(age: int | None) -> str:
    """Name in tables of the live model with facts of an age."""
    return f"live, facts {age_text(age)} old"


def _by_set(
    head: list[str],
    windows: Sequence[Mapping[str, SetScores]],
    measure: str,
    columns: Mapping[str, str],
) -> list[list[str]]:
    """A measure by set as text, the head first: means over the windows that have it, weighted by
    scored events or labels. Empty without sets.

    head: of the columns of names and of numbers.
    windows: for each window, name of a set -> its scores.
    columns: name in the scores -> head.
    """
    rows = [[*head, *columns.values()]]
    for name in dict.fromkeys(name for sets in windows for name in sets):
        own = [sets[name] for sets in windows if name in sets]
        row = []
        for column in columns:
            measured = [s for s in own if measure in s.scores[column]]
            scores = [s.scores[column][measure] for s in measured]
            weights = [_weight_of(s, measure) for s in measured]
            mean = score_text(float(np.average(scores, weights=weights)), 4) if measured else ""
            row.append(mean)
        rows.append([name, f"{sum(_weight_of(s, measure) for s in own):,}", *row])
    return rows if len(rows) > 1 else []


def _weight_of(scores: SetScores, measure: str) -> int:
    """Number of a set's events or labels that a measure covers."""
    return scores.num_known if measure == KNOWN else scores.num_scored


def age_text(age: int | None) -> str:
    """An age of facts in words. age: in events, None for a window."""
    return "a window" if age is None else f"{age} events"


def backtest(
    settings: LearningSettings,
    log: LogReader,
    plan: Plan,
    progress: Callable[[str, int, int, str], None] = lambda *_: None,
) -> Result | None:
    """Run all regimes with fresh facts, and the live one again for each older age of facts.

    Windows are never merged, however long one takes.

    progress: called with (part of the work, units done, units in all, name of the unit). Returns:
    None if no window could be scored.
    """
    cut, parts = _windows(settings, log, plan)
    if not plan.initial_epochs:
        # Report the next part now: loading and creating the models belongs to it.
        progress("fresh facts", 0, log.num_edges - log.first_edge, "events")

    # Run all regimes with fresh facts. A nightly model needs windows shorter than a day.
    names = [
        name
        for name in LEARNED
        if not (name.startswith("nightly") and settings.width_us >= DAY_US)
        and not (name == "no_replay" and not _replays(settings))
    ]
    windows = _run(
        "fresh facts", Regimes(settings, log, names, cut, plan.initial_epochs), parts, progress
    )
    reported = _reported(windows, cut)
    if not reported:
        return None

    # Run the live regime with older facts.
    stale: dict[int | None, Measures] = {0: means(reported, "live")}
    # Older facts do not know the novelty of events, so take it from the fresh run.
    novelty_of = {w.window.first_edge: w.novelty for w in windows}
    for age in plan.stale:
        if age != 0:
            regimes = Regimes(settings, log, ("live",), cut, plan.initial_epochs, age, novelty_of)
            older = _run(f"facts {age_text(age)} old", regimes, parts, progress)
            stale[age] = means(_reported(older, cut), "live")

    half_life = _half_life(log, windows, cut)
    late = [w for w in parts if w.first_edge >= cut and is_mostly_late(log, w)]
    return Result(reported, half_life, stale, len(late))


def has_one_destination(log: LogReader) -> bool:
    """Whether all events of a log have one destination, or one for each node set: then no event has
    a negative."""
    only: dict[int, int] = {}
    for first in range(log.first_edge, log.num_edges, SLICE_EDGES):
        dst = np.unique(log.edges(first, min(first + SLICE_EDGES, log.num_edges))[1])
        for number, node in zip(log.node_sets_of(dst).tolist(), dst.tolist(), strict=True):
            # Return early: only a log with a single destination is read to its end.
            if only.setdefault(number, node) != node:
                return False
    return bool(only)


def run_live(
    settings: LearningSettings,
    log: LogReader,
    plan: Plan,
    title: str,
    progress: Callable[[str, int, int, str], None],
) -> Result | None:
    """Run only the live regime, with fresh facts. Returns: as `backtest`."""
    cut, parts = _windows(settings, log, plan)
    regimes = Regimes(settings, log, ("live",), cut, plan.initial_epochs)
    windows = _run(title, regimes, parts, progress)
    reported = _reported(windows, cut)
    return Result(reported, _half_life(log, windows, cut), {}) if reported else None


def _half_life(log: LogReader, windows: Sequence[RegimeWindow], cut: int) -> int:
    """Number of the popularity half-life that was the best in the last third before the cut."""
    first = log.first_edge
    return best_half_life(windows, first + (cut - first) * 2 // 3, cut)


def _windows(settings: LearningSettings, log: LogReader, plan: Plan) -> tuple[int, list[Window]]:
    """Returns: the first reported event, and all windows of the log."""
    cut = log.first_edge + int(plan.initial * (log.num_edges - log.first_edge))
    origin = int(log.time_of(np.array([cut]))[0]) if plan.from_cut else 0
    # A window begins at the time of the cut, so the cut moves to the first event of that time.
    cut = log.lower_bound(origin) if plan.from_cut else cut
    return cut, list(recorded_windows(log, settings.width_us, origin))


def _reported(windows: Sequence[RegimeWindow], cut: int) -> list[RegimeWindow]:
    return [w for w in windows if w.window.first_edge >= cut and w.num_scored]


def _replays(settings: LearningSettings) -> bool:
    training = settings.training
    return training.replay != "none" and min(training.replay_share, training.replay_events) > 0


def _run(
    title: str,
    regimes: Regimes,
    windows: Sequence[Window],
    progress: Callable[[str, int, int, str], None],
) -> list[RegimeWindow]:
    """Run regimes over windows and report the progress. title: of the run."""
    reading = f"{title}, reading the first part"
    learning = f"{title}, learning the first part"
    regimes.on_initial = lambda done, total: progress(learning, done, total, "steps")
    out: list[RegimeWindow] = []
    # The initial part has its own progress, since its windows are only recorded.
    at_once = [w for w in windows if regimes.is_initial(w)]
    for title_of_part, part in ((reading, at_once), (title, windows[len(at_once) :])):
        for window in part:
            out.append(regimes.window(window) or _learned_at_once(window))
            first, end = part[0].first_edge, part[-1].end_edge
            progress(title_of_part, window.end_edge - first, end - first, "events")
    return out


def _learned_at_once(window: Window) -> RegimeWindow:
    """The entry of a window before the cut that is only part of the initial training."""
    return RegimeWindow(window=window, num_scored=0, num_known=0, scores={}, seconds={})
