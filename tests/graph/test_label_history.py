import dataclasses

import numpy as np
import pytest

from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.label_history import LAST_LABELS, LabelHistory
from streamd.segments.log import LogWriter
from streamd.segments.reader import LogReader
from tests.builders import HOUR

SCHEMA, NODES = Schema(0, 0, 2), 12


def write(path, node, time, target):
    writer = LogWriter(path, SCHEMA, 1000)
    keys = [f"n:{i}" for i in range(NODES)]
    writer.keys.update({k: i for i, k in enumerate(keys)})
    writer.commit(dataclasses.replace(empty_batch(SCHEMA), new_keys=tuple(keys), label_node_L=node, label_time_L=time, label_target_L=target),
                  Progress(), 100 * HOUR)
    writer.close()
    return LogReader.open(path)


def labels(seed=0, count=200):
    rng = np.random.default_rng(seed)
    return rng.integers(0, NODES - 2, count), np.sort(rng.integers(0, 60, count)), rng.random((count, 2)).astype(np.float32)


def plainly(node, time, target, until, asked):
    """The same, one label after the other."""
    mean, count, before = {}, {}, time <= until
    for n, x in zip(node[before].tolist(), target[before].astype(np.float64), strict=True):
        count[n] = count.get(n, 0) + 1
        share = 1 / min(count[n], LAST_LABELS)
        mean[n] = x * share + mean.get(n, 0) * (1 - share)
    overall = target[before].mean(0) if before.any() else np.zeros(2)
    return np.array([mean.get(n, overall) for n in asked])


def test_the_mean_of_the_last_labels_is_that_of_going_through_them_one_by_one(tmp_path):
    columns = labels()
    history, asked = LabelHistory(write(tmp_path, *columns)), np.arange(NODES)
    for until in (-1, 5, 6, 6, 40, 10**12):
        np.testing.assert_allclose(history.means(asked, until), plainly(*columns, until, asked), atol=1e-5)


def test_what_it_says_does_not_depend_on_what_it_was_asked_before(tmp_path):
    log = write(tmp_path, *labels())
    often, once = LabelHistory(log), LabelHistory(log)
    for until in range(0, 50, 7):
        often.means(np.array([1]), until)
    np.testing.assert_array_equal(often.means(np.arange(NODES), 55), once.means(np.arange(NODES), 55))


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_deleted_node_is_forgotten_and_its_row_used_again(tmp_path, asked_before):
    columns = labels(1)
    log = write(tmp_path, *columns)
    history = LabelHistory(log)
    if asked_before:
        history.means(np.arange(NODES), HOUR)
    writer = LogWriter(tmp_path, SCHEMA, 1000)
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = 3, -1, -1
    later = dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows, label_node_L=np.array([NODES - 1]),
                                label_time_L=np.array([101 * HOUR]), label_target_L=np.full((1, 2), 7, np.float32))
    writer.commit(later, Progress(), 200 * HOUR)
    writer.close()
    log.refresh()
    got = history.means(np.array([3, 4, NODES - 1]), 150 * HOUR)
    everything = np.append(columns[2], [[7, 7]], 0).mean(0)
    np.testing.assert_allclose(got[[0, 2]], [everything, [7, 7]], atol=1e-5)
    np.testing.assert_allclose(got[1:2], plainly(*columns, 10**12, [4]), atol=1e-5)


def test_beyond_its_bound_the_node_whose_label_is_oldest_is_forgotten(tmp_path):
    node, time = np.array([0, 1, 2, 0, 3]), np.arange(5)
    target = np.array([[n, n] for n in (1, 2, 3, 1, 4)], np.float32)
    history = LabelHistory(write(tmp_path, node, time, target), max_values=6)
    overall = target.mean(0)
    np.testing.assert_allclose(history.means(np.arange(4), 10), [[1, 1], overall, [3, 3], [4, 4]])
