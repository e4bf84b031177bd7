"""A grid runs combinations of settings on the same log, and recommends one of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import yaml

from streamd.errors import SettingsError
from streamd.evaluation.backtest import Plan, Result, cells, run_live
from streamd.evaluation.compared import mrr_difference
from streamd.evaluation.regimes import RegimeWindow
from streamd.evaluation.verdict import (
    GIVE_MORE,
    comparison,
    effects,
    over_best_rule,
    too_few,
    verdict,
)
from streamd.eventlog.reader import LogReader
from streamd.gpu import choose_device
from streamd.settings.loading import Settings, effective, leaves
from streamd.settings.notation import as_written
from streamd.training.learning_settings import LearningSettings
from streamd.training.measures import Measures
from streamd.windows.intervals import MIN_WINDOWS, Difference, score_text

MAX_COMBINATIONS = 32
"""The most combinations of a grid: five settings of two values. Each is a whole run over the
log."""
COMPARABLE = ("model", "training", "graph", "gpu", "device")
"""Branches and settings that a grid may vary: they change scores or cost, but not the events and
windows over which runs are compared."""
SAME_COST = 1.1
"""Runs within this factor of seconds cost the same: in a repeated measurement their order may
change."""
COLUMNS = ("", "MRR\nknown", "AP", "better than\nfirst by", "s per\nwindow")
"""Head of `GridResult.table`."""


@dataclass(frozen=True)
class Combination:
    """Settings to run. name: the values that the grid varies, as "model.name=tgn"."""

    name: str
    settings: Settings


@dataclass(frozen=True)
class Run:
    """The run of a combination. result: of the live regime and the rules."""

    name: str
    result: Result

    @property
    def windows(self) -> list[RegimeWindow]:
        """The reported windows."""
        return self.result.windows

    @property
    def mean(self) -> Measures:
        """Event-weighted means over the windows."""
        return self.result.mean("live")

    @property
    def seconds(self) -> float:
        """Mean wall time in seconds to score a window and train on it."""
        return self.result.seconds("live") or 0.0

    @property
    def compared_mrr(self) -> float:
        """MRR over the events by which runs are compared, as in `Result.measure`."""
        return self.mean[self.result.measure]

    def better_than(self, other: "Run", measure: str | None = None) -> Difference:
        """By how much its MRR is above another run's. measure: as in `Result.difference`."""
        return mrr_difference((self.windows, "live"), (other.windows, "live"), measure)


@dataclass(frozen=True)
class GridResult:
    """The results of a grid. runs: on the same windows, the settings in force first."""

    runs: list[Run]

    def table(self) -> list[list[str]]:
        """A row for each run, as text."""
        first = self.runs[0]
        return [
            [
                run.name,
                *cells(run.mean, ("mrr_known", "ap")),
                "" if run is first else run.better_than(first).text(4),
                f"{run.seconds:.3f}",
            ]
            for run in self.runs
        ]

    def advice(self) -> str:
        """A recommendation: the cheapest settings among those level with the best, and the verdict
        on the live regime under them."""
        best = max(self.runs, key=lambda run: run.compared_mrr)
        count = len(best.windows)
        if count < MIN_WINDOWS:
            return f"{too_few(count)} to choose by: {GIVE_MORE}."
        others = [run for run in self.runs if run is not best]
        level = [best, *(run for run in others if best.better_than(run).is_level)]

        # Among those of equal cost take the first: the settings in force change only for a reason.
        cheapest = min(run.seconds for run in level)
        in_order = [run for run in self.runs if run in level]
        take = next(run for run in in_order if run.seconds <= SAME_COST * cheapest)
        text = (
            f"Take {take.name}: MRR {score_text(take.compared_mrr)} at {take.seconds:.3f} s a "
            "window"
        )
        # None of the others is both cheaper and as good.
        if take is not best:
            by = comparison(f"the best ({best.name})", take.better_than(best))
            text += f"; it {by}, and cheaper than its {best.seconds:.3f} s"
        elif len(level) > 1:
            text += "; it is the best, and none that is level with it is cheaper"
        elif others:
            next_best = max(others, key=lambda run: run.compared_mrr)
            text += (
                f"; it {comparison(f'the next ({next_best.name})', best.better_than(next_best))}"
            )
        text = f"{text}. {self._verdict(take)}"
        return " ".join(filter(None, (text, take.result.known_note(), take.result.few_note())))

    def _verdict(self, run: Run) -> str:
        """The verdict on live under the settings of a run."""
        first = self.runs[0]
        causes = "these settings are in force"
        if run is not first:
            by = effects({"the change of settings": run.better_than(first)})
            causes = f"{by} over those in force"
        nightly = "a grid runs live alone"
        return verdict("With it live", *over_best_rule(run.result), nightly, causes)


