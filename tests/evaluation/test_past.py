"""Past backtests are kept, a file each, and compared with the settings that differ."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.evaluation.report.content import Asked, report_of
from streamd.evaluation.report.past import (
    COLUMNS,
    NOVELTY_COLUMNS,
    comparison,
    comparison_by_novelty,
    keep_report,
    past_runs,
)
from streamd.settings.loading import as_environment
from tests.builders import settings, stream, write_log
from tests.evaluation.test_report import result

DAY = datetime(2026, 11, 26, 19, 30, tzinfo=UTC)


def report(**values):
    given = [("model.name", "tgn", "default"), ("training.epochs", "2", "default"), ("data_dir", "x", "default")]
    return report_of(result(), "streamd backtest of shop.csv", Asked(settings=[(k, values.get(k, v), by) for k, v, by in given]))


def test_runs_are_compared_by_their_scores_and_the_settings_that_differ(tmp_path):
    first = keep_report(tmp_path / "runs", report(), DAY)
    keep_report(tmp_path / "runs", report(**{"model.name": "pair", "data_dir": "y"}), DAY.replace(hour=20))
    content = json.loads(first.read_bytes())
    assert "by_window" not in content and content["settings"]["training.epochs"]["value"] == "2"
    rows = comparison(past_runs(tmp_path / "runs"))
    assert [row[-1] for row in rows] == ["model.name=tgn", "model.name=pair"], "neither equal settings nor the directory"
    assert rows[0][:4] == ["2026-11-26 19:30", "shop.csv", "40", f"{content['means']['live']['mrr']:.4f}"[1:]]
    best = max(content["means"][name]["mrr_known"] for name in ("rule", "edgebank", "popularity"))
    assert float(rows[0][4]) == pytest.approx(best, abs=1e-4) and "±" in rows[0][5] and len(COLUMNS) == len(rows[0])

    # Of older runs nothing is told by novelty.
    assert comparison_by_novelty(past_runs(tmp_path / "runs"))[0] == [*rows[0][:2], rows[0][3], "-", "-", "-", "-"]

    # And older differences are over all events.
    assert content["live_better_by_mrr_known"].keys() == content["live_better_by_mrr"].keys()
    file = tmp_path / "old" / first.name
    file.parent.mkdir()
    file.write_text(json.dumps({k: v for k, v in content.items() if k != "live_better_by_mrr_known"}))
    assert comparison(past_runs(file.parent))[0][5] == rows[0][5] + " all"
    without = {name: means | {"mrr_known": None} for name, means in content["means"].items()}
    file.write_text(json.dumps(content | {"means": without}))
    assert comparison(past_runs(file.parent))[0][3:5] == [rows[0][3] + " all", rows[0][4] + " all"]
    content["means"]["live"] |= {"mrr_pair_seen": 0.5, "mrr_pair_new": None}
    first.write_text(json.dumps(content))
    assert comparison_by_novelty(past_runs(tmp_path / "runs"))[0][3:5] == [".5000", "-"] and len(NOVELTY_COLUMNS) == 7

    # What is no report is skipped, and said.
    (tmp_path / "runs/a.json").write_text('{"settings": {}}')
    (tmp_path / "runs/b.json").write_text("{")
    with capture_logs() as said:
        assert comparison(past_runs(tmp_path / "runs")) == rows
    assert [one["event"] for one in said] == ["backtest_skipped"] * 2
    with pytest.raises(SettingsError, match="no past backtest"):
        past_runs(tmp_path / "none")


def test_settings_that_differ_are_short_and_in_the_notation_of_a_settings_file(tmp_path):
    def keep(at, *more):
        settings = [("graph.edge_sets", str({"default": {"features": {f"f{n}": "number" for n in range(20)}}})), *more]
        asked = Asked(settings=[(key, value, "file") for key, value in settings])
        keep_report(tmp_path, report_of(result(), "streamd backtest of shop.csv", asked), DAY.replace(microsecond=at))

    def source(topic, **fields):
        return {"topic": topic, "fields": {"src": {"path": "user", "prefix": "user:"}, "dst": "item"} | fields}

    # The first is a report of an earlier release, in Python's notation; its topics are those of the second.
    keep(1, ("kafka.topics", "('loans',)"), ("sources", str([source("loans")])), ("training.epochs", "1"), ("ingest.shard", "None"))
    keep(2, ("kafka.topics", '["loans"]'), ("sources", json.dumps([source("loans", time="at")])), ("training.epochs", "2"), ("ingest.shard", "null"))
    keep(3, ("kafka.topics", '["rides"]'), ("sources", json.dumps([source("r" * 90, dst="zone", time="at", label="x")])), ("training.epochs", "2"))
    first, second, third = (row[-1] for row in comparison(past_runs(tmp_path)))
    assert first == 'ingest.shard=null kafka.topics=["loans"] training.epochs=1 sources[0].topic=loans sources[0].fields.dst=item sources[0].fields.time=absent ...'
    assert second == 'ingest.shard=null kafka.topics=["loans"] training.epochs=2 sources[0].topic=loans sources[0].fields.dst=item sources[0].fields.time=at ...'
    assert third.startswith(f'ingest.shard=absent kafka.topics=["rides"] training.epochs=2 sources[0].topic={"r" * 40}... sources[0].fields.dst=zone')


def test_the_command_keeps_each_run_of_a_grid_too_and_lists_them(tmp_path, monkeypatch):
    # A short name, as a long one breaks the lines of the table.
    monkeypatch.chdir(tmp_path)
    path = Path("log")
    write_log(path, *stream(400, hours=9))
    s = settings(path, model__name="pair", training__epochs=1)

    def run(*options):
        done = CliRunner().invoke(app, ["backtest", *options], env=as_environment(s) | {"COLUMNS": "300"})
        assert done.exit_code == 0, (done.output, done.exception)
        return "".join(done.stdout.split())

    run()
    run("--grid", "training.epochs=1,2")
    run("--runs", str(tmp_path / "other"))
    assert len(list((path / "backtests").iterdir())) == 2 and len(list((tmp_path / "other").iterdir())) == 1
    shown = run("--list")
    # A terminal of 80 columns breaks a line before "=".
    assert shown.count("training.epochs") == 4 and "thesamebynovelty" in shown and f"pastbacktestsin{path}" in shown
    assert [run.grid for run in past_runs(path / "backtests")] == ["", "training.epochs=1", "training.epochs=2"]
    assert "training.epochs" not in run("--list", "--runs", str(tmp_path / "other"))


def test_runs_of_one_second_are_listed_in_their_order(tmp_path):
    for at in range(9):
        keep_report(tmp_path, report(**{"training.epochs": str(at)}), DAY.replace(microsecond=at))
    assert [run.settings["training.epochs"] for run in past_runs(tmp_path)] == list("012345678")


def test_a_backtest_of_a_file_without_a_data_dir_says_that_it_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("src,dst,time\n" + "".join(f"u{n % 7},i{n % 5},{n * 300}\n" for n in range(1000)))
    env = as_environment(settings(Path("log"), model__name="pair", stream__time_unit="s")) | {"COLUMNS": "300"}
    done = CliRunner().invoke(app, ["backtest", "t.csv"], env=env)
    assert done.exit_code == 0 and "not kept in log/backtests: log does not exist; give --runs a folder to compare backtests" in done.output, done.output
    listed = CliRunner().invoke(app, ["backtest", "--list"], env=env)
    assert "log/backtests holds no past backtest" in str(listed.exception) and "kept only if data_dir exists" in str(listed.exception)
