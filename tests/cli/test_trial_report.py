"""`streamd trials report` prints the figures of a state that the role trial wrote."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.roles import TRIAL, make_folder
from streamd.trials.impressions import Impression
from streamd.trials.trial_state import Definition, TrialState, state_path


def state(folder, units):
    """Units of each arm, of which every second has an outcome."""
    make_folder(folder, TRIAL)
    made = TrialState(state_path(folder, "t"), Definition(name="t", shares={"rule": 0.5, "champion": 0.5}, horizon_seconds=10, edge_set=None), 1)
    records = [b"broken"]
    for arm, number in units.items():
        for i in range(number):
            answer = f"{arm}-{i}"
            records.append(msgspec.json.encode(Impression(
                answer=answer, trial="t", arm=arm, unit=answer, version="v", src="a", dst=["b"], edge_set="default", edge=0, time_us=1)))
            if i % 2:
                records.append(msgspec.json.encode({"type": "outcome", "answer": answer, "time": 2, "value": 3.0 if arm == "champion" else 1.0}))
    made.take_records(records, {0: 9}, 10)
    while made.close_before(10**12):
        pass
    made.close()


def report(folder, *more):
    done = CliRunner().invoke(app, ["trials", "report", "--name", "t", "--data-dir", str(folder), *more])
    return done.exit_code, " ".join(done.output.split())


def test_it_prints_each_arm_and_its_difference_from_the_champion(tmp_path):
    state(tmp_path, {"champion": 400, "rule": 400})
    code, text = report(tmp_path)
    assert code == 0 and "champion 0.5 400 400 0 0.5 1.5 -" in text
    assert "rule 0.5 400 400 0 0.5 0.5 -1 ± " in text and "not shown to differ" not in text and text.endswith("Not counted: malformed records (malformed): 1.")
    arms = json.loads(report(tmp_path, "--json")[1])["arms"]
    assert [a["arm"] for a in arms] == ["champion", "rule"] and arms[1]["difference"]["mean"] == -1.0


@pytest.mark.parametrize(("units", "code", "says"), [
    ({"champion": 30, "rule": 30}, 0, "too early"),
    ({"champion": 600, "rule": 300}, 1, "contradict the shares")])
def test_it_says_if_it_is_too_early_or_units_are_lost(tmp_path, units, code, says):
    state(tmp_path, units)
    assert report(tmp_path)[0] == code and says in report(tmp_path)[1]


def test_without_a_state_it_names_the_role():
    done = CliRunner().invoke(app, ["trials", "report", "--name", "nothing", "--data-dir", "/nonexistent"])
    assert done.exit_code and "has no state" in str(done.exception)
