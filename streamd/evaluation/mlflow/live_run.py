"""Logs the windows of the live model to MLflow, as the trainer writes them to its history.

The history file is the queue: it is on disk, and training never waits for MLflow.
"""

import time
from bisect import bisect_right
from pathlib import Path

import msgspec
import structlog

from streamd.errors import TrackingError
from streamd.evaluation.mlflow.experiment import Runs, params_of
from streamd.settings.loading import Settings
from streamd.settings.mlflow import MlflowSettings
from streamd.settings.paths import Paths
from streamd.storage import write_durably
from streamd.telemetry import metrics
from streamd.telemetry.failure_log import LastingFailures
from streamd.windows.history import HistoryReader, WindowRecord

logger = structlog.get_logger()
FILE = "train/mlflow.json"
"""File in the data directory with the run and the newest window logged to it."""
RETRY_SECONDS = 10.0
"""Pause after a failure."""


class _Logged(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of logging.

    params: of the run. until_us: end of the newest logged window.
    versions: ids of the newest versions by name.
    """

    tracking_uri: str
    experiment: str
    params: dict[str, str]
    run: str
    until_us: int = -1
    versions: dict[str, str] = {}


KEPT_VERSIONS = 3
"""Number of the newest versions with a stored id: one of them will have scored the next window."""


class LiveRun:
    """Follows the history and logs each window once. Owner: a thread of the trainer's process."""

    def __init__(self, settings: MlflowSettings, params: dict[str, str], data_dir: Path) -> None:
        """params: settings of the model. data_dir: of the trainer.

        Raises: TrackingError if MLflow's client is not installed.
        """
        self._runs = Runs(settings)
        self._fresh = _Logged(
            tracking_uri=settings.tracking_uri,
            experiment=settings.experiment,
            params=params,
            run="",
        )
        self._name = f"live {data_dir.name}"
        self._path = data_dir / FILE
        self._history = HistoryReader(data_dir)
        self._failures = LastingFailures()
        self._retry_at = 0.0

    @classmethod
    def of(cls, settings: Settings, paths: Paths) -> "LiveRun":
        """The live run for these settings. paths: of the trainer."""
        return cls(settings.mlflow, params_of(settings), paths.learned)

    def step(self, wait_seconds: float = 0.0) -> None:
        """Log new windows, or wait for some. A failure is retried; repeated failures are logged
        only now and then."""
        records = self._history.refresh()
        logged = self._read()
        waiting = len(records) - _first_new(records, logged)
        metrics.mlflow_waiting.set(waiting)
        # Pause after a failure, so that an unavailable server is not asked at each step.
        if not waiting or time.monotonic() < self._retry_at:
            time.sleep(wait_seconds)
            return
        try:
            self._log(logged, records)
        except TrackingError as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            if self._failures.is_due("mlflow"):
                logger.error("mlflow_not_logged", error=str(error), windows=waiting)
        else:
            self._failures.end("mlflow_logged_again", windows=waiting)
            metrics.mlflow_waiting.set(0)

    def close(self) -> None:
        """Does nothing: no connection stays open."""

    def _read(self) -> _Logged:
        """The stored progress; none if it is of another MLflow server, experiment or settings."""
        fresh = self._fresh
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_Logged)
        except (FileNotFoundError, msgspec.DecodeError):
            return fresh
        if (found.tracking_uri, found.experiment) != (fresh.tracking_uri, fresh.experiment):
            return fresh
        # With other settings, a new run continues after the last logged window.
        same = found.params == fresh.params
        return found if same else msgspec.structs.replace(fresh, until_us=found.until_us)

    def _log(self, logged: _Logged, records: list[WindowRecord]) -> None:
        """Log the records that are new, storing the progress after each. Raises: TrackingError,
        OSError."""
        if not logged.run:
            tags = {"streamd_kind": "live"}
            run = self._runs.begin(self._name, logged.params, tags)
            logged = msgspec.structs.replace(logged, run=run)
        # Records are compared by time: after a restart the trainer may write logged windows again.
        for index in range(_first_new(records, logged), len(records)):
            record = records[index]
            model = logged.versions.get(record.scored_by)
            self._runs.log(logged.run, values_of(record), index, record.end_us, model)
            # A promotion created a version, which scores later windows.
            versions = logged.versions
            if record.promoted and record.version != record.scored_by:
                tags = {"streamd_reason": record.reason, "streamd_window": str(index)}
                made = self._runs.add_version(logged.run, record.version, logged.params, tags)
                versions = dict([*versions.items(), (record.version, made)][-KEPT_VERSIONS:])
                self._runs.tag(logged.run, {"streamd_champion": record.version})
            # Store after each window: a restart logs at most one window twice.
            logged = msgspec.structs.replace(logged, until_us=record.end_us, versions=versions)
            write_durably(self._path, msgspec.json.encode(logged))


def _first_new(records: list[WindowRecord], logged: _Logged) -> int:
    """Index of the first window that was not logged; windows are in ascending order of time."""
    return bisect_right(records, logged.until_us, key=lambda record: record.end_us)


def values_of(record: WindowRecord) -> dict[str, float]:
    """The scores of a window by measure and model, such as `mrr/live`, with its loss and times."""
    values = _scores("", record.scores)
    for edge_set, own in record.edge_sets.items():
        values |= _scores(f"edge_set.{edge_set}.", own.scores)
    for node_set, own in record.node_sets.items():
        values |= _scores(f"node_set.{node_set}.", own.scores)
    values |= {f"seconds/{phase}": seconds for phase, seconds in record.seconds.items()}
    values |= {"events": record.num_scored, "promoted": record.promoted}
    own_values = {"loss": record.loss, "surprise": record.surprise}
    return values | {name: value for name, value in own_values.items() if value is not None}


def _scores(prefix: str, scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return {
        f"{prefix}{measure}/{name}": value
        for name, of_name in scores.items()
        for measure, value in of_name.items()
    }
