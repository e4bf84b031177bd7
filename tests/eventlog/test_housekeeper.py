"""Retention and compaction as ingest does them between commits."""

import dataclasses
import itertools
import os
import time
from contextlib import closing

import numpy as np
import pytest
from structlog.testing import capture_logs

from streamd.eventlog.journal.journal import journal_files, read_lines
from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import lock_directory
from streamd.eventlog.upkeep import housekeeper
from streamd.eventlog.upkeep.holds import (
    Hold,
    ask_to_compact,
    asked_to_compact,
    read_holds,
    write_hold,
)
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.roles import FACTS, HOLD, LOCK, MEMORY, folder_of
from streamd.settings.loading import RetentionSettings
from streamd.store.compaction_waits import late_roles
from streamd.telemetry import metrics
from tests.builders import SECOND, SETS, batch, sets_stream, stream, write_log, write_sets_log

SCHEMA = Schema(2, 0, 0)
SEGMENT = 10


@pytest.fixture
def writer(tmp_path):
    """Four full segments and half of a fifth, one edge a second: n:0 -> n:1, n:1 -> n:2, ..."""
    made = LogWriter(tmp_path, SCHEMA, SEGMENT)
    for i in range(9):
        time = np.arange(5 * i, 5 * i + 5) * SECOND
        src = np.arange(5 * i, 5 * i + 5) % 7
        keys = [f"secret:{k}" for k in range(8)] if i == 0 else []
        made.keys.update({k: n for n, k in enumerate(keys)})
        made.commit(batch(SCHEMA, src, src + 1, time, keys, seed=i + 1), Progress(), int(time[-1]))
    yield made
    made.close()


def keeper(writer, purged=None, **retention):
    def purge(keys):
        yield
        if purged is not None:
            purged.append(keys)

    return Housekeeper(writer, RetentionSettings(**retention), purge)


def delete_node(writer, node):
    nothing = empty_batch(writer.schema)
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = node, -1, -1
    writer.commit(dataclasses.replace(nothing, deletions_X=rows), Progress(), writer.watermark)


def metric(name):
    return metrics.INGEST.get_sample_value(f"streamd_{name}")


def test_segments_older_than_max_age_are_dropped_and_readers_carry_on(writer):
    reader = LogReader.open(writer.data_dir)
    keeper(writer, max_age_seconds=20).step()
    assert writer.state.first_edge == 20, "the watermark is 44 s: edges 0 to 19 are older than 24 s"
    reader.refresh()
    assert (reader.first_edge, reader.num_edges) == (20, 45) and reader.time_of(np.array([44]))[0] == 44 * SECOND
    assert not verify_log(writer.data_dir)[1] and metric("log_first_edge") == 20


def test_the_oldest_segments_go_until_the_rest_fits_and_the_newest_always_stays(writer, monkeypatch):
    monkeypatch.setattr(housekeeper, "STEP_SECONDS", 60)
    size = sum((writer.data_dir / s.path).stat().st_blocks * 512 for s in writer.state.segments)
    keeper(writer, max_bytes=size - 1).step()
    assert writer.state.first_edge == 10
    keeper(writer, max_bytes=1).step()
    newest, = journal_files(writer.data_dir / "journal")
    assert any(line["segments"] == [[40, 5, 0, 10, 0, [5]]] for _, line in read_lines(newest) if line and "segments" in line)
    assert writer.state.first_edge == 40 and metric("log_bytes") == (writer.data_dir / writer.state.segments[0].path).stat().st_blocks * 512


def test_what_is_kept_of_several_edge_sets_counts_the_files_of_each(tmp_path):
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path, src, dst, time, sets, watermark=int(time[-1]), segment_edges=250)
    with closing(LogWriter(tmp_path, SETS, 250)) as log:
        folders = [tmp_path / s.path for s in log.state.segments]
        sizes = [sum(file.stat().st_blocks for file in (folder, *folder.iterdir())) * 512 for folder in folders]
        assert len(sizes) > 2 and min(sizes[:-1]) > 8 * 4096, "three files and the order, not the folder alone"
        keeper(log, max_bytes=sum(sizes) - 1).step()
        assert not folders[0].exists() and folders[1].exists() and metric("log_bytes") == sum(sizes[1:])


