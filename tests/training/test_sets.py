"""Learning from a log of several kinds of nodes and edges."""

import io
import shutil
from contextlib import closing

import numpy as np
import pytest
import torch
from rich.console import Console

from streamd.cli.maintenance import backtest_file
from streamd.clock import SystemClock
from streamd.evaluation.backtest import Plan, backtest
from streamd.evaluation.report.content import Asked, report_of
from streamd.evaluation.report.html import as_html
from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import read_holds
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, empty_batch
from streamd.exchange.tables import Columns
from streamd.gpu.device import make_torch_deterministic
from streamd.graph.negatives import NUM_LEARNED, NUM_SCORED, Pool, Pools
from streamd.models.architectures import ARCHITECTURES
from streamd.models.standardize import RunningStandardizer, SetStandardizer
from streamd.registry import Registry
from streamd.server.page.window_rows import edge_sets
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.learner import Learner
from streamd.training.measures import measures
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from streamd.windows.history import FILE, HistoryReader, append_record, history_until
from tests.builders import (
    HOUR,
    SETS,
    declared,
    learning,
    sets_rows,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)


def world(tmp_path, **values):
    write_sets_log(tmp_path / "log", *sets_stream(), watermark=100 * HOUR, segment_edges=250)
    s = settings(tmp_path / "log", stream__edge_feature_dim=SETS.edge_feature_dim, stream__node_feature_dim=SETS.node_feature_dim, **values)
    return s, LogReader.open(tmp_path / "log")


def run(s, log, learn=True):
    learner, recorder = Learner(learning(s), log, ReplayStore(None, 10, 0)), Recorder(learning(s), log)
    scores, chunks, edge = [], [], 0
    while (window := next_window(log, edge, HOUR)) is not None:
        learner.begin()
        for chunk in recorder.chunks(window):
            chunks.append(chunk)
            scores.append(learner.score(chunk))
        if learn:
            learner.learn(window.first_edge)
        edge = window.end_edge
    return learner, recorder, np.concatenate([x for x in scores if x.size]), chunks


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_model_learns_from_several_sets(tmp_path, name):
    s, log = world(tmp_path, model__name=name, training__epochs=4, training__learning_rate=0.01)
    learner, _, learned, _ = run(s, log)
    _, _, frozen, _ = run(s, log, learn=False)
    assert learner.model.is_finite
    assert measures(learned[-300:])["mrr"] > measures(frozen[-300:])["mrr"] + 0.1


def test_negatives_are_of_the_node_set_of_the_destination(tmp_path):
    s, log = world(tmp_path, model__name="pair")
    _, recorder, _, chunks = run(s, log, learn=False)
    node = np.concatenate([c.score.node_M.numpy()[c.score.hops[0].root_U.numpy()[c.score.candidate_EC.numpy()]]
                           for c in chunks if c.score is not None])
    of_items = log.node_sets_of(node)
    assert node.shape[1] == 1 + NUM_SCORED + NUM_LEARNED and (of_items == of_items[:, :1]).all() and 0 < of_items.mean() < 1


def test_pools_of_one_node_set_are_the_one_pool(tmp_path):
    s, log = world(tmp_path, model__name="pair")
    facts = Recorder(learning(s), log).live.facts
    src, dst, time, sets = sets_stream()
    users = sets == 2
    facts.advance(src[:400], dst[:400], time[:400], sets[:400])
    at = np.flatnonzero(users & (np.arange(900) >= 400))
    none = np.zeros(0, np.int64)
    pools, pool = Pools(facts, dst[at], time[at], none), Pool.of(facts.destinations_in(0), dst[at], time[at], none)
    known = pool.known_before(time[at])
    assert pools.known_before(time[at], dst[at]).tolist() == known.tolist()
    assert pools.draw(at, dst[at], known, 10, 1).tolist() == pool.draw(at, dst[at], known, 10, 1).tolist()
    assert pools.sizes(dst[at]).tolist() == [pool.size] * len(at)


