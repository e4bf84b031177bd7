"""Labels on their way: from the log by the recorder to a head that is scored and then learned."""

import dataclasses

import numpy as np
import pytest

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.registry import Registry
from streamd.serving.loaded_version import LoadedVersion
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.recorder import Recorder
from streamd.training.trainer import Trainer
from streamd.windows import recorded_windows
from streamd.windows.history import HistoryReader
from tests.builders import (
    HOUR,
    SECOND,
    SETS,
    batch,
    declared,
    learning,
    sets_rows,
    sets_stream,
    settings,
    write_sets_log,
)

USERS, ITEMS, EDGES, HOURS = 20, 10, 1800, 12


def write_labelled(path, dim, target_of):
    """Users of two camps, each meeting items of its own; every 10th event a label says something of its source's camp:

        camp 0   u0 u2 ... u18 --any of-- i20 i22 ... i28
        camp 1   u1 u3 ... u19 --any of-- i21 i23 ... i29
    """
    rng = np.random.default_rng(0)
    src = rng.integers(0, USERS, EDGES)
    camp = src % 2
    dst = USERS + 2 * rng.integers(0, ITEMS // 2, EDGES) + camp
    time = np.sort(rng.integers(0, HOURS * 3600, EDGES)) * SECOND
    schema = Schema(0, 0, dim)
    writer = LogWriter(path, schema, 1000)
    keys = [f"n:{i}" for i in range(USERS + ITEMS)]
    writer.keys.update({k: i for i, k in enumerate(keys)})
    for a in range(0, EDGES, 300):
        at = np.arange(a, a + 300, 10)
        rows = batch(schema, src[a:a + 300], dst[a:a + 300], time[a:a + 300], keys if a == 0 else ())
        writer.commit(dataclasses.replace(rows, label_node_L=src[at], label_time_L=time[at],
                                          label_target_L=np.array([target_of(c) for c in camp[at]], np.float32)), Progress(),
                      int(time[a + 299]) if a + 300 < EDGES else 100 * HOUR)
    writer.close()
    return schema


def trained(path, dim, target_of, **values):
    write_labelled(path, dim, target_of)
    s = settings(path, stream__label_dim=dim, model__id_rows=64, training__learning_rate=0.02, **values)
    log = LogReader.open(path)
    trainer = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(path, "train"))
    return s, trainer, [trainer.process(w) for w in recorded_windows(log, HOUR)]


@pytest.mark.parametrize(("name", "task", "dim", "target_of", "measure", "sign"), [
    ("tgn", "classification", 1, lambda c: [c], "auc", 1), ("sage", "regression", 2, lambda c: [100 * c, 5 - c], "mae", -1),
    ("tgn", "classification", 3, lambda c: [1 - c, 0.5 * c, 0.5 * c], "ndcg10", 1)])
def test_labels_are_scored_before_they_are_learned_and_then_better_than_a_constant(tmp_path, name, task, dim, target_of, measure, sign):
    _, _, records = trained(tmp_path, dim, target_of, model__labels=task, model__name=name)
    late = [r for r in records[6:] if r.scores["labels"]]
    live, constant = (np.mean([r.scores[n][measure] for r in late]) for n in ("labels", "labels_constant"))
    assert len(late) >= 4 and sign * (live - constant) > (0.3 if measure == "auc" else 0.05 if measure == "ndcg10" else 5)


def test_a_chunks_labels_are_those_of_its_time_embedded_as_of_its_start(tmp_path):
    write_labelled(tmp_path, 1, lambda c: [c])
    s = settings(tmp_path, stream__label_dim=1, model__labels="classification")
    log = LogReader.open(tmp_path)
    recorder, node, time, _ = Recorder(learning(s), log), *log.labels()
    seen = 0
    for window in recorded_windows(log, HOUR):
        for chunk in recorder.chunks(window):
            if chunk.labels is None:
                continue
            first = chunk.edges.first_edge
            after = int(log.time_of(np.array([first - 1]))[0]) if first else -1
            inside = (time > after) & (time <= chunk.edges.time_E[-1])
            around = chunk.labels.around
            got = around.node_M[around.hops[0].root_U][chunk.labels.node_L].numpy()
            assert sorted(got.tolist()) == sorted(node[inside].tolist())
            assert not (around.hops[0].eid_UK[around.hops[0].mask_UK] >= first).any(), "embedded as of the chunk's start"
            seen += len(got)
    assert seen == len(node) == EDGES // 10


