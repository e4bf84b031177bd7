"""Each window is scored by the rule that needs no learning, on the candidates that the model is scored on."""

from types import SimpleNamespace

import numpy as np

from streamd.evaluation.regimes import Regimes
from streamd.eventlog.reader import LogReader
from streamd.models.rule import NAME
from streamd.schema import Schema
from streamd.telemetry import metrics
from streamd.training.tally import Tally, baseline_scores
from streamd.windows import recorded_windows
from streamd.windows.history import ONE_DESTINATION, RULES, HistoryReader
from tests.builders import HOUR, learning, stream, write_log
from tests.ranks.worlds import World
from tests.training.test_trainer import make, process_all


def test_the_rule_scores_windows_as_in_a_backtest_over_several_sets_and_deletes(tmp_path):
    world = World(tmp_path).grow()
    world.delete()
    world.learn(1)
    records = HistoryReader(tmp_path).refresh()
    log = LogReader.open(tmp_path)
    backtest = Regimes(learning(world.settings), log, ("frozen",), 0)
    windows = [backtest.window(window) for window in recorded_windows(log, HOUR)]
    assert len(records) == len(windows) > 4 and log.state.schema.num_edge_sets == 3
    for record, window in zip(records, windows, strict=True):
        assert record.num_scored == window.num_scored and (record.mean_negatives or 0.0) == window.mean_negatives < 20
        assert set(record.edge_sets) == set(window.edge_sets)
        if record.num_scored:
            assert record.scores[NAME] == window.scores[NAME], "the same events, candidates and facts"
        for name, scored in record.edge_sets.items():
            assert scored.scores[NAME] == window.edge_sets[name].scores[NAME]
            assert metrics.edge_set_mrr.labels(name, NAME)._value.get() > 0
    assert metrics.window_mrr.labels(NAME)._value.get() == records[-1].scores[NAME]["mrr"]


def test_each_rule_of_the_history_is_scored_and_the_rule_serves_the_first_window(tmp_path):
    write_log(tmp_path, *stream(500), Schema(2, 0, 0), watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    records = process_all(trainer)
    assert all(set(RULES) <= set(record.scores) for record in records)
    assert records[0].scored_by == NAME and records[0].scores["live"] == records[0].scores[NAME]
    assert records[1].scored_by != NAME and records[1].scores["live"] != records[1].scores[NAME]
    assert registry.manifest(records[-1].version).scores[NAME] == records[-1].scores[NAME]
    assert set(baseline_scores(np.zeros((1, 101, 200), np.float32))) == set(RULES)


def test_a_tally_without_a_version_counts_the_rule_as_live():
    facts = np.random.default_rng(0).random((7, 101, 200)).astype(np.float32)
    event_E = SimpleNamespace(numpy=lambda: np.arange(7))
    chunk = SimpleNamespace(score=SimpleNamespace(event_E=event_E), scored_facts=facts, known_E=np.ones(7, bool),
                            edge_set_E=np.zeros(7, np.int64), is_candidate_EC=np.ones((7, 101), bool),
                            num_negatives_E=np.array([100, 100, 2, 2, 2, 100, 100]))
    tally = Tally(Schema())
    tally.add(chunk, None, None)
    scored = tally.measured(None, None, [], "none")
    assert scored.mean_negatives == 58
    assert scored.table["live"] == scored.table[NAME] != scored.table["popularity"]


def test_windows_say_how_many_destinations_an_event_was_ranked_against(tmp_path):
    src, dst, time = stream(300, num_items=2)
    write_log(tmp_path, src, dst, time, Schema(2, 0, 0), watermark=100 * HOUR)
    records = process_all(make(tmp_path)[0])
    assert [record.mean_negatives for record in records] == [1.0] * len(records)
    assert all(0.5 <= scores["mrr"] <= 1 for record in records for scores in record.scores.values())
    assert HistoryReader(tmp_path).refresh() == records


def test_a_trainer_of_one_destination_says_that_there_is_nothing_to_rank(tmp_path):
    src, _, time = stream(100)
    write_log(tmp_path, src, np.full(100, 25), time, Schema(2, 0, 0), watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    records = process_all(trainer)
    assert {record.reason for record in records} == {ONE_DESTINATION} and registry.champion() is None
    assert all(record.num_scored == 0 and record.scores == {} and b"negatives" not in record.line() for record in records)
