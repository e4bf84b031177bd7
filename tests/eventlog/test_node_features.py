"""Updates of node features: each reader takes each of them once, in force up to the place where it stands."""

import dataclasses

import numpy as np
import pytest

from streamd.errors import DataDirectoryError
from streamd.eventlog import node_features as features
from streamd.eventlog.layout import FEATURES
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.node_features import NodeFeatures
from tests.builders import batch, compact, feature_updates

SCHEMA = Schema(0, 2, 0)
NODES = 12


def commit_of(rng, at, num_edges, updates):
    """Edges from `at` on, and updates that lie among them."""
    ids = np.zeros(num_edges, np.int64)
    node = rng.integers(0, NODES, updates)
    place = np.sort(rng.integers(0, num_edges + 1, updates))
    return dataclasses.replace(
        batch(SCHEMA, ids, ids + 1, at + np.arange(num_edges), range(NODES) if not at else ()), node_F=node,
        node_row_F=place + np.arange(updates), node_edge_F=place, node_values_F=rng.normal(size=(updates, 2)).astype(np.float32))


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 20])
def test_the_newest_features_before_any_edge_are_in_force_for_readers_behind_the_log(tmp_path, monkeypatch, slice_bytes):
    monkeypatch.setattr(features, "SLICE_BYTES", slice_bytes)
    rng, every = np.random.default_rng(4), []
    writer = LogWriter(tmp_path, SCHEMA, 30)
    reader = LogReader.open(tmp_path)
    roles = [(reader.feature_updates(), NodeFeatures(Schema(0, 2)), [0]) for _ in range(3)]
    for _ in range(40):
        at = writer.num_edges
        some = commit_of(rng, at, int(rng.integers(1, min(9, writer.remaining_rows()) + 1)), int(rng.integers(0, 7)))
        every += [(at + int(e), int(n), v) for e, n, v in zip(some.node_edge_F, some.node_F, some.node_values_F, strict=True)]
        writer.commit(some, Progress(), at)
        assert reader.refresh() and reader.num_feature_updates == len(every)
        # The first keeps up, the second lags, the third hardly moves.
        for (updates, newest, stands), most in zip(roles, (10**9, 9, 2), strict=True):
            stands[0] = min(stands[0] + int(rng.integers(0, most)), reader.num_edges)
            for update in updates.until(stands[0]):
                newest.take(*update)
            want = np.zeros((NODES, 2), np.float32)
            for edge, node, values in every:
                if edge <= stands[0]:
                    want[node] = values
            np.testing.assert_array_equal(newest.of(np.arange(NODES)), want)
    assert [n for n, _ in feature_updates(reader)] == [n for _, n, _ in every]
    writer.close()


def test_compaction_meanwhile_takes_nothing_but_the_deleted_nodes_features(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "SLICE_BYTES", 100)
    rng = np.random.default_rng(5)
    writer = LogWriter(tmp_path, SCHEMA, 30)
    writer.keys.update({i: i for i in range(NODES)})
    writer.commit(commit_of(rng, 0, 20, 60), Progress(), 20)
    reader = LogReader.open(tmp_path)
    before, half = feature_updates(reader), reader.feature_updates()
    early = [n for nodes, *_ in half.until(7) for n in nodes.tolist()]
    gone = np.zeros(1, DELETION)
    gone["src"], gone["dst"], gone["time"] = 3, -1, -1
    writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=gone), Progress(), 21)
    compact(writer)
    reader.refresh()
    assert feature_updates(reader) == [(n, v if n != 3 else [0.0, 0.0]) for n, v in before] and (3, [0.0, 0.0]) not in before
    assert early + [n for nodes, *_ in half.until(100) for n in nodes.tolist()] == [n for n, _ in before]
    writer.close()


def test_a_file_that_lost_rows_is_refused_by_name(tmp_path):
    writer = LogWriter(tmp_path, SCHEMA, 30)
    writer.commit(commit_of(np.random.default_rng(6), 0, 5, 9), Progress(), 20)
    writer.close()
    reader = LogReader.open(tmp_path)
    (tmp_path / FEATURES).write_bytes((tmp_path / FEATURES).read_bytes()[:-1])
    with pytest.raises(DataDirectoryError, match="updates.rows is shorter than the journal says"):
        list(reader.feature_updates().until(100))


def test_a_file_that_is_gone_is_refused_by_name(tmp_path):
    writer = LogWriter(tmp_path, SCHEMA, 30)
    writer.commit(commit_of(np.random.default_rng(6), 0, 5, 9), Progress(), 20)
    writer.close()
    (tmp_path / FEATURES).unlink()
    with pytest.raises(DataDirectoryError, match="updates.rows of the data_dir is missing"):
        LogReader.open(tmp_path)
