"""Logs a backtest to MLflow: settings, scores by window, and its report."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from streamd.evaluation.mlflow.experiment import Runs, params_of
from streamd.evaluation.report.content import Report
from streamd.evaluation.report.html import as_html
from streamd.evaluation.report.text import as_json
from streamd.settings.loading import Settings

PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
"""Tags that MLflow's page knows: the run that contains another one, and a run's description."""


def log_backtest(settings: Settings, report: Report, grid: Sequence[Settings] = ()) -> str:
    """Log a backtest as a run; each combination of a grid becomes a run within it.

    grid: settings of each combination, in the report's order. Returns: id of the run. Raises:
    TrackingError.
    """
    runs = Runs(settings.mlflow)
    tags = {"streamd_kind": "backtest", NOTE: report.verdict}
    run = runs.begin(report.title, params_of(settings), tags)
    # Means of the whole backtest are a single step.
    now_us = time.time_ns() // 1000
    runs.log(run, _means(report.data.get("means", {})), 0, now_us)
    # Windows are steps at their own event times.
    for index, window in enumerate(report.data.get("by_window", ())):
        values = {f"window_mrr/{name}": mrr for name, mrr in window["mrr"].items()}
        runs.log(run, values, index, window["end_us"])
    # Each combination of a grid is a run within this one.
    for one, found in zip(grid, report.data.get("runs", ()), strict=False):
        tags = {"streamd_kind": "backtest", PARENT: run}
        child = runs.begin(found["settings"], params_of(one), tags)
        own = {"live": found["means"]}
        runs.log(child, _means(own) | {"seconds/live": found["seconds_per_window"]}, 0, now_us)
        runs.end(child)
    # Attach files last: the store of files may be unavailable while the server is up.
    runs.attach(run, as_html(report), "report.html")
    runs.attach(run, as_json(report), "report.json")
    runs.end(run)
    return run


def _means(means: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {f"{measure}/{name}": v for name, some in means.items() for measure, v in some.items()}