def test_what_a_role_still_needs_is_not_dropped_but_reported(writer):
    write_hold(writer.data_dir, "train", Hold(25, 40))
    write_hold(writer.data_dir, "serve", Hold(40, 40))
    keeper(writer, max_bytes=1).step()
    assert writer.state.first_edge == 20 and metric("retention_blocked_bytes") > 0
    write_hold(writer.data_dir, "train", Hold(40, 40))
    keeper(writer, max_bytes=1).step()
    assert writer.state.first_edge == 40 and metric("retention_blocked_bytes") == 0


def test_a_damaged_hold_stops_housekeeping_and_nothing_is_dropped(writer):
    write_hold(writer.data_dir, "train", Hold(40, 40))
    (writer.data_dir / "roles/train/hold").write_bytes(b"{")
    keeper(writer, max_bytes=1).step()
    assert writer.state.first_edge == 0


def test_compaction_waits_for_the_roles_row_by_row_and_then_nothing_of_the_node_is_left(writer):
    before = {p: p.read_bytes() for p in writer.data_dir.rglob("*") if p.is_file()}
    assert any(b"secret:3" in x for x in before.values())
    delete_node(writer, 3)
    ask_to_compact(writer.data_dir, 45)
    write_hold(writer.data_dir, "train", Hold(12, 12))
    purged = []
    house = keeper(writer, purged)
    done = house.compact()
    hidden = [e for e in range(45) if 3 in (e % 7, e % 7 + 1)]
    assert done.edges == sum(e < 12 for e in hidden) and done.waiting == sum(e >= 12 for e in hidden)
    assert purged == [{"secret:3"}] and asked_to_compact(writer.data_dir) == 45
    reader = LogReader.open(writer.data_dir)
    assert reader.edges(12, 45)[0].tolist() == [e % 7 for e in range(12, 45)], "what is replayed stands as it was"
    write_hold(writer.data_dir, "train", Hold(45, 44))
    assert house.compact().waiting == 0 and asked_to_compact(writer.data_dir) == 45, "the role's own files still know"
    write_hold(writer.data_dir, "train", Hold(45, 45))
    house.compact()
    assert asked_to_compact(writer.data_dir) is None and not verify_log(writer.data_dir)[1]
    reader.refresh()
    src, dst, time = reader.edges(0, 45)
    assert not (np.stack([src, dst]) == 3).any() and (time == np.arange(45) * SECOND).all()
    assert not reader.features_of(np.array(hidden)).any() and reader.hidden(0, 45).sum() == len(hidden)
    assert not any(b"secret:3" in p.read_bytes() for p in writer.data_dir.rglob("*") if p.is_file())


def test_events_that_arrive_during_a_compaction_are_kept(writer):
    delete_node(writer, 3)
    ask_to_compact(writer.data_dir, 45)
    from streamd.eventlog.upkeep.compact import compaction

    reader = LogReader.open(writer.data_dir)
    steps, rewritten = compaction(writer, reader, writer.num_edges), [0]
    for i in range(45, 60, 3):
        rewritten.append(next(steps).segments)
        time = np.arange(i, i + 3) * SECOND
        while writer.remaining_rows() < 3:
            writer.seal()
        writer.commit(batch(SCHEMA, np.full(3, 5), np.full(3, 6), time), Progress(), int(time[-1]))
    rewritten.append(list(steps)[-1].segments)
    assert sum(a < b for a, b in itertools.pairwise(rewritten)) > 2, "segments are rewritten between the commits"
    reader.refresh()
    assert reader.num_edges == 60 and (reader.edges(0, 60)[2] == np.arange(60) * SECOND).all()
    assert not verify_log(writer.data_dir)[1]


def test_holds_are_told_apart_from_a_request_to_compact(tmp_path):
    ask_to_compact(tmp_path, 7)
    write_hold(tmp_path, "serve", Hold(1, 2))
    assert read_holds(tmp_path) == {"serve": Hold(1, 2)} and asked_to_compact(tmp_path) == 7


