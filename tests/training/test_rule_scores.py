"""Each window is scored by the rule that needs no learning, on the candidates that the model is scored on."""

from types import SimpleNamespace

import numpy as np

from streamd.evaluation.regimes import Regimes
from streamd.eventlog.reader import LogReader
from streamd.models.rule import NAME, scores_of_rules
from streamd.schema import Schema
from streamd.telemetry import metrics
from streamd.training import held_out
from streamd.training.learner import Learner
from streamd.training.measures import measures
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.tally import Tally
from streamd.windows import next_window, recorded_windows
from streamd.windows.history import ONE_DESTINATION, RULES, HistoryReader
from streamd.windows.novelty import Novelty
from tests.builders import HOUR, learning, settings, stream, write_log
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
    assert set(scores_of_rules(np.zeros((1, 101, 200), np.float32))) == set(RULES)


def test_a_tally_without_a_version_counts_the_rule_as_live():
    facts = np.random.default_rng(0).random((7, 101, 200)).astype(np.float32)
    event_E = SimpleNamespace(numpy=lambda: np.arange(7))
    chunk = SimpleNamespace(score=SimpleNamespace(event_E=event_E), scored_facts=facts, novelty=Novelty(*np.ones((3, 7), bool)),
                            edge_set_E=np.zeros(7, np.int64), is_candidate_EC=np.ones((7, 101), bool),
                            num_negatives_E=np.array([100, 100, 2, 2, 2, 100, 100]))
    tally = Tally(Schema())
    tally.add(chunk, None, None)
    scored = tally.measure(None, None, [], "none")
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


def perfect(facts_ECF):
    """Scores of rules that rank the true destination first, as it is the first candidate."""
    scores = np.zeros(facts_ECF.shape[:2], np.float32)
    scores[:, 0] = 1.0
    return dict.fromkeys(RULES, scores)


def test_versions_are_learned_on_and_do_not_serve_until_one_is_not_below_the_rule(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(1200, hours=4), Schema(2, 0, 0), watermark=100 * HOUR)
    monkeypatch.setattr(held_out, "scores_of_rules", perfect)
    trainer, registry, _ = make(tmp_path)
    first, second = process_all(trainer, 2)
    assert not first.promoted and "the best rule has 1.000" in first.reason
    assert registry.champion() is None and registry.names() == [first.version, second.version]
    assert registry.manifest(second.version).parent == first.version, "what was learned is kept"
    assert second.scored_by == first.version and trainer.contest.shadow is None

    # It goes on after a stop, and hands over as soon as the rule is not ahead any more.
    again, registry, _ = make(tmp_path)
    assert again.contest.version == second.version and again.edge == second.end_edge
    monkeypatch.undo()
    third, fourth = process_all(again)
    assert third.promoted and fourth.promoted and registry.champion() == fourth.version
    assert registry.manifest(third.version).parent == second.version and again.contest.shadow.name == third.version


def test_the_tail_is_ranked_by_the_best_rule_among_the_candidates_of_the_version(tmp_path):
    write_log(tmp_path, *stream(1200, hours=4), Schema(2, 0, 0), watermark=100 * HOUR)
    log = LogReader.open(tmp_path)
    s = learning(settings(tmp_path, stream__edge_feature_dim=2))
    own, recorder = Learner(s, log, ReplayStore(None, 10, 0)), Recorder(s, log)
    window = next_window(log, 0, HOUR)
    own.begin()
    chunks = list(recorder.chunks(window))
    for chunk in chunks:
        own.score(chunk)
    learned = own.learn(0)
    facts = np.concatenate([chunk.learn.facts_ECF.numpy()[chunk.learn.weight_E.numpy() > 0] for chunk in chunks if chunk.learn is not None])
    tail = facts[len(facts) - learned.num_tail:]
    assert learned.num_tail > 20 and tail.shape[1] == 11
    assert learned.tail_rule == max(measures(scores)["mrr"] for scores in scores_of_rules(tail).values())