def combinations(
    grid: Sequence[str], load: Callable[[Mapping[str, Any]], Settings]
) -> list[Combination]:
    """The combinations of a grid's settings, without repeats.

    grid: texts such as "training.epochs=1,2", with values as in the settings file.
    load: makes settings from values by dotted key, over those in force.

    Returns: the settings in force first, then all combinations of the values, in order. Raises:
    SettingsError for an invalid key or value, or too many combinations.
    """
    values_by_key: dict[str, list[Any]] = {}
    for text in grid:
        key, values = _parse(text)
        if key in values_by_key:
            raise SettingsError(f"--grid names {key} twice.", f"write {key}=first,second once.")
        values_by_key[key] = values
    asked = math.prod(len(values) for values in values_by_key.values())
    if asked > MAX_COMBINATIONS:
        raise SettingsError(
            f"--grid asks for {asked:,} combinations; at most {MAX_COMBINATIONS} are run.",
            "give fewer values, or vary some settings after the others.",
        )

    # Check all of them before the first run, which may take hours.
    out: list[Combination] = []
    for chosen in (None, *product(*values_by_key.values())):
        settings = load({} if chosen is None else dict(zip(values_by_key, chosen, strict=True)))
        shown = effective(settings)
        if all(settings != other.settings for other in out):
            name = " ".join(
                f"{key}={as_written(shown[key])}" for key in values_by_key if key in shown
            )
            out.append(Combination(name, settings))
    return out


def _parse(text: str) -> tuple[str, list[Any]]:
    """The key and the values of a text such as "training.epochs=1,2". Raises: SettingsError."""
    key, equals, listed = text.partition("=")
    try:
        values = yaml.safe_load(f"[{listed}]")
    except yaml.YAMLError:
        values = None
    if not equals or not values or not isinstance(values, list):
        raise SettingsError(
            f"--grid holds {text!r}, not a setting and its values.",
            "write it as training.epochs=1,2.",
        )

    # `load_settings` refuses unknown keys, and names the nearest known one.
    known = {".".join(path) for path in leaves()}
    if key in known and key.split(".")[0] not in COMPARABLE:
        raise SettingsError(
            f"--grid cannot vary {key}: runs are compared on the same events and windows.",
            f"vary settings of {', '.join(COMPARABLE[:-1])}, or {COMPARABLE[-1]}.",
        )
    return key, values


def run_grid(
    asked: Sequence[Combination],
    log: LogReader,
    plan: Plan,
    progress: Callable[[str, int, int, str], None] = lambda *_: None,
) -> GridResult | None:
    """Run the live regime under each combination, one after the other.

    progress: as in `backtest`. Returns: None if no window could be scored.
    """
    runs = []
    for number, one in enumerate(asked, 1):
        title = f"{one.name} ({number} of {len(asked)})"
        torch.set_num_threads(one.settings.training.threads)
        # A grid may vary the device too.
        learning = LearningSettings.of(one.settings, choose_device(one.settings.device))
        result = run_live(learning, log, plan, title, progress)
        if result is None:
            return None
        runs.append(Run(one.name, result))
    return GridResult(runs)