def test_features_of_each_set_are_standardised_by_its_own_rows():
    rows = torch.from_numpy(sets_rows(np.arange(60) % 3))
    stats, alone = SetStandardizer(SETS.all_edge_columns), RunningStandardizer(2)
    stats.update(rows)
    buys = rows[rows[:, 1] > 0][:, SETS.edge_columns(1)]
    alone.update(buys)
    out = stats(rows)
    torch.testing.assert_close(out[rows[:, 1] > 0][:, SETS.edge_columns(1)], alone(buys))
    assert (out[rows[:, 0] > 0][:, SETS.edge_columns(1)] == 0).all() and torch.equal(out[:, :3], rows[:, :3])
    again = SetStandardizer(SETS.all_edge_columns)
    again.load_state_dict(stats.state_dict())
    torch.testing.assert_close(again(rows), out)


def test_the_rows_of_a_log_of_sets_are_read_back_as_they_were_written(tmp_path):
    _, log = world(tmp_path)
    src, dst, time, sets = sets_stream()
    ids = np.arange(900)
    np.testing.assert_array_equal(log.features_of(ids), sets_rows(sets))
    assert log.edge_sets_of(ids).tolist() == sets.tolist()
    assert [column.tolist() for column in log.edges(0, 900)] == [src.tolist(), dst.tolist(), time.tolist()]


def trainer_of(path, **values):
    s = settings(path, **{k.replace(".", "__"): v for k, v in declared().items()}, **values)
    log = LogReader.open(path)
    return Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(path, "train"))


def learn(trainer, limit=99):
    done = []
    while len(done) < limit and (due := trainer.due()):
        done.append(trainer.process(due[0]))
    return done


def test_the_incumbents_scores_of_each_set_are_what_its_own_trainer_would_have_scored(tmp_path):
    left, right = tmp_path / "left", tmp_path / "right"
    src, dst, time, sets = sets_stream()
    write_sets_log(left, src, dst, time, sets, watermark=int(time[700]))
    learn(trainer_of(left))
    shutil.copytree(left, right)
    other = trainer_of(right, model__name="pair", registry__gate_events=10**6)
    other.bootstrap()
    for path in (left, right):
        with closing(LogWriter(path, SETS)) as writer:
            writer.commit(empty_batch(SETS), Progress(), 100 * HOUR)
    own, beside = learn(trainer_of(left), 1)[0], learn(trainer_of(right, model__name="pair", registry__gate_events=10**6), 1)[0]
    assert own.first_edge == beside.first_edge and set(own.edge_sets) == set(SETS.edge_set_names)
    for edge_set, scored in own.edge_sets.items():
        assert beside.edge_sets[edge_set].scores["incumbent"] == scored.scores["live"]


@pytest.mark.parametrize("name", ["tgn", "pair"])
def test_a_trainer_goes_on_after_a_restart_and_retention_as_if_there_had_been_none(tmp_path, name):
    """Facts of each set, memory, replay and statistics come back; segments that were sealed are gone meanwhile."""
    make_torch_deterministic(1)
    left, right = tmp_path / "left", tmp_path / "right"
    for path in (left, right):
        write_sets_log(path, *sets_stream(), watermark=100 * HOUR, segment_edges=250)
    one = trainer_of(left, model__name=name, registry__gate_events=50)
    learn(one)
    two = trainer_of(right, model__name=name, registry__gate_events=50)
    learn(two, 4)
    writer = LogWriter(right, SETS, 250)
    writer.drop_before(read_holds(right)["train"].edge)
    dropped = writer.state.first_edge
    writer.close()
    again = trainer_of(right, model__name=name, registry__gate_events=50)
    learn(again)
    assert dropped > 0 and again.log.first_edge == dropped
    for a, b in zip(one.learner.model.state_dict().values(), again.learner.model.state_dict().values(), strict=True):
        assert (a == b).all()
    nodes = np.arange(35)
    asked = nodes, np.full(35, 10**13), np.tile(nodes, (35, 1)), nodes % 3
    np.testing.assert_array_equal(*(t.recorder.live.facts.compute(*asked) for t in (one, again)))
    for node_set in (0, 1):
        assert len({tuple(t.recorder.live.facts.destinations_in(node_set).destination_order.tolist()) for t in (one, again)}) == 1