def test_labels_that_no_edge_follows_are_neither_lost_nor_overwritten(tmp_path):
    schema = Schema(0, 0, 1)
    log = LogWriter(tmp_path, schema, 4)
    labels = dataclasses.replace(empty_batch(schema), label_node_L=np.array([0, 1]), label_time_L=np.array([5, 5]),
                                 label_target_L=np.ones((2, 1), np.float32), new_keys=("a", "b"))
    log.commit(labels, Progress(), 5)
    delete_node(log, 1)
    reader = LogReader.open(tmp_path)
    assert Housekeeper(log, RetentionSettings(), lambda _: ()).compact().waiting == 0, "nobody asked"
    ask_to_compact(tmp_path, 0)
    assert Housekeeper(log, RetentionSettings(), lambda _: ()).compact().waiting == 1
    log.commit(batch(schema, np.array([0]), np.array([0]), np.array([6])), Progress(), 6)
    reader.refresh()
    assert reader.edges(0, 1)[2].tolist() == [6] and reader.labels()[0].tolist() == [0, 1]
    assert Housekeeper(log, RetentionSettings(), lambda _: ()).compact().waiting == 0
    reader.refresh()
    assert reader.labels()[0].tolist() == [0, 2] and reader.keys[2] is None and not verify_log(tmp_path)[1]
    log.close()


def test_labels_without_an_edge_find_room_in_a_larger_segment_and_a_restart_goes_on_in_it(tmp_path):
    schema = Schema(0, 0, 1)
    labels = dataclasses.replace(empty_batch(schema), label_node_L=np.array([0, 1]), label_time_L=np.array([5, 5]),
                                 label_target_L=np.ones((2, 1), np.float32))
    log = LogWriter(tmp_path, schema, 2)
    early = LogReader.open(tmp_path)
    log.commit(dataclasses.replace(labels, new_keys=("a", "b")), Progress(), 5)
    early.refresh()
    for count in (2, 3, 4, 5, 6):
        log.commit(labels, Progress(), 5)
        if count == 4:
            log.close()
            log = LogWriter(tmp_path, schema, 2)
        reader = LogReader.open(tmp_path)
        assert reader.labels()[0].tolist() == [0, 1] * count and not verify_log(tmp_path)[1]
    early.refresh()
    assert early.labels()[0].tolist() == [0, 1] * 6
    edges = batch(schema, np.array([0, 1]), np.array([1, 0]), np.array([6, 6]))
    for _ in range(9):
        log.commit(edges, Progress(), 6)
    early.refresh()
    assert early.num_edges == 18 and [s.first_edge for s in log.state.segments] == [0, 16] and not verify_log(tmp_path)[1]
    log.close()


def aged(writer, name, hold, seconds=100):
    """Give a role a hold that was renewed so long ago, with facts and memory beside it."""
    write_hold(writer.data_dir, name, hold)
    folder = folder_of(writer.data_dir, name)
    for part in (FACTS, MEMORY):
        (folder / part).mkdir()
        (folder / part / "state").write_bytes(b"old")
    renewed = time.time() - seconds
    os.utime(folder / HOLD, (renewed, renewed))
    return folder


def test_a_server_that_is_gone_for_longer_than_its_lease_blocks_retention_no_longer(writer):
    gone, counted = aged(writer, "serve-2", Hold(5, 5)), metric("leases_run_out_total")
    aged(writer, "serve", Hold(40, 40), seconds=1)
    house = Housekeeper(writer, RetentionSettings(max_age_seconds=20), lambda _: (), lease_seconds=60)
    house.step()
    assert writer.state.first_edge == 0 and metric("retention_blocked_bytes") > 0
    with capture_logs() as said:
        house.step()
    assert writer.state.first_edge == 20 and metric("retention_blocked_bytes") == 0
    assert [(x["child"], x["held_at_edge"]) for x in said if x["event"] == "lease_run_out"] == [("serve-2", 5)]
    assert metric("leases_run_out_total") == counted + 1 and read_holds(writer.data_dir) == {"serve": Hold(40, 40)}
    assert not (gone / FACTS).exists() and not (gone / MEMORY).exists() and (gone.parent / "serve" / FACTS).exists()


