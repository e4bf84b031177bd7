import dataclasses

import numpy as np
import pytest

from streamd.evaluation.backtest import Plan, backtest
from streamd.evaluation.label_scores import AVERAGE, MEAN, LabelRules
from streamd.eventlog.reader import LogReader
from streamd.graph.label_history import LAST_LABELS
from streamd.models.labels import label_inputs
from streamd.training.recorder import Recorder
from tests.builders import learning, settings, stream, write_log
from tests.training.test_labels import write_labelled


@pytest.fixture
def labels_of(tmp_path):
    """Makes the inputs of labels of some nodes."""
    write_log(tmp_path, *stream(50))
    s = settings(tmp_path, model__name="pair")
    recorder = Recorder(learning(s), LogReader.open(tmp_path))
    recorder.rebuild(50)

    def make(nodes, targets):
        distinct, place = np.unique(nodes, return_inverse=True)
        target = np.array(targets, np.float32)[:, None]
        sets = np.zeros_like(distinct)
        return label_inputs(recorder.live, recorder._sampling, distinct, sets, place, target, 50, 10**12)

    return make


def test_the_rules_know_the_labels_of_earlier_chunks_only(labels_of):
    """Targets by node, a chunk a line, and what the rules predict of the last:

    n3: 1   n5: 4
    n3: 3             n3 has had 1 -> 1
    n3: 0   n8: 0     n3 has had 1, 3 -> 2;  n8 none -> the mean of 1, 4, 3
    """
    rules = LabelRules(["default"])
    for nodes, targets in (([5, 3], [4, 1]), ([3], [3]), ([8, 3], [0, 0])):
        rules.begin()
        rules.add(labels_of(nodes, targets))
    assert rules.measured("regression", {}) == (
        2,
        {
            AVERAGE: pytest.approx({"mae": (2 + 8 / 3) / 2, "rmse": np.sqrt((4 + 64 / 9) / 2)}),
            MEAN: pytest.approx({"mae": 8 / 3, "rmse": 8 / 3}),
        },
        {},
    )


def test_each_node_set_has_rules_and_measures_of_its_own(labels_of):
    """Even nodes are of one set, odd ones of another; targets by node, and what the rules predict of the last chunk:

    n2: 2   n4: 4   n3: 30
    n2: 5   n6: 3   n5: 40      n2 has had 2 -> 2;  n6 none -> the mean of 2 and 4;  n5 none -> 30
    """
    rules = LabelRules(["even", "odd"])
    for nodes, targets in (([2, 4, 3], [2, 4, 30]), ([2, 6, 5], [5, 3, 40])):
        rules.begin()
        rules.add(dataclasses.replace(labels_of(nodes, targets), set_L=np.array(nodes) % 2))
    count, table, sets = rules.measured("regression", {})
    assert count == 3 and table[AVERAGE]["mae"] == pytest.approx(13 / 3) and table[MEAN]["mae"] == pytest.approx(4)
    assert {name: s.num_scored for name, s in sets.items()} == {"even": 2, "odd": 1}
    assert sets["even"].scores == {AVERAGE: pytest.approx({"mae": 1.5, "rmse": np.sqrt(4.5)}), MEAN: pytest.approx({"mae": 1, "rmse": np.sqrt(2)})}
    assert sets["odd"].scores[MEAN]["mae"] == 10


def test_the_moving_average_forgets_all_but_the_last_labels(labels_of):
    rules = LabelRules(["default"])
    for target in [100, *[2] * LAST_LABELS, 2]:
        rules.begin()
        rules.add(labels_of([3], [target]))
    table = rules.measured("regression", {}).table
    assert table[AVERAGE]["mae"] == 0 and table[MEAN]["mae"] > 10


def test_a_window_without_labels_has_no_scores_of_them():
    rules = LabelRules(["default"])
    rules.begin()
    assert rules.measured("regression", {}) == (0, {}, {})


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_backtest_reports_the_label_head_of_each_regime_beside_the_rules(tmp_path, epochs):
    write_labelled(tmp_path, 1, lambda camp: [10 * camp])
    s = settings(tmp_path, stream__label_dim=1, model__labels="regression", windows__width_seconds=1800, training__learning_rate=0.02)
    result = backtest(learning(s), LogReader.open(tmp_path), Plan(0.3, epochs))
    head, *rows = result.label_table()
    assert head[1:] == ["MAE", "RMSE"] and [r[0] for r in rows] == [
        "live",
        "live without replay",
        # The stream has no midnight: they learn nothing, unless they begin as one model that did.
        *(("nightly", "nightly weights, live state") if epochs else ()),
        "frozen weights, live state",
        "mean of a node's last 7",
        "mean of all so far",
    ]
    first = result.windows[0].window.first_edge
    assert result.num_labels == (1800 - first) // 10
    mae = {name: float(cells[0]) for name, *cells in rows}
    assert max(mae["live"], mae["mean of a node's last 7"]) < 0.5 < mae["mean of all so far"], "each node has a target of its own"
    errors = {name: tuple(cells) for name, *cells in rows}
    assert errors["live"] not in (errors["live without replay"], errors["frozen weights, live state"])


def test_a_stream_without_labels_has_no_table_of_them(tmp_path):
    write_log(tmp_path, *stream(300, hours=20))
    assert backtest(learning(settings(tmp_path, model__name="pair")), LogReader.open(tmp_path), Plan()).label_table() == []