def test_windows_say_the_scores_of_each_edge_set_and_add_up(tmp_path):
    write_sets_log(tmp_path, *sets_stream(), watermark=100 * HOUR)
    trainer = trainer_of(tmp_path, model__name="pair")
    learn(trainer)
    records = HistoryReader(tmp_path).refresh()
    last = records[-1]
    assert set(last.edge_sets) == {"views", "buys", "follows"} and sum(s.num_scored for s in last.edge_sets.values()) == last.num_scored
    for model, whole in last.scores.items():
        parts = [(s.scores[model]["mrr"], s.num_scored) for s in last.edge_sets.values()]
        assert sum(m * n for m, n in parts) / last.num_scored == pytest.approx(whole["mrr"])
    known = sum(s.scores["live"].get("mrr_known", 0) * s.num_known for s in last.edge_sets.values())
    assert known / last.num_known == pytest.approx(last.scores["live"]["mrr_known"]) and last.num_known == sum(s.num_known for s in last.edge_sets.values())
    shown = metrics.edge_set_mrr.labels("buys", "live")._value.get()
    assert shown == last.edge_sets["buys"].scores["live"]["mrr"]
    for record in records:
        append_record(tmp_path / "copy", record)
    assert history_until(tmp_path / "copy", records[2].end_edge) == sum(map(len, (tmp_path / "copy" / FILE).read_bytes().splitlines(True)[:3]))
    rows = edge_sets(records)
    assert [r["name"] for r in rows] and sum(r["scored"] for r in rows) == sum(r.num_scored for r in records)
    negatives = sum(s.mean_negatives * s.num_scored for s in last.edge_sets.values()) / last.num_scored
    assert negatives == pytest.approx(last.mean_negatives) and len({round(s.mean_negatives, 6) for s in last.edge_sets.values()}) > 1
    assert {r["name"]: r["negatives"] for r in edge_sets(records[-1:])} == {name: s.mean_negatives for name, s in last.edge_sets.items()}


def test_a_set_without_events_is_counted_from_zero(tmp_path):
    metrics.edge_set_scored.clear()
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path, src, np.where(sets == 2, dst + 20, dst), time, np.zeros_like(sets), watermark=100 * HOUR)
    learn(trainer_of(tmp_path, model__name="pair"), 2)
    counted = {s.labels["edge_set"]: s.value for s in metrics.edge_set_scored.collect()[0].samples if s.name.endswith("_total")}
    assert set(counted) == {"views", "buys", "follows"} and counted["buys"] == counted["follows"] == 0 < counted["views"]


def test_the_history_of_a_log_of_one_set_says_nothing_of_sets(tmp_path):
    write_log(tmp_path, *stream(300), watermark=100 * HOUR)
    s = settings(tmp_path, model__name="pair")
    learn(Trainer(s, Paths.of(s, "train"), "cpu", LogReader.open(tmp_path), Registry.of(s), SystemClock(), Heartbeat(tmp_path, "train")))
    assert b"edge_sets" not in (tmp_path / WINDOWS).read_bytes() and HistoryReader(tmp_path).refresh()[-1].num_scored


def test_a_backtest_says_the_mrr_of_each_edge_set(tmp_path):
    s, log = world(tmp_path, model__name="pair")
    result = backtest(learning(s), log, Plan())
    head, *rows = result.set_table()
    assert head[:3] == ["MRR by edge set, known", "events", "live"] and [r[0] for r in rows] == ["views", "buys", "follows"]
    counts = [int(r[1].replace(",", "")) for r in rows]
    assert sum(counts) == result.num_known_destinations
    assert np.average([float(r[2]) for r in rows], weights=counts) == pytest.approx(result.mean("live")["mrr_known"], abs=1e-4)
    assert "<h2>Edge sets</h2>" in as_html(report_of(result, "t", Asked())) and result.label_set_table() == []


def test_a_backtest_shows_the_names_of_sets_in_a_terminal(tmp_path):
    s, log = world(tmp_path, model__name="pair")
    (_, _, of_sets, _), _ = backtest_file(s, None, Columns(), Plan(), lambda *_: None)
    narrow = Console(width=80, record=True, file=io.StringIO())
    narrow.print(of_sets)
    lines = narrow.export_text().splitlines()
    assert [row.split()[0] for row in lines[2:5]] == ["views", "buys", "follows"] and "partners +" in lines[0] and "…" not in "".join(lines)
