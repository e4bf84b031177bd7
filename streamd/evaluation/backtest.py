"""The trainer's loop over a recorded log, faster than time: what a user would have got, window by
window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamd.evaluation.regimes import DAY_US, LEARNED, Regimes, RegimeWindow, best_half_life
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.training.scores import Measures
from streamd.windows import Window, recorded_windows

TITLES = {
    "live": "live",
    "nightly": "nightly",
    "nightly_live": "nightly weights, live state",
    "frozen": "frozen weights, live state",
    "rule": "partners + popularity",
    "edgebank": "EdgeBank",
    "popularity": "popularity",
}
MEASURES = ("mrr", "mrr_known", "hits10", "ap", "auc")
COLUMNS = ("", "MRR", "MRR, known", "Hits@10", "AP", "AUC", "s a window")
"""Of `Result.table`."""


@dataclass(frozen=True)
class Plan:
    """initial: share of the events before what is reported on; learned at once for
    `initial_epochs`, or, where that is 0, window by window like the rest. stale: ages in events
    (None: a window) at which the live model is also run with facts that old. from_cut: a window
    begins with the first event that is reported on, as published protocols have it."""

    initial: float = 0.3
    initial_epochs: int = 0
    stale: tuple[int | None, ...] = ()
    from_cut: bool = False


@dataclass(frozen=True)
class Result:
    """windows: those reported on, of the run with fresh facts. half_life: number of the popularity
    half-life chosen on what lies before them. stale: age of facts -> event-weighted means of the
    live model, the fresh run included."""

    windows: list[RegimeWindow]
    half_life: int
    stale: dict[int | None, Measures]

    @property
    def num_events(self) -> int:
        return sum(w.num_scored for w in self.windows)

    def table(self) -> list[list[str]]:
        """A row for each regime and rule, then one for each age of facts; cells as text."""
        rows = []
        for name in self.names():
            seconds = self.seconds(name)
            rows.append(
                [
                    TITLES[name],
                    *_cells(self.mean(name)),
                    "" if seconds is None else f"{seconds:.3f}",
                ]
            )
        return rows + [
            [f"live, facts {age_text(age)} old", *_cells(m), ""]
            for age, m in self.stale.items()
            if age != 0
        ]

    def names(self) -> list[str]:
        """Regimes and rules of the run, in the order of TITLES."""
        return [n for n in TITLES if self.name_of(n) in self.windows[0].scores]

    def name_of(self, name: str) -> str:
        """As the windows call it."""
        return f"popularity_{self.half_life}" if name == "popularity" else name

    def mean(self, name: str) -> Measures:
        """Event-weighted means over the windows."""
        return means(self.windows, self.name_of(name))

    def seconds(self, name: str) -> float | None:
        """Mean wall time a window to score and learn it; None for a rule."""
        own = [w.seconds[name] for w in self.windows if name in w.seconds]
        return float(np.mean(own)) if own else None


def _cells(mean: Measures) -> list[str]:
    return [f"{mean[m]:.4f}" for m in MEASURES]


def age_text(age: int | None) -> str:
    return "a window" if age is None else f"{age} events"


def means(windows: Sequence[RegimeWindow], name: str) -> Measures:
    """Event-weighted means of one regime or rule over windows; nan where nothing counts."""
    averages = {}
    for measure in MEASURES:
        weight = [w.num_known if measure == "mrr_known" else w.num_scored for w in windows]
        scores = [w.scores[name].get(measure, 0.0) for w in windows]
        averages[measure] = (
            float(np.average(scores, weights=weight)) if sum(weight) else float("nan")
        )
    return averages


def backtest(
    settings: Settings,
    log: LogReader,
    plan: Plan,
    progress: Callable[[str, int, int, str], None] = lambda *_: None,
) -> Result | None:
    """Run all regimes with fresh facts, and the live one once for each older age. None where no
    window could be scored.

    A window is never merged with another, however long it takes. progress: told the part of the
    work, done, in all, and the unit of these.
    """
    cut = log.first_edge + int(plan.initial * (log.num_edges - log.first_edge))
    origin = int(log.time_of(np.array([cut]))[0]) if plan.from_cut else 0
    cut = log.lower_bound(origin) if plan.from_cut else cut
    parts = list(recorded_windows(log, settings.windows.width_seconds * 1_000_000, origin))
    daily = settings.windows.width_seconds * 1_000_000 < DAY_US
    names = LEARNED if daily else tuple(n for n in LEARNED if not n.startswith("nightly"))
    windows = _run(
        "fresh facts", Regimes(settings, log, names, cut, plan.initial_epochs), parts, progress
    )
    reported = [w for w in windows if w.window.first_edge >= cut and w.num_scored]
    if not reported:
        return None
    stale: dict[int | None, Measures] = {0: means(reported, "live")}
    for age in plan.stale:
        if age != 0:
            regimes = Regimes(settings, log, ("live",), cut, plan.initial_epochs, age)
            older = _run(f"facts {age_text(age)} old", regimes, parts, progress)
            stale[age] = means(
                [w for w in older if w.window.first_edge >= cut and w.num_scored], "live"
            )
    first = log.first_edge
    return Result(reported, best_half_life(windows, first + (cut - first) * 2 // 3, cut), stale)


def _run(
    title: str,
    regimes: Regimes,
    windows: Sequence[Window],
    progress: Callable[[str, int, int, str], None],
) -> list[RegimeWindow]:
    reading = f"{title}, reading the first part"
    learning = f"{title}, learning the first part"
    regimes.on_initial = lambda done, total: progress(learning, done, total, "steps")
    out: list[RegimeWindow] = []
    at_once = [w for w in windows if regimes.is_initial(w)]
    for title_of_part, part in ((reading, at_once), (title, windows[len(at_once) :])):
        for window in part:
            out.append(regimes.window(window) or _learned_at_once(window))
            first, end = part[0].first_edge, part[-1].end_edge
            progress(title_of_part, window.end_edge - first, end - first, "events")
    return out


def _learned_at_once(window: Window) -> RegimeWindow:
    return RegimeWindow(window=window, num_scored=0, num_known=0, scores={}, seconds={})
