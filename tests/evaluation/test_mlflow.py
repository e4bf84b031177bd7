"""Windows, versions and backtests in MLflow, by its own client: in a folder, and on a real server where one can be started."""

import os
import subprocess
import time
from dataclasses import replace
from importlib.util import find_spec
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from streamd.cli.doctor_checks import run_check
from streamd.daemon import run_role
from streamd.demo.broker import free_port
from streamd.errors import TrackingError
from streamd.evaluation.mlflow import experiment as experiment_module
from streamd.evaluation.mlflow import live_run
from streamd.evaluation.mlflow.backtest_run import log_backtest
from streamd.evaluation.mlflow.experiment import Runs, params_of
from streamd.evaluation.mlflow.live_run import LiveRun
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.windows.history import SetScores, WindowRecord, append_record, truncate_records
from tests.builders import HOUR, settings
from tests.evaluation.test_report import report
from tests.readings import reading

needs_client = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow-skinny is not installed: make mlflow")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real tracking server on a database, in an environment of its own."""
    program = os.environ.get("MLFLOW_SERVER")
    if program is None:
        pytest.skip("MLFLOW_SERVER names no `mlflow` program: make mlflow")
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [program, "server", "--backend-store-uri", f"sqlite:///{folder}/db", "--artifacts-destination", str(folder / "files"),
               "--port", str(port), "--workers", "1"]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    deadline = time.monotonic() + 120
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except OSError:
            assert time.monotonic() < deadline and child.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.5)
    yield f"http://127.0.0.1:{port}"
    child.terminate()
    child.wait()


@pytest.fixture(params=["folder", "server"])
def uri(request, tmp_path):
    return str(tmp_path / "mlruns") if request.param == "folder" else request.getfixturevalue("server")


def record(number, version="", promoted=True, **values):
    return WindowRecord(
        start_us=number * HOUR, end_us=(number + 1) * HOUR, first_edge=number * 10, end_edge=number * 10 + 10, num_scored=10, version=version or f"v{number}",
        scored_by=f"v{number - 1}" if number else "rule", promoted=promoted, reason="finite", loss=0.5 if number else None,
        scores={"live": {"mrr": 0.1 * number, "ap": 0.4}, "rule": {"mrr": 0.2}}, seconds={"score": 1.0}, finished_at=0.0,
        edge_sets={"views: all": SetScores(num_scored=10, scores={"live": {"mrr": 0.3}})}, **values)


def live(s):
    return LiveRun.of(s, Paths.of(s, "train"))


def client_of(s):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=s.mlflow.tracking_uri)
    return client, client.get_experiment_by_name(s.mlflow.experiment).experiment_id


