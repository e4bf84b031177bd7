import dataclasses

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.label_history import LAST_LABELS, LabelHistory
from tests.builders import HOUR, SETS, sets_stream, write_sets_log

SCHEMA, NODES = Schema(0, 0, 2), 12
ALL_OF_ONE = np.zeros(NODES, np.int64)
"""The nodes' sets where there is one."""


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
        np.testing.assert_allclose(history.means(asked, ALL_OF_ONE, until), plainly(*columns, until, asked), atol=1e-5)


def test_what_it_says_does_not_depend_on_what_it_was_asked_before(tmp_path):
    log = write(tmp_path, *labels())
    often, once = LabelHistory(log), LabelHistory(log)
    for until in range(0, 50, 7):
        often.means(np.array([1]), ALL_OF_ONE[:1], until)
    np.testing.assert_array_equal(*(h.means(np.arange(NODES), ALL_OF_ONE, 55) for h in (often, once)))


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_deleted_node_is_forgotten_and_its_row_used_again(tmp_path, asked_before):
    columns = labels(1)
    log = write(tmp_path, *columns)
    history = LabelHistory(log)
    if asked_before:
        history.means(np.arange(NODES), ALL_OF_ONE, HOUR)
    writer = LogWriter(tmp_path, SCHEMA, 1000)
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = 3, -1, -1
    later = dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows, label_node_L=np.array([NODES - 1]),
                                label_time_L=np.array([101 * HOUR]), label_target_L=np.full((1, 2), 7, np.float32))
    writer.commit(later, Progress(), 200 * HOUR)
    writer.close()
    log.refresh()
    got = history.means(np.array([3, 4, NODES - 1]), ALL_OF_ONE[:3], 150 * HOUR)
    everything = np.append(columns[2], [[7, 7]], 0).mean(0)
    np.testing.assert_allclose(got[[0, 2]], [everything, [7, 7]], atol=1e-5)
    np.testing.assert_allclose(got[1:2], plainly(*columns, 10**12, [4]), atol=1e-5)


def test_beyond_its_bound_the_node_whose_label_is_oldest_is_forgotten(tmp_path):
    node, time = np.array([0, 1, 2, 0, 3]), np.arange(5)
    target = np.array([[n, n] for n in (1, 2, 3, 1, 4)], np.float32)
    history = LabelHistory(write(tmp_path, node, time, target), max_values=6)
    overall = target.mean(0)
    np.testing.assert_allclose(history.means(np.arange(4), ALL_OF_ONE[:4], 10), [[1, 1], overall, [3, 3], [4, 4]])


def test_a_node_without_labels_has_the_mean_of_its_own_node_set(tmp_path):
    """Users 0 to 19 and items 20 to 34: users 1 and 2 had 1 and 3, item 21 had 8."""
    write_sets_log(tmp_path, *sets_stream())
    writer = LogWriter(tmp_path, SETS)
    writer.commit(dataclasses.replace(empty_batch(SETS), label_node_L=np.array([1, 21, 2]), label_time_L=np.arange(3) + 100 * HOUR,
                                      label_target_L=np.array([[1], [8], [3]], np.float32)), Progress(), 200 * HOUR)
    writer.close()
    history = LabelHistory(LogReader.open(tmp_path))
    nodes, sets = np.array([5, 30, 1, -1, -1]), np.array([0, 1, 0, 0, 1])
    assert history.means(nodes, sets, 300 * HOUR).ravel().tolist() == [2, 8, 1, 2, 8]
    assert LabelHistory(LogReader.open(tmp_path)).means(nodes, sets, 100 * HOUR).ravel().tolist() == [1, 0, 1, 1, 0], "before items had any"