def test_a_lease_that_is_in_nobodys_way_does_not_end(writer):
    aged(writer, "serve", Hold(5, 5))
    house = Housekeeper(writer, RetentionSettings(), lambda _: (), lease_seconds=60)
    house.step()
    house.step()
    assert read_holds(writer.data_dir) == {"serve": Hold(5, 5)}


def test_neither_a_server_that_runs_nor_the_trainer_loses_its_hold(writer):
    lock = lock_directory(aged(writer, "serve", Hold(5, 5)) / LOCK)
    aged(writer, "train", Hold(7, 7))
    house = Housekeeper(writer, RetentionSettings(max_age_seconds=20), lambda _: (), lease_seconds=60)
    house.step()
    house.step()
    assert read_holds(writer.data_dir) == {"serve": Hold(5, 5), "train": Hold(7, 7)} and writer.state.first_edge == 0
    os.close(lock)
    house.step()
    assert set(read_holds(writer.data_dir)) == {"train"}


def test_compaction_does_not_wait_for_a_server_whose_lease_has_run_out(writer):
    delete_node(writer, 0)
    gone = aged(writer, "serve", Hold(45, 5))
    ask_to_compact(writer.data_dir, 45)
    Housekeeper(writer, RetentionSettings(), lambda _: (), lease_seconds=200).compact()
    assert asked_to_compact(writer.data_dir) == 45, "its memory may hold what was deleted"
    Housekeeper(writer, RetentionSettings(), lambda _: (), lease_seconds=60).compact()
    assert asked_to_compact(writer.data_dir) is None and not (gone / MEMORY).exists()


def test_a_delete_at_the_place_of_one_that_was_compacted_is_compacted_too(tmp_path):
    write_log(tmp_path, *stream(50), Schema())
    with closing(LogWriter(tmp_path, Schema(), 100)) as writer:
        keeper = Housekeeper(writer, RetentionSettings(), lambda _: ())
        for node in (3, 4):
            delete_node(writer, node)
            ask_to_compact(tmp_path, 50)
            keeper.compact()
            assert asked_to_compact(tmp_path) is None
            assert b"n:%d\x00" % node not in (tmp_path / "nodes.keys").read_bytes(), "the row of the next node follows"
        assert LogReader.open(tmp_path).keys[3:6] == [None, None, "n:5"]


def test_a_role_that_was_past_the_event_is_waited_for_until_it_knows_the_second_delete(tmp_path):
    write_log(tmp_path, *stream(50), Schema())
    with closing(LogWriter(tmp_path, Schema(), 100)) as writer:
        keeper = Housekeeper(writer, RetentionSettings(), lambda _: (), lease_seconds=200)
        for node in (3, 4):
            delete_node(writer, node)
            ask_to_compact(tmp_path, 50)
            keeper.compact()
            if node == 4:
                assert asked_to_compact(tmp_path) == 50 and late_roles(tmp_path, 50) == {"serve": 50}, "its files may hold n:4"
            write_hold(tmp_path, "serve", Hold(50, 50, writer.state.seq))
            assert late_roles(tmp_path, 50) == {}
            keeper.compact()
            assert asked_to_compact(tmp_path) is None

        # One that is gone is not waited for after its lease.
        aged(writer, "serve", Hold(50, 50, 1))
        ask_to_compact(tmp_path, 50)
        keeper.compact()
        assert asked_to_compact(tmp_path) == 50
        Housekeeper(writer, RetentionSettings(), lambda _: (), lease_seconds=60).compact()
        assert asked_to_compact(tmp_path) is None


def test_a_delete_that_comes_during_a_pass_is_compacted_before_the_request_is_done(tmp_path):
    write_log(tmp_path, *stream(50), Schema())
    with closing(LogWriter(tmp_path, Schema(), 100)) as writer:
        def delete(node):
            delete_node(writer, node)
            ask_to_compact(tmp_path, 50)

        def purge(keys):
            if "n:3" in keys:
                delete(4)
            return ()

        delete(3)
        Housekeeper(writer, RetentionSettings(), purge).compact()
        assert asked_to_compact(tmp_path) == 50, "n:4 waits"
        Housekeeper(writer, RetentionSettings(), purge).compact()
        assert asked_to_compact(tmp_path) is None
        assert LogReader.open(tmp_path).keys[3:6] == [None, None, "n:5"]
