"""Past backtests: one file each in a folder, and a table that compares them."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from streamd.errors import SettingsError
from streamd.evaluation.backtest import RULES
from streamd.evaluation.compared import NOVELTY_MEASURES
from streamd.evaluation.report.content import Report
from streamd.evaluation.report.text import as_json
from streamd.settings.notation import as_written, read_written
from streamd.storage import write_durably
from streamd.windows.intervals import score_text
from streamd.windows.means import ALL, KNOWN
from streamd.windows.novelty import NOVELTIES

logger = structlog.get_logger()
FOLDER = "backtests"
"""Folder in the data directory."""
LEFT_OUT = ("data_dir",)
"""Settings that do not affect scores."""
ABSENT = "absent"
"""The value of a setting that a run's release did not have."""
MAX_VALUE = 40
"""Maximum characters of a value in the list: a source or an edge set has hundreds."""
MAX_PARTS = 3
"""Maximum parts of a longer value that are listed."""
COLUMNS = (
    "at, UTC",
    "of",
    "windows",
    "MRR,\nknown",
    "best rule,\nknown",
    "better than\nnightly, MRR",
    "settings that differ",
)
"""Head of `comparison`: MRR over the events with a known destination."""
OVER_ALL = " all"
"""Mark of a figure over all events, for a run without one over known destinations."""
NOVELTY_COLUMNS = (
    "at, UTC",
    "of",
    "live's MRR,\nall",
    *(name.replace(" ", "\n") for name in NOVELTIES.values()),
)
"""Head of `comparison_by_novelty`."""


def keep_report(folder: Path, report: Report, now: datetime) -> Path:
    """Write the results and the settings of a backtest to a new file in a folder. Returns: its
    path. Raises: OSError."""
    content = json.loads(as_json(report))
    # Scores by window are most of the content, and are not compared.
    content.pop("by_window", None)
    content["at"] = now.isoformat(timespec="seconds")
    folder.mkdir(parents=True, exist_ok=True)
    # With microseconds: names give the order, and a small backtest takes less than a second.
    path = folder / f"{now:%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:6]}.json"
    write_durably(path, json.dumps(content, indent=1).encode())
    return path


class PastRun(NamedTuple):
    """One run of the live regime.

    means: of regimes and rules.
    better: live's difference to nightly, None without nightly. better_by: the measure of that.
    grid: the values that a grid varied, "" without a grid.
    """

    at: str
    title: str
    windows: int
    means: Mapping[str, Mapping[str, float]]
    better: Mapping[str, float] | None
    settings: Mapping[str, str]
    grid: str
    better_by: str = ALL


def past_runs(folder: Path) -> list[PastRun]:
    """Read the files of a folder, oldest first; a grid gives several runs. A file that is no report
    is logged and skipped.

    Raises: SettingsError if there is no report.
    """
    runs: list[PastRun] = []
    for path in sorted(folder.glob("*.json")):
        try:
            runs += _runs_of(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("backtest_skipped", file=str(path), error=repr(error))
    if not runs:
        raise SettingsError(
            f"{folder} holds no past backtest.",
            "run `streamd backtest` with the same --runs or data_dir: without --runs a backtest is "
            "kept only if data_dir exists.",
        )
    return runs


def _runs_of(content: dict[str, Any]) -> list[PastRun]:
    # The JSON report has each setting with its origin.
    settings = {key: one["value"] for key, one in content["settings"].items()}
    common = content["at"][:16], content["title"].removeprefix("streamd backtest of ")
    # The report of a grid has a run for each combination, and no rules.
    if "runs" in content:
        windows = content["windows"]
        return [
            PastRun(*common, windows, {"live": one["means"]}, None, settings, one["settings"])
            for one in content["runs"]
        ]
    # Older reports have only the difference over all events.
    differences = content.get("live_better_by_mrr_known")
    measure = ALL if differences is None else KNOWN
    better = (differences or content["live_better_by_mrr"]).get("nightly")
    return [PastRun(*common, content["windows"], content["means"], better, settings, "", measure)]


def comparison(runs: Sequence[PastRun]) -> list[list[str]]:
    """A row for each run, as text, with the settings that differ between runs."""
    rows = []
    for run, own in zip(runs, _differing([run.settings for run in runs]), strict=True):
        measure = ALL if run.means["live"].get(KNOWN) is None else KNOWN
        mark = _mark(measure)
        names = [n for n in run.means if n in RULES or n.startswith("popularity_")]
        rules = [run.means[name][measure] for name in names]
        better = run.better
        rows.append(
            [
                run.at.replace("T", " "),
                run.title,
                f"{run.windows:,}",
                _figure(run.means["live"][measure]) + mark,
                _figure(max(rules)) + mark if rules else "",
                "" if better is None else _with_radius(better) + _mark(run.better_by),
                " ".join([*own, *filter(None, [run.grid])]),
            ]
        )
    return rows


def _differing(settings: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """For each run, the settings in which runs differ, single values first: "training.epochs=1".
    Of longer ones only the parts that differ: "sources[0].topic=loans"."""
    # Settings that all runs share do not explain a difference.
    keys = sorted({key for own in settings for key in own} - {*LEFT_OUT})
    of_values: list[list[str]] = [[] for _ in settings]
    of_parts: list[list[str]] = [[] for _ in settings]
    for key in keys:
        values = [read_written(own[key]) if key in own else ABSENT for own in settings]
        written = [as_written(value) for value in values]
        if len({*written}) == 1:
            continue
        is_whole = max(map(len, written)) <= MAX_VALUE
        parts = [{key: value} if is_whole else _parts(key, value) for value in values]
        shown = _shown_parts(parts)
        out = of_values if is_whole else of_parts
        for own, of_run in zip(out, shown, strict=True):
            own += of_run
    return [[*one, *other] for one, other in zip(of_values, of_parts, strict=True)]


def _shown_parts(parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """For each run, the first parts that differ between runs, as text of bounded length."""
    paths = dict.fromkeys(path for of_run in parts for path in of_run)
    texts = [{at: as_written(of_run.get(at, ABSENT)) for at in paths} for of_run in parts]
    differ = [at for at in paths if len({of_run[at] for of_run in texts}) > 1]
    more = ["..."] if len(differ) > MAX_PARTS else []
    return [[*(f"{at}={_cut(of_run[at])}" for at in differ[:MAX_PARTS]), *more] for of_run in texts]


def _parts(path: str, value: Any) -> dict[str, Any]:
    """The single values in a list or mapping, by their paths in it."""
    if isinstance(value, dict) and value:
        inner = [_parts(f"{path}.{key}", one) for key, one in value.items()]
    elif isinstance(value, list | tuple) and value:
        inner = [_parts(f"{path}[{at}]", one) for at, one in enumerate(value)]
    else:
        return {path: value}
    return {at: one for parts in inner for at, one in parts.items()}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def comparison_by_novelty(runs: Sequence[PastRun]) -> list[list[str]]:
    """A row for each run, as text: MRR of the live regime by novelty of the events. "-" for parts
    without events, and for runs of releases that did not measure them."""
    return [
        [
            run.at.replace("T", " "),
            " ".join(filter(None, (run.title, run.grid))),
            *(_figure(run.means["live"].get(measure)) for measure in (ALL, *NOVELTY_MEASURES)),
        ]
        for run in runs
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else score_text(value, 4)


def _mark(measure: str) -> str:
    return OVER_ALL if measure == ALL else ""


def _with_radius(better: Mapping[str, float | None]) -> str:
    radius = better["radius"]
    return _figure(better["mean"]) + ("" if radius is None else f" ± {_figure(radius)}")
