"""Pruning takes old updates of node features, and no reader that can stand in the log sees a difference."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from crc32c import crc32c

from streamd.errors import DiskError
from streamd.eventlog import node_features as features
from streamd.eventlog import writer as log
from streamd.eventlog.layout import FEATURES, feature_row
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep import housekeeper, prune
from streamd.eventlog.upkeep.holds import ask_to_compact
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.node_features import NodeFeatures
from streamd.settings.loading import RetentionSettings
from streamd.storage import FileWithHoles
from tests.builders import batch, compact, feature_updates

SCHEMA = Schema(0, 2, 0)
NODES, SEGMENT = 12, 10
ROW = feature_row(2)


def grow(writer, num_edges, updates, rng):
    """Single edges, and `updates` updates of any nodes before, among and behind them."""
    first = writer.num_edges
    place = np.sort(rng.integers(0, num_edges + 1, updates))
    for i in range(num_edges):
        here = int((place == i).sum()) if i < num_edges - 1 else int((place >= i).sum())
        new = tuple(f"n:{n}" for n in range(NODES)) if writer.num_nodes == 0 else ()
        writer.keys.update({key: n for n, key in enumerate(new)})
        at = np.full(here, 0) if i < num_edges - 1 else place[place >= i] - i
        rows = batch(SCHEMA, np.zeros(1, np.int64), np.ones(1, np.int64), np.array([first + i]), new)
        writer.commit(dataclasses.replace(
            rows, node_F=rng.integers(0, NODES, here), node_row_F=at + np.arange(here), node_edge_F=at,
            node_values_F=rng.normal(size=(here, 2)).astype(np.float32)), Progress(), first + i)


def stored_rows(path):
    return np.frombuffer((path / FEATURES).read_bytes(), ROW)


def in_force(rows, event):
    """The features in force before an edge, by the rows of a whole file in order; zeros where there are none."""
    out = np.zeros((NODES, 2), np.float32)
    for row in rows:
        if row["seq"] and row["edge"] <= event:
            out[row["node"]] = row["values"]
    return out


def taken(updates, newest, event):
    for update in updates.until(event):
        newest.take(*update)
    return newest.of(np.arange(NODES))


def prune_all(writer):
    return max(prune.pruning(writer), default=0)


def delete_node(writer, node):
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = node, -1, -1
    writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), writer.watermark)


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """60 edges in six segments, with 400 updates of 12 nodes, read in slices of three rows."""
    monkeypatch.setattr(features, "SLICE_BYTES", 3 * ROW.itemsize)
    made = LogWriter(tmp_path, SCHEMA, SEGMENT)
    grow(made, 60, 400, np.random.default_rng(8))
    yield made
    made.close()


def test_from_the_first_event_on_the_same_features_are_in_force_and_nothing_more_is_kept(writer):
    before = stored_rows(writer.data_dir)
    assert prune_all(writer) == sum(before["edge"] == 0) - len(set(before["node"][before["edge"] == 0].tolist()))
    for cut in (10, 30, 30, 50):
        writer.drop_before(cut)
        assert writer.state.first_edge == cut
        prune_all(writer)
        now = stored_rows(writer.data_dir)
        kept = now["seq"] > 0
        assert len(now) == len(before) and (now[kept] == before[kept]).all() and not any(now[~kept].tobytes())
        early = before[: np.searchsorted(before["edge"], cut, side="right")]
        newest = {int(node): number for number, node in enumerate(early["node"])}
        assert set(np.flatnonzero(kept)) == {*newest.values(), *range(len(early), len(before))}
        for event in range(cut, 61):
            reader = LogReader.open(writer.data_dir)
            got = taken(reader.feature_updates(), NodeFeatures(Schema(0, 2)), event)
            np.testing.assert_array_equal(got, in_force(before, event), f"cut {cut}, before event {event}")
        assert verify_log(writer.data_dir)[1] == []
    assert any(before["edge"] == 50) and not (before["edge"][kept] == 30).all(), "updates lie at the cut itself"


def test_a_reader_that_is_open_meanwhile_goes_on_with_the_file_of_its_state(writer):
    before = stored_rows(writer.data_dir)
    old, new = LogReader.open(writer.data_dir), LogReader.open(writer.data_dir)
    roles = {event: (new.feature_updates(), NodeFeatures(Schema(0, 2))) for event in (0, 7, 30, 41, 60)}
    for event, (updates, newest) in roles.items():
        np.testing.assert_array_equal(taken(updates, newest, event), in_force(before, event))

    # A reader that does not refresh, as a backtest's, may begin again and again at what is no longer the first event.
    writer.drop_before(30)
    assert prune_all(writer)
    for event in range(61):
        np.testing.assert_array_equal(taken(old.feature_updates(), NodeFeatures(Schema(0, 2)), event), in_force(before, event))

    # Others see the new file and what is appended to it, wherever they had stood.
    grow(writer, 5, 40, np.random.default_rng(9))
    new.refresh()
    after = np.concatenate([before, stored_rows(writer.data_dir)[len(before):]])
    for event, (updates, newest) in roles.items():
        for at in range(max(event, 30), 66):
            np.testing.assert_array_equal(taken(updates, newest, at), in_force(after, at), f"stood at {event}")
    assert new.num_feature_updates == len(after)


def test_compaction_prunes_and_removes_the_features_of_deleted_nodes_in_one(writer):
    before = stored_rows(writer.data_dir)
    writer.drop_before(30)
    delete_node(writer, 0)
    delete_node(writer, 4)
    compact(writer)
    now = stored_rows(writer.data_dir)
    kept = now["seq"] > 0
    gone = np.isin(now["node"], [0, 4])
    assert not now["values"][gone].any() and (now["values"][kept & ~gone] == before["values"][kept & ~gone]).all()
    assert kept.sum() == (before["edge"] > 30).sum() + NODES, "of deleted nodes too a row is left"
    for event in range(30, 61):
        want = in_force(before, event)
        want[[0, 4]] = 0
        got = taken(LogReader.open(writer.data_dir).feature_updates(), NodeFeatures(Schema(0, 2)), event)
        np.testing.assert_array_equal(got, want)
    revision = writer.state.files[FEATURES].revision
    compact(writer)
    assert writer.state.files[FEATURES].revision == revision and verify_log(writer.data_dir)[1] == []


def test_a_restarted_writer_goes_on_behind_a_file_that_ends_with_a_hole(tmp_path):
    log = LogWriter(tmp_path, SCHEMA, SEGMENT)
    log.commit(batch(SCHEMA, np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1, np.int64), ("a", "b")), Progress(), 1)
    list(log.replacing(FEATURES, []))
    updates(log, np.zeros(9000, np.int64))
    size = (tmp_path / FEATURES).stat().st_size
    list(log.replacing(FEATURES, [bytes(size)]))
    log.close()
    assert (tmp_path / FEATURES).stat().st_size == size and (tmp_path / FEATURES).stat().st_blocks == 0
    log = LogWriter(tmp_path, SCHEMA, SEGMENT)
    updates(log, np.ones(2, np.int64))
    log.close()
    assert [n for n, _ in feature_updates(LogReader.open(tmp_path))] == [1, 1] and not verify_log(tmp_path)[1]


def updates(writer, nodes):
    """Commit updates behind the newest edge, each with its own value."""
    value = np.arange(2 * len(nodes), dtype=np.float32).reshape(-1, 2) + writer.state.seq + 1
    writer.commit(dataclasses.replace(
        empty_batch(SCHEMA), node_F=nodes, node_row_F=np.arange(len(nodes)), node_edge_F=np.zeros(len(nodes), np.int64),
        node_values_F=value), Progress(), writer.watermark)


def edge(writer):
    """Commit an edge that begins a segment, and drop all before it: what was updated until now can be pruned."""
    writer.seal()
    at = np.array([writer.num_edges])
    writer.commit(batch(SCHEMA, at * 0, at * 0, at), Progress(), int(at[0]))
    writer.drop_before(int(at[0]))


@pytest.fixture
def rewrites(monkeypatch):
    """Numbers of updates pruned by each pruning that the housekeeper begins, of small files too, and does in one step."""
    monkeypatch.setattr(prune, "LEAST_BYTES", 1000)
    monkeypatch.setattr(housekeeper, "STEP_SECONDS", 60)
    monkeypatch.setattr(features, "SLICE_BYTES", 1 << 16)
    found, whole = [], prune.pruning

    def noted(writer):
        found.append(0)
        for found[-1] in whole(writer):
            yield found[-1]

    monkeypatch.setattr(prune, "pruning", noted)
    return found


def keeper(writer):
    return Housekeeper(writer, RetentionSettings(), lambda _: ())


def test_the_housekeeper_prunes_when_most_of_the_file_is_garbage_and_then_not_until_as_much_has_come(writer, rewrites):
    path = writer.data_dir / FEATURES
    house = keeper(writer)
    for turn in range(3):
        # What lies behind the log's first event is no garbage.
        updates(writer, np.tile(np.arange(NODES), 1000))
        house.step()
        assert len(rewrites) == turn and path.stat().st_blocks * 512 > 12_000 * ROW.itemsize

        # Once it lies before it, hardly anything is left on the disk, and further steps find nothing to do.
        edge(writer)
        house.step()
        assert rewrites[turn] >= 12_000 - NODES
        assert path.stat().st_blocks * 512 <= 4 * 4096 and path.stat().st_size > 12_000 * ROW.itemsize
        for _ in range(3):
            house.step()
            edge(writer)
        house = keeper(writer)
        house.step()
        assert len(rewrites) == turn + 1, "neither later nor after a restart"
    assert verify_log(writer.data_dir)[1] == []


def test_garbage_is_weighed_against_what_would_have_to_be_written_again(writer, rewrites):
    house = keeper(writer)
    updates(writer, np.tile(np.arange(NODES), 1000))
    edge(writer)
    updates(writer, np.tile(np.arange(NODES), 1100))
    house.step()
    assert not rewrites
    updates(writer, np.tile(np.arange(NODES), 200))
    edge(writer)
    house.step()
    assert len(rewrites) == 1


def test_garbage_from_before_a_start_is_found_and_compaction_counts_as_pruning(writer, rewrites):
    updates(writer, np.tile(np.arange(NODES), 1000))
    edge(writer)
    keeper(writer).step()
    assert len(rewrites) == 1

    # Of 30 KB none need be garbage, by the number of nodes. Compaction reads the file and finds that all of it is.
    updates(writer, np.tile(np.arange(NODES), 30))
    edge(writer)
    house = keeper(writer)
    house.step()
    delete_node(writer, 4)
    ask_to_compact(writer.data_dir, writer.num_edges)
    house.compact()
    assert len(rewrites) == 1 and (stored_rows(writer.data_dir)["seq"] > 0).sum() == NODES
    updates(writer, np.tile(np.arange(NODES), 40))
    edge(writer)
    house.step()
    assert len(rewrites) == 2


def test_a_pruning_that_fails_amid_its_work_begins_again(writer, rewrites, monkeypatch):
    house = keeper(writer)
    house.step()
    updates(writer, np.tile(np.arange(NODES), 1000))
    edge(writer)
    with monkeypatch.context() as broken:
        broken.setattr(FileWithHoles, "append", lambda self, piece: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(DiskError):
            house.compact()
    assert not list(writer.data_dir.rglob("*.replacement-*")) and not writer.files.in_doubt
    house.step()
    assert len(rewrites) == 2 and rewrites[1] >= 1000 * NODES - NODES, "and whole"


def test_on_a_disk_without_holes_the_housekeeper_does_not_prune_again_and_again(writer, rewrites, monkeypatch):
    class Dense(FileWithHoles):
        def append(self, piece):
            self._write(piece, self.num_bytes)
            self.num_bytes += len(piece)
            self.crc = crc32c(piece, self.crc)

    monkeypatch.setattr(log, "FileWithHoles", Dense)
    house = keeper(writer)
    for _ in range(40):
        updates(writer, np.tile(np.arange(NODES), 200))
        edge(writer)
        house.step()
    assert 4 <= len(rewrites) <= 9, "each time as much again has come"


def test_commits_go_on_between_the_steps_of_a_pruning(writer):
    rng, steps = np.random.default_rng(3), 0
    writer.drop_before(30)
    for turn in range(3):
        for _ in prune.pruning(writer):
            steps += 1
            if steps % 20 == 0:
                # An edge, a new node and updates, in a segment that may be new.
                at = np.array([writer.num_edges])
                node = np.array([writer.num_nodes, *rng.integers(0, NODES, 3)])
                writer.commit(dataclasses.replace(
                    batch(SCHEMA, at * 0, at * 0, at, (f"n:{writer.num_nodes}",)), node_F=node, node_row_F=np.arange(4),
                    node_edge_F=np.array([0, 0, 1, 1]), node_values_F=rng.normal(size=(4, 2)).astype(np.float32)), Progress(), int(at[0]))
                reader = LogReader.open(writer.data_dir)
                newest = dict(feature_updates(reader))
                assert newest[int(node[0])] != [0, 0] and len(newest) == writer.num_nodes and not verify_log(writer.data_dir)[1]
        assert steps > 200 and (stored_rows(writer.data_dir)["seq"] == 0).any()
        writer.drop_before(40 + 10 * turn)


def test_an_update_that_comes_at_the_first_event_during_a_pruning_stays(tmp_path):
    log = LogWriter(tmp_path, SCHEMA, SEGMENT)
    one = np.zeros(1, np.int64)
    log.commit(batch(SCHEMA, one, one, one, ("a", "b")), Progress(), 1)
    edge(log)
    log.seal()
    log.drop_before(2)
    assert log.state.first_edge == log.num_edges == 2
    updates(log, np.array([0, 1, 0, 1]))
    steps = prune.pruning(log)
    next(steps)
    log.commit(dataclasses.replace(empty_batch(SCHEMA), new_keys=("c",)), Progress(), 1)
    updates(log, np.array([2, 1]))
    list(steps)
    rows = stored_rows(tmp_path)
    assert (rows["seq"] > 0).tolist() == [False, False, True, True, True, True] and rows["node"][2:].tolist() == [0, 1, 2, 1]
    log.close()


def test_nothing_is_dropped_or_compacted_while_a_pruning_is_under_way(writer, rewrites, monkeypatch):
    # Time passes at each look at the clock, so that a step of the housekeeper is a slice of the file.
    monkeypatch.setattr(prune, "time", SimpleNamespace(monotonic=functools.partial(next, itertools.count(0, 40))))
    updates(writer, np.tile(np.arange(NODES), 300))
    edge(writer)
    delete_node(writer, 4)
    house = Housekeeper(writer, RetentionSettings(max_bytes=1), lambda _: ())
    monkeypatch.setattr(features, "SLICE_BYTES", 4096)
    house.step()
    assert rewrites == [0]
    writer.seal()
    at = np.array([writer.num_edges])
    writer.commit(batch(SCHEMA, at * 0, at * 0, at), Progress(), int(at[0]))
    ask_to_compact(writer.data_dir, writer.num_edges)
    first = writer.state.first_edge
    for _ in range(30):
        house.step()
        assert writer.state.first_edge == first and writer.state.files[FEATURES].revision == 0
    house.compact()
    assert rewrites[0] > 1000
    rows = stored_rows(writer.data_dir)
    assert writer.state.first_edge == at[0] and not rows["values"][rows["node"] == 4].any() and not verify_log(writer.data_dir)[1]

    # Asked for nothing, it still does not leave before a pruning that it began is done.
    updates(writer, np.tile(np.arange(NODES), 300))
    edge(writer)
    house.compact()
    assert len(rewrites) == 2 and rewrites[1] > 1000


@pytest.mark.parametrize("seed", range(4))
def test_a_history_answers_for_any_edge_what_was_in_force_before_it(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(features, "SLICE_BYTES", 5 * ROW.itemsize)
    rng = np.random.default_rng(seed)
    writer = LogWriter(tmp_path, SCHEMA, SEGMENT)
    grow(writer, 60, 80, rng)
    rows, count = stored_rows(tmp_path), 70
    cut = int(rng.integers(30, 60))
    history = LogReader.open(tmp_path).feature_history(cut, count)
    nodes, edges = np.repeat(np.arange(NODES), 62), np.tile(np.arange(62), NODES)
    want = [in_force(rows[:count], min(edge, cut))[node] for node, edge in zip(nodes.tolist(), edges.tolist(), strict=True)]
    assert (history.before(nodes, edges) == np.array(want)).all()
    first = rows[:count][rows[:count]["edge"] <= cut]
    assert sorted(zip(*(x.tolist() for x in history.places()), strict=True)) == sorted(zip(first["node"].tolist(), first["edge"].tolist(), strict=True))
    # It stays as it is when updates come and others are pruned; a new one says the same of edges behind the log's first.
    grow(writer, 5, 30, rng)
    writer.drop_before(20)
    prune_all(writer)
    assert (history.before(nodes, edges) == np.array(want)).all()
    late = edges > writer.state.first_edge
    again = LogReader.open(tmp_path).feature_history(cut, count)
    assert (again.before(nodes[late], edges[late]) == np.array(want)[late]).all()
    # How long before it an update came that lies at the first edge or before, nobody knows.
    assert not again.before(nodes[~late], edges[~late]).any()
    writer.close()
    assert not LogReader.open(tmp_path).feature_history(cut, 0).before(nodes, edges).any()
