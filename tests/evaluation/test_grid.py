import os
import re

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.evaluation.backtest import Plan, Result, backtest
from streamd.evaluation.grid import MAX_COMBINATIONS, GridResult, Run, combinations, run_grid
from streamd.evaluation.regimes import RegimeWindow
from streamd.eventlog.reader import LogReader
from streamd.settings.loading import load_settings
from streamd.windows import Window
from streamd.windows.intervals import MIN_WINDOWS
from tests.builders import learning, settings, stream, write_log


def asked(*grid):
    return combinations(grid, lambda values: load_settings(None, values, {})[0])


def invoke(*args, **env):
    clean = {k: None for k in os.environ if k.startswith("STREAMD_")}
    return CliRunner().invoke(app, ["backtest", *map(str, args)], env=clean | {"COLUMNS": "200"} | env)


def table(path):
    src, dst, time = stream(700, hours=30)
    rows = "".join(f"{u},{v},{t // 1_000_000}\n" for u, v, t in zip(src.tolist(), dst.tolist(), time.tolist(), strict=True))
    path.write_text("src,dst,time\n" + rows)
    return path


def run_of(name, mrr, seconds, wobble=0.0, count=16):
    """A run whose windows differ from `mrr` by `wobble`, four up and four down in turn."""
    rules = {rule: {"mrr": score, "mrr_known": score} for rule, score in (("rule", 0.4), ("edgebank", 0.2), ("popularity_2", 0.1))}
    windows = [
        RegimeWindow(
            window=Window(i, i + 1, i, i + 1),
            num_scored=10,
            num_known=10,
            scores={"live": dict.fromkeys(("mrr", "mrr_known"), mrr + (-wobble if i // 4 % 2 else wobble)) | {"ap": 0.5}, **rules},
            seconds={"live": seconds},
            mean_negatives=100.0,
        )
        for i in range(count)
    ]
    return Run(name, Result(windows, 2, {}))


def test_a_grid_is_every_combination_after_the_settings_in_force():
    found = asked("model.name=sage,pair", "training.epochs=1,2")
    assert [c.name for c in found] == [
        f"model.name={n} training.epochs={e}" for n, e in (("tgn", 2), ("sage", 1), ("sage", 2), ("pair", 1), ("pair", 2))
    ]
    assert [(c.settings.model.name, c.settings.training.epochs) for c in found][3] == ("pair", 1)


def test_settings_in_force_and_repeated_values_are_run_once():
    assert [c.name for c in asked("model.name=pair,tgn,pair")] == ["model.name=tgn", "model.name=pair"]


def test_values_are_written_as_in_the_settings_file():
    found = asked("model.half_lives_seconds=[1,2,3,4,5],[2,3,4,5,6]", "model.pair_facts=false", "training.learning_rate=1e-4,0.01")
    assert len(found) == 5 and found[4].settings.model.half_lives_seconds == (2, 3, 4, 5, 6)
    assert found[1].settings.training.learning_rate == 1e-4 and not found[1].settings.model.pair_facts


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (["model.nam=pair"], "model.nam.*did you mean 'model.name'"),
        (["model.name=pair,nope"], "model.name .*got 'nope'"),
        (["model.dim=63"], r"model.dim \(command line\): 63 is not a multiple"),
        (["model.name"], "'model.name', not a setting and its values"),
        (["model.name="], "'model.name=', not a setting and its values"),
        (["training.epochs=[1"], "not a setting and its values"),
        (["training.epochs=1]+[2"], "not a setting and its values"),
        (["training.epochs=1", "training.epochs=2"], "names training.epochs twice"),
        (["windows.width_seconds=60,3600"], "cannot vary windows.width_seconds"),
        (["data_dir=a,b"], "cannot vary data_dir"),
        (
            ["training.seed=" + ",".join(map(str, range(11))), "training.epochs=1,2,3"],
            f"asks for 33 combinations; at most {MAX_COMBINATIONS} ",
        ),
    ],
)
def test_a_grid_that_cannot_be_is_refused_by_name(grid, says):
    with pytest.raises(SettingsError, match=says):
        asked(*grid)


def test_as_many_combinations_as_allowed_are_taken():
    assert len(asked("training.seed=" + ",".join(map(str, range(1, MAX_COMBINATIONS + 1))))) == MAX_COMBINATIONS + 1


def test_a_run_of_a_grid_scores_as_a_backtest_of_its_settings_does(tmp_path):
    write_log(tmp_path, *stream(500, hours=25))
    log = LogReader.open(tmp_path)
    found = combinations(["training.epochs=2,1"], lambda values: settings(tmp_path, model__name="pair", **values))
    first, second = run_grid(found, log, Plan()).runs
    for run, epochs in ((first, 2), (second, 1)):
        alone = backtest(learning(settings(tmp_path, model__name="pair", training__epochs=epochs)), log, Plan())
        assert run.mean == alone.mean("live") and len(run.windows) == len(alone.windows)
    assert first.mean != second.mean


def test_the_cheapest_that_is_level_with_the_best_is_taken():
    runs = [run_of("now", 0.5, 1.0), run_of("best", 0.6, 3.0, 0.05), run_of("level", 0.59, 2.0), run_of("cheap", 0.3, 0.1)]
    assert GridResult(runs).advice() == (
        "Take level: MRR .590 at 2.000 s a window; it is level with the best (best), -.010 ± .035 MRR, and cheaper than its 3.000 s. "
        "With it live beats the best rule (partners + popularity) by .190 ± .000 MRR; it is not compared with nightly, since a grid "
        "runs live alone; the change of settings brings .090 ± .000 over those in force."
    )
    assert GridResult(runs[:2]).advice().startswith("Take best: MRR .600 at 3.000 s a window; it beats the next (now) by .100 ± .035 MRR. With it live beats")


def test_the_best_is_taken_where_none_that_is_level_costs_less():
    runs = [run_of("now", 0.59, 2.0), run_of("best", 0.6, 1.0, 0.05)]
    assert GridResult(runs).advice().startswith("Take best: MRR .600 at 1.000 s a window; it is the best, and none that is level with it is cheaper. ")


def test_settings_in_force_that_are_best_leave_nothing_to_change():
    runs = [run_of("now", 0.35, 1.0), run_of("other", 0.3, 1.0)]
    assert GridResult(runs).advice() == (
        "Take now: MRR .350 at 1.000 s a window; it beats the next (other) by .050 ± .000 MRR. With it live loses to the best rule "
        "(partners + popularity, which needs no training) by .050 ± .000 MRR; it is not compared with nightly, since a grid runs live "
        "alone; these settings are in force."
    )
    assert GridResult(runs[:1]).advice().startswith("Take now: MRR .350 at 1.000 s a window. With it live loses")


def test_settings_in_force_stay_where_another_costs_the_same():
    runs = [run_of("now", 0.59, 1.05), run_of("best", 0.6, 1.0, 0.05)]
    assert GridResult(runs).advice().startswith("Take now: ")
    assert GridResult([run_of("now", 0.59, 1.11), runs[1]]).advice().startswith("Take best: ")


def test_too_few_windows_choose_nothing():
    runs = [run_of(name, mrr, 1.0, count=MIN_WINDOWS - 1) for name, mrr in (("a", 0.1), ("b", 0.9))]
    assert GridResult(runs).advice().startswith(f"{MIN_WINDOWS - 1} windows are too few to choose by")
    assert [row[3] for row in GridResult(runs).table()] == ["", ".8000"]


@pytest.mark.parametrize(
    "written", [("--grid", "model.name=pair", "training.epochs=1,2"), ("--grid", "model.name=pair", "--grid", "training.epochs=1,2")]
)
def test_a_grid_says_side_by_side_which_settings_to_take(tmp_path, written):
    env = {"STREAMD_STREAM__TIME_UNIT": "s", "STREAMD_MODEL__NAME": "pair", "STREAMD_TRAINING__THREADS": "1"}
    done = invoke(table(tmp_path / "events.csv"), *written, "--report", tmp_path / "grid.html", **env)
    assert done.exit_code == 0, done.output
    rows = re.findall(r"model\.name=pair training\.epochs=(\d) +(\.\d{4}) +(\.\d{4}) +(-?\.\d{4} ± \.\d{4})? +(\d\.\d{3})", done.stdout)
    assert [(epochs, bool(by)) for epochs, _, _, by, _ in rows] == [("2", False), ("1", True)]
    said = re.search(r"^Take model.name=pair training.epochs=\d: MRR \.\d{3} at .*\.$", done.stdout, re.M)
    assert said
    page = (tmp_path / "grid.html").read_text().replace("&nbsp;", " ").replace("\xa0", " ")
    assert all(sentence in page for sentence in re.split(r"(?<=\.) (?=[A-Z])", said[0]))


def test_options_after_a_grid_are_not_taken_for_settings(tmp_path):
    done = invoke("--grid", "model.name=pair", "--initial", "0.5", tmp_path / "none.csv")
    assert "none.csv is not a file" in str(done.exception)
    assert "unexpected extra argument" in invoke("none.csv", "training.epochs=1").output


def test_a_grid_is_refused_before_the_file_is_read(tmp_path):
    for written, says in ((("--grid", "model.nam=pair"), "model.nam"), (("--grid", "model.name=pair", "--stale", "5"), "--stale")):
        done = invoke(tmp_path / "none.csv", *written)
        assert isinstance(done.exception, SettingsError) and says in str(done.exception)