def test_between_reads_across_segments(tmp_path):
    write_labelled(tmp_path, 1, lambda c: [c])
    log = LogReader.open(tmp_path)
    node, time, target = log.labels()
    for after, until in ((-1, 10**15), (int(time[40]), int(time[150])), (int(time[90]), int(time[95])), (10**15, 10**16)):
        inside = (time > after) & (time <= until)
        got = log.labels_between(after, until)
        assert all((g == w[inside]).all() and len(g) == inside.sum() for g, w in zip(got, (node, time, target), strict=True))


def test_labels_of_a_deleted_node_are_neither_scored_nor_learned(tmp_path):
    write_labelled(tmp_path, 1, lambda c: [c])
    s = settings(tmp_path, stream__label_dim=1, model__labels="classification")
    log = LogReader.open(tmp_path)
    gone = int(log.labels()[0][5])
    writer = LogWriter(tmp_path, Schema(0, 0, 1), 1000)
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = gone, -1, -1
    writer.commit(dataclasses.replace(empty_batch(Schema(0, 0, 1)), deletions_X=rows), Progress(), 100 * HOUR)
    writer.close()
    log.refresh()
    recorder = Recorder(learning(s), log)
    nodes = [c.labels.around.node_M[c.labels.around.hops[0].root_U[c.labels.node_L]] for w in recorded_windows(log, HOUR)
             for c in recorder.chunks(w) if c.labels is not None]
    told = np.concatenate(nodes)
    assert len(told) and gone not in told and (log.labels()[0] == gone).any()


@pytest.mark.parametrize(("given", "kept"), [(500, 500), (2500, 2000)])
def test_labels_of_one_time_are_all_taken_up_to_two_thousand(tmp_path, given, kept):
    schema = Schema(0, 0, 1)
    writer = LogWriter(tmp_path, schema, 5000)
    keys = [f"n:{i}" for i in range(given)]
    writer.keys.update({k: i for i, k in enumerate(keys)})
    rows = batch(schema, np.zeros(50, np.int64), np.arange(1, 51), np.arange(50) * SECOND, keys)
    nodes = np.arange(given)
    writer.commit(dataclasses.replace(rows, label_node_L=nodes, label_time_L=np.zeros(given, np.int64),
                                      label_target_L=np.ones((given, 1), np.float32)), Progress(), 100 * HOUR)
    writer.close()
    s = settings(tmp_path, stream__label_dim=1, model__labels="classification")
    log = LogReader.open(tmp_path)
    chunks = [c for w in recorded_windows(log, HOUR) for c in Recorder(learning(s), log).chunks(w)]
    assert [len(c.labels.target_LT) for c in chunks if c.labels is not None] == [kept]


def test_labels_of_each_node_set_are_learned_by_its_own_head(tmp_path):
    """Of users all labels are 1, of items all are 0: one head for both would say something between."""
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path, src, dst, time, sets)
    writer, at = LogWriter(tmp_path, SETS), int(time[-1])
    node = np.concatenate([np.arange(20), 20 + np.arange(15)])
    for hour in range(1, 7):
        writer.commit(dataclasses.replace(
            empty_batch(SETS), src_E=src[:60], dst_E=dst[:60], time_E=np.full(60, at + hour * HOUR), msg_ED=sets_rows(sets)[:60],
            label_node_L=node, label_time_L=np.full(35, at + hour * HOUR),
            label_target_L=(node < 20).astype(np.float32)[:, None]), Progress(), at + (hour + 1) * HOUR)
    writer.close()
    s = settings(tmp_path, model__name="pair", model__labels="classification", training__epochs=4, training__learning_rate=0.02,
                 **{k.replace(".", "__"): v for k, v in declared().items()})
    log = LogReader.open(tmp_path)
    trainer = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(tmp_path, "train"))
    records = []
    while due := trainer.due():
        records.append(trainer.process(due[0]))
    last = records[-1].node_sets
    assert HistoryReader(tmp_path).refresh()[-1].node_sets == last and {n: s.num_scored for n, s in last.items()} == {"user": 20, "item": 15}
    heads = trainer.learner.model.label_head
    assert [float(h.target_stats.mean) for h in (heads, *heads.others)] == [1.0, 0.0]
    served = LoadedVersion.restored(Registry.of(s).load(Registry.of(s).champion()), SETS)
    live = trainer.recorder.live
    users, items = ([served.labels(int(n), number, live)[0] for n in nodes] for number, nodes in ((0, node[:20]), (1, node[20:])))
    assert min(users) > 0.8 and max(items) < 0.2
    assert served.labels(-1, 0, live)[0] > 0.8 and served.labels(-1, 1, live)[0] < 0.2, "a key that was never seen is asked of its set's head"
