"""Facts are durable before the hold that relies on them moves on."""

import dataclasses
import os
import time
from contextlib import closing

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import Hold, ask_to_compact, read_holds
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph import BlockGraph
from streamd.graph import restart_point as restart
from streamd.graph.live import LiveGraph
from streamd.graph.restart_point import RestartPoint
from streamd.roles import HOLD, folder_of
from streamd.tensors import pack, unpack
from tests.builders import settings, stream, write_log


@pytest.fixture
def live(tmp_path):
    """At edge 0 of a log of four full segments of 64 edges and one begun."""
    write_log(tmp_path, *stream(300), segment_edges=64)
    reader = LogReader.open(tmp_path)
    return LiveGraph(reader, BlockGraph(), settings(tmp_path).model)


def point_of(tmp_path, live):
    return RestartPoint(tmp_path, "train", live)


def test_what_is_read_for_the_first_time_is_held_from_the_start(tmp_path, live):
    point_of(tmp_path, live)
    assert read_holds(tmp_path) == {"train": Hold(0, 0)}


def test_the_hold_stays_behind_facts_until_they_are_stored(tmp_path, live):
    point = point_of(tmp_path, live)
    live.step(200, 1000)
    point.hold(200, 200)
    assert read_holds(tmp_path)["train"].edge == 0 and point.is_due(200)
    point.store(live.facts)
    assert not point.is_due(200)
    point.hold(200, 150)
    assert read_holds(tmp_path)["train"] == Hold(200, 150, live.log.state.seq)
    point.hold(120, 150)
    assert read_holds(tmp_path)["train"].edge == 120, "what else the role replays from counts too"


def test_facts_that_cannot_be_stored_move_no_hold(tmp_path, live, monkeypatch):
    point = point_of(tmp_path, live)
    live.step(200, 1000)

    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(restart, "save_facts", full)
    with pytest.raises(OSError, match="full"):
        point.store(live.facts)
    point.hold(200, 200)
    assert read_holds(tmp_path)["train"].edge == 0 and point.is_due(200)


def test_a_request_to_compact_makes_facts_due_before_a_segment_is_behind(tmp_path, live):
    live.step(30, 1000)
    point = point_of(tmp_path, live)
    point.store(live.facts)
    live.step(20, 1000)
    assert not point.is_due(50)
    ask_to_compact(tmp_path, 40)
    assert point.is_due(50) and point.compaction_request() == 40


def delete(tmp_path, node):
    """Commit a delete of a node behind the newest event."""
    with closing(LogWriter(tmp_path, Schema(), 64)) as writer:
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = node, -1, -1
        writer.commit(dataclasses.replace(empty_batch(Schema()), deletions_X=rows), Progress(), writer.watermark)


@pytest.mark.parametrize("aside", [True, False])
def test_facts_are_stored_again_for_a_second_delete_without_an_event_between_them(tmp_path, live, aside):
    """The hold of before the delete does not count, also not after a restart; nor do facts that have not taken it in."""
    point = point_of(tmp_path, live)
    live.step(300, 1000)
    node = live.log.gather("src", np.array([299]))[0]
    for number, gone in enumerate((3, node)):
        delete(tmp_path, gone)
        ask_to_compact(tmp_path, 300)
        live.log.refresh()
        seq = live.log.state.seq
        assert point.is_due(300) is (number == 0), "these facts still have the node"
        if number:
            point.store(live.facts)
            point.hold(300, 300)
            assert not read_holds(tmp_path)["train"].has_purged(300, seq)
        live.step(300, 1000)
        assert point.is_due(300)
        if aside:
            point.prepare_store(300)()
        else:
            point.store(live.facts)
        assert not point.is_due(300)
        point.hold(300, 300)
        assert read_holds(tmp_path)["train"] == Hold(300, 300, seq)
        point = point_of(tmp_path, live)
        point.hold(300, 300)
        assert read_holds(tmp_path)["train"].purged_until_seq == seq
    again = LiveGraph(live.log, BlockGraph(), settings(tmp_path).model)
    again.restore_facts(tmp_path / "roles/train/facts", 300)
    assert again.edge == 300 and not {3, node} & set(again.facts.all.destinations().tolist())
    of_gone = again.facts.all.compute(np.array([node]), np.array([10**13]), np.arange(35)[None])
    of_new = again.facts.all.compute(np.array([999]), np.array([10**13]), np.arange(35)[None])
    np.testing.assert_array_equal(of_gone, of_new)