@needs_client
def test_each_window_is_logged_once_over_restarts_with_its_versions(uri, tmp_path):
    s = settings(tmp_path / "data", mlflow__tracking_uri=uri, mlflow__experiment=f"live {tmp_path.name}")
    append_record(tmp_path / "data", record(0))
    live(s).step()
    for number in (1, 2):
        append_record(tmp_path / "data", record(number, promoted=number == 1))
    again = live(s)
    again.step()
    again.step()
    client, experiment = client_of(s)
    run, = client.search_runs([experiment])
    assert run.data.params == params_of(s) and run.data.params["model.name"] == "tgn"
    assert run.data.tags["streamd_champion"] == "v1" and run.info.run_name == "live data"
    history = client.get_metric_history(run.info.run_id, "mrr/live")
    assert sorted((m.step, m.timestamp, m.value) for m in history) == [(n, (n + 1) * HOUR // 1000, pytest.approx(0.1 * n)) for n in range(3)]
    assert run.data.metrics["edge_set.views_ all.mrr/live"] == 0.3 and run.data.metrics["promoted"] == 0
    versions = {m.name: m for m in client.search_logged_models([experiment])}
    assert set(versions) == {"v0", "v1"}
    assert [m.value for m in versions["v0"].metrics if m.key == "mrr/live"] == [pytest.approx(0.1)], "those of the window that it scored"

    # Windows that are learned again after a stop are not logged again; other settings begin a run at the next window.
    truncate_records(tmp_path / "data", len(record(0).line()))
    for number in (1, 2):
        append_record(tmp_path / "data", record(number))
        live(s).step()
    assert len(client.get_metric_history(run.info.run_id, "mrr/live")) == 3
    append_record(tmp_path / "data", record(3))
    other = s.model_copy(update={"model": s.model.model_copy(update={"name": "pair"})})
    live(other).step()
    assert {one.data.params["model.name"] for one in client.search_runs([experiment])} == {"tgn", "pair"}
    assert run_check("mlflow", s).good


@needs_client
def test_a_backtest_is_a_run_with_its_report(uri, tmp_path):
    s = settings(tmp_path / "data", mlflow__tracking_uri=uri, mlflow__experiment=f"backtests {tmp_path.name}")
    made = report(count=3)
    grid = {"windows": 3, "runs": [{"settings": "model.name=pair", "means": {"mrr": 0.4, "ap": float("nan")}, "seconds_per_window": 0.1}]}
    log_backtest(s, made)
    parent = log_backtest(s, replace(made, data=grid), [s.model_copy(update={"model": s.model.model_copy(update={"name": "pair"})})])
    client, experiment = client_of(s)
    found = client.search_runs([experiment])
    first = next(run for run in found if "mrr/live" in run.data.metrics and "mlflow.parentRunId" not in run.data.tags)
    assert first.data.metrics["mrr/rule"] == pytest.approx(made.data["means"]["rule"]["mrr"]) and first.info.status == "FINISHED"
    assert len(client.get_metric_history(first.info.run_id, "window_mrr/live")) == 3
    assert {f.path for f in client.list_artifacts(first.info.run_id)} == {"report.html", "report.json"}
    child, = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent]
    assert child.data.params["model.name"] == "pair" and child.data.metrics["mrr/live"] == 0.4 and "ap/live" not in child.data.metrics


@needs_client
def test_a_server_that_is_away_is_told_once_and_gets_all_later(tmp_path, monkeypatch):
    s = settings(tmp_path / "data", mlflow__tracking_uri=f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(live_run, "RETRY_SECONDS", 0.0)
    for number in range(3):
        append_record(tmp_path / "data", record(number))
    away = live(s)
    with capture_logs() as said:
        away.step()
        away.step()
    assert [one["event"] for one in said if one["log_level"] == "error"] == ["mlflow_not_logged"]
    assert reading(metrics.mlflow_waiting) == 3 and not (tmp_path / "data/train/mlflow.json").exists()
    assert not run_check("mlflow", s).good
    with pytest.raises(TrackingError, match="failed"):
        log_backtest(s, report(count=1))
    back = s.model_copy(update={"mlflow": s.mlflow.model_copy(update={"tracking_uri": str(tmp_path / "mlruns")})})
    live(back).step()
    client, experiment = client_of(back)
    run, = client.search_runs([experiment])
    assert len(client.get_metric_history(run.info.run_id, "mrr/rule")) == 3 and reading(metrics.mlflow_waiting) == 0


@needs_client
def test_the_trainers_process_logs_in_a_thread_until_it_ends(tmp_path):
    s = settings(tmp_path / "data", mlflow__tracking_uri=str(tmp_path / "mlruns"))
    with run_role._mlflow_log(s, Paths.of(s, "train")):
        append_record(tmp_path / "data", record(0))
        deadline = time.monotonic() + 60
        while not (tmp_path / "data/train/mlflow.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    append_record(tmp_path / "data", record(1))
    time.sleep(1)
    client, experiment = client_of(s)
    run, = client.search_runs([experiment])
    assert len(client.get_metric_history(run.info.run_id, "mrr/rule")) == 1


def test_without_the_client_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_module, "find_spec", lambda _: None)
    s = settings(tmp_path, mlflow__tracking_uri=str(tmp_path / "mlruns"))
    with pytest.raises(TrackingError, match=r"streamd-gnn\[mlflow\]"):
        Runs(s.mlflow)
    check = run_check("mlflow", s)
    assert not check.good and "pip install 'streamd-gnn[mlflow]'" in check.seen
    assert run_check("mlflow", settings(tmp_path)).seen == "not used"
    with capture_logs() as said, run_role._mlflow_log(s, Paths.of(s, "train")):
        pass
    assert [one["event"] for one in said] == ["mlflow_not_installed"]
