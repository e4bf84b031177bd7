"""Runs of an MLflow experiment, written by MLflow's own client (`streamd-gnn[mlflow]`).

The client reads credentials from the variables MLFLOW_TRACKING_*.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from streamd.errors import TrackingError
from streamd.settings.loading import Settings, effective
from streamd.settings.mlflow import MlflowSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARAMS = ("model", "training", "windows", "graph", "gpu", "bootstrap", "registry", "device")
"""Logged settings: those of the model and of its training."""
MAX_PARAM = 6000
"""Longest value of a parameter that MLflow accepts."""
PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
"""MLflow's limits of one request."""
CLIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow's own variables, set unless they exist: few retries, since the caller retries."""
INSTALL = "pip install 'streamd-gnn[mlflow]'"


def is_installed() -> bool:
    """Whether MLflow's client is installed."""
    return find_spec("mlflow") is not None


def params_of(settings: Settings) -> dict[str, str]:
    """The settings of the model and of its training, by dotted key."""
    values = effective(settings).items()
    return {key: str(v)[:MAX_PARAM] for key, v in values if key.partition(".")[0] in PARAMS}


class Runs:
    """Writes runs of one experiment. Owner: one thread. Methods raise TrackingError."""

    def __init__(self, settings: MlflowSettings) -> None:
        """Does not connect yet. Raises: TrackingError if the client is not installed."""
        if not is_installed():
            raise TrackingError("mlflow.tracking_uri is set, but MLflow is not installed.", INSTALL)
        self._settings = settings
        # The client reads these variables at import.
        for name, value in CLIENT.items():
            os.environ.setdefault(name, value)
        if urlsplit(settings.tracking_uri).scheme in ("", "file"):
            # MLflow requires this to write to a folder.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._made: MlflowClient | None = None
        self._experiment = ""

    @contextmanager
    def _client(self) -> Iterator["MlflowClient"]:
        """Yield the client. Raises: TrackingError for any failure inside the context."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            self._made = self._made or MlflowClient(tracking_uri=self._settings.tracking_uri)
            yield self._made
        except (MlflowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise TrackingError(
                f"MLflow at {self._settings.tracking_uri} failed: {type(error).__name__} {reason}.",
                "check mlflow.tracking_uri and the server; a live trainer retries.",
            ) from None

    def experiment(self) -> str:
        """The id of the experiment, which is created if it is missing."""
        if not self._experiment:
            with self._client() as client:
                found = client.get_experiment_by_name(self._settings.experiment)
                name = self._settings.experiment
                self._experiment = found.experiment_id if found else client.create_experiment(name)
        return self._experiment

    def begin(self, name: str, params: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """Begin a run. Returns: its id."""
        from mlflow.entities import Param

        experiment = self.experiment()
        with self._client() as client:
            run: str = client.create_run(experiment, run_name=name, tags=dict(tags)).info.run_id
            rows = [Param(key, value) for key, value in params.items()]
            for at in range(0, len(rows), PARAMS_AT_ONCE):
                client.log_batch(run, params=rows[at : at + PARAMS_AT_ONCE])
        return run

    def log(
        self,
        run: str,
        values: Mapping[str, float],
        step: int,
        time_us: int,
        model: str | None = None,
    ) -> None:
        """Log the finite ones of some values at a step.

        time_us: event time. model: id of the version to which they belong.
        """
        from mlflow.entities import Metric

        # MLflow's timestamps are milliseconds.
        rows = [
            Metric(_name(key), value, time_us // 1000, step, model_id=model)
            for key, value in values.items()
            if math.isfinite(value)
        ]
        with self._client() as client:
            for at in range(0, len(rows), METRICS_AT_ONCE):
                client.log_batch(run, metrics=rows[at : at + METRICS_AT_ONCE])

    def add_version(
        self, run: str, name: str, params: Mapping[str, str], tags: Mapping[str, str]
    ) -> str:
        """Add a version of a run's model. Returns: its id."""
        experiment = self.experiment()
        with self._client() as client:
            made = client.create_logged_model(
                experiment, name=name, source_run_id=run, params=dict(params), tags=dict(tags)
            )
            client.finalize_logged_model(made.model_id, "READY")
        return str(made.model_id)

    def tag(self, run: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        with self._client() as client:
            for key, value in tags.items():
                client.set_tag(run, key, value)

    def attach(self, run: str, text: str, file: str) -> None:
        """Store a text as a file of a run."""
        with self._client() as client:
            client.log_text(run, text, file)

    def end(self, run: str) -> None:
        """End a run."""
        with self._client() as client:
            client.set_terminated(run)


def _name(key: str) -> str:
    """Replace characters that MLflow does not accept in the name of a metric."""
    return re.sub(r"[^\w.\- /]", "_", key)[:250]