def test_a_restart_goes_on_with_the_facts_that_were_stored(tmp_path, live):
    live.step(200, 1000)
    point_of(tmp_path, live).store(live.facts)
    again = LiveGraph(live.log, BlockGraph(), settings(tmp_path).model)
    point = point_of(tmp_path, again)
    point.resume(300)
    assert again.edge == 200 and not point.is_due(200)


@pytest.mark.parametrize("stored_at", [0, 100, 128, 200])
def test_facts_made_aside_are_stored_as_the_live_ones_would_be(tmp_path, live, stored_at):
    """Bit for bit, with deletes among the events, while the live facts move on."""
    deletes = np.zeros(3, DELETION)
    deletes["src"], deletes["dst"], deletes["edge"] = [3, 25, 7], -1, [90, 150, 260]
    live.log.deletions.take(deletes, find=None)
    point = point_of(tmp_path, live)
    live.step(stored_at, 33)
    if stored_at:
        point.store(live.facts)
    live.step(280, 1000)
    want = pack(live.facts.all.tensors())
    store = point.prepare_store(280)
    live.step(300, 1000)
    store()
    path, = (tmp_path / "roles/train/facts").iterdir()
    (tmp_path / "wanted").write_bytes(want)
    (got, metadata), (expected, expected_metadata) = unpack(path), unpack(tmp_path / "wanted")
    assert path.stem.endswith("280") and metadata == expected_metadata and got.keys() == expected.keys()
    for name, array in got.items():
        np.testing.assert_array_equal(array, expected[name])
    assert not point.is_due(280)
    point.hold(300, 300)
    assert read_holds(tmp_path)["train"].edge == 280


def test_where_the_facts_stored_last_are_lost_they_are_made_from_the_log(tmp_path, live):
    point = point_of(tmp_path, live)
    live.step(128, 1000)
    point.store(live.facts)
    live.step(300, 1000)
    path, = (tmp_path / "roles/train/facts").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    point.prepare_store(300)()
    assert point.is_due(300), "nothing is stored that is not exact"
    point.hold(300, 300)
    assert read_holds(tmp_path)["train"].edge == 0
    point.prepare_store(300)()
    again = LiveGraph(live.log, BlockGraph(), settings(tmp_path).model)
    assert point_of(tmp_path, again) and again.restore_facts(path.parent, 300) == 300
    nodes = np.arange(35)
    asked = [f.compute(nodes, np.full(35, 10**13), np.tile(nodes, (35, 1))) for f in (live.facts.all, again.facts.all)]
    np.testing.assert_array_equal(*asked)


def test_the_owner_of_a_hold_renews_it_at_its_start_and_while_it_stands_still(tmp_path, live, monkeypatch):
    point = point_of(tmp_path, live)
    point.hold(0, 0)
    path = folder_of(tmp_path, "train") / HOLD
    long_ago = time.time() - 1000
    os.utime(path, (long_ago, long_ago))
    point.hold(0, 0)
    assert path.stat().st_mtime == pytest.approx(long_ago), "it was renewed a moment ago"
    monkeypatch.setattr(restart, "RENEW_SECONDS", 0.0)
    point.hold(0, 0)
    assert path.stat().st_mtime > long_ago + 900

    # A hold that somebody removed is written again; a start renews one that is there.
    path.unlink()
    point.hold(0, 0)
    assert read_holds(tmp_path) == {"train": Hold(0, 0)}
    os.utime(path, (long_ago, long_ago))
    point_of(tmp_path, live)
    assert path.stat().st_mtime > long_ago + 900
