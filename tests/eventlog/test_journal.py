"""What a line of the journal means, by its format."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import CorruptionError, JournalError, LockedError
from streamd.eventlog.journal import journal
from streamd.eventlog.journal.journal import (
    LogState,
    SegmentState,
    decode_line,
    encode_line,
    journal_files,
    read_lines,
)
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, Run, Schema, empty_batch
from streamd.schema import EdgeSet, NodeSet
from streamd.tensors import pack, unpack
from tests.builders import batch, stream, write_log

STATE = LogState(
    schema=Schema(2, 0, 0), seq=7, sealed=(SegmentState(0, 5, 1, 10),), last=SegmentState(5, 3, 0, 10, 6),
    num_nodes=4, watermark=99, term=3)


def commit(**fields):
    return {"seq": 8, "segments": [], "files": [], "nodes": 4, "watermark": 99,
            "progress": {"cluster": "", "topics": {}, "positions": {}}, **fields}


def test_a_checkpoint_says_the_whole_state_again():
    line = STATE.checkpoint()
    assert LogState.restored(line) == STATE
    assert line["format"] == 3 and line["sets"] == [{"name": "default"}] and line["term"] == 3
    assert line["segments"] == [[0, 5, 1, 10, 0, [5]], [5, 3, 0, 10, 6, [3]]]


def test_format_2_has_no_terms_and_one_set():
    line = STATE.checkpoint() | {"format": 2, "segments": [[0, 5, 1, 10, 0], [5, 3, 0, 10]]}
    del line["sets"], line["term"]
    state = LogState.restored(line)
    assert state.term == 0 and state.segments == (STATE.segments[0], SegmentState(5, 3, 0, 10))
    assert state.after(commit(segments=[[5, 4, 0, 10]])).num_edges == 9


@pytest.mark.parametrize(("changed", "says"), [
    ({"format": 7}, "format 7, this streamd reads up to 6"),
    ({"format": 1}, "format 1"),
    ({"segments": [[0, 5, 1, 10, 0, [3, 1]]]}, "has 5 edges, its sets have")])
def test_a_checkpoint_of_what_is_not_known_is_refused_by_name(changed, says):
    with pytest.raises(JournalError, match=says):
        LogState.restored(STATE.checkpoint() | changed)


def test_a_commit_keeps_the_term_and_the_schema_unless_it_says_another():
    assert STATE.after(commit()).term == 3 and STATE.after(commit(term=4)).term == 4
    wider = Schema.declared((), (EdgeSet("default", feature_dim=2), EdgeSet("views", feature_dim=1)))
    changed = STATE.after(commit(schema=wider.fields()))
    assert STATE.after(commit()).schema == STATE.schema and changed.schema == wider


def test_a_state_of_several_sets_is_format_4_and_says_the_rows_of_each():
    schema = Schema.declared((NodeSet("user", 2), NodeSet("item")), (EdgeSet("views", "user", "item", 1), EdgeSet("buys", "user", "item")), 3)
    state = LogState(schema, 7, (SegmentState(0, 5, 1, 10, 0, (3, 2)),), SegmentState(5, 1, 0, 10, 6, (0, 1)))
    line = state.checkpoint()
    assert LogState.restored(line) == state and line["format"] == 4
    assert line["sets"] == [{"name": "views"}, {"name": "buys"}] and line["segments"][1] == [5, 1, 0, 10, 6, [0, 1]]
    assert [s.path for s in state.segments] == ["edges/" + "0" * 20, "edges/" + "0" * 19 + "5-6"]


def test_a_directory_of_format_2_is_read_on_and_the_next_writer_begins_format_3(tmp_path):
    """A file of format 2, as the release before wrote it, is made of one of format 3."""
    src, dst, time = stream(50)
    write_log(tmp_path, src, dst, time, tails=(20,))
    old, = journal_files(tmp_path / "journal")
    lines = []
    for _, line in read_lines(old):
        for field in ("sets", "term"):
            line.pop(field, None)
        line["segments"] = [entry[:5] for entry in line["segments"]]
        if "format" in line:
            line["format"] = 2
        lines.append(encode_line(line))
    old.write_bytes(b"".join(lines))
    reader = LogReader.open(tmp_path)
    assert reader.num_edges == 50 and (reader.edges(0, 50)[0] == src).all()
    LogWriter(tmp_path, Schema(), 100_000).close()
    newest = journal_files(tmp_path / "journal")[-1]
    assert decode_line(newest.read_bytes().splitlines(True)[0])["format"] == 3
    assert not reader.refresh() and LogReader.open(tmp_path).num_edges == 50


def test_a_journal_is_rolled_by_lines_too_and_says_the_same(tmp_path, monkeypatch):
    """A long file, as older releases left it, and short ones: the same states for writer and tail, and nothing is damaged."""
    src, dst, time = stream(200)
    write_log(tmp_path / "one", src, dst, time, tails=(3,), segment_edges=80)
    monkeypatch.setattr(journal, "FILE_LINES", 10)
    writer, tail = LogWriter(tmp_path / "short", Schema(), 80), None
    write = iter(range(0, 200, 3))
    for a in write:
        part = slice(a, min(a + 3, a + writer.remaining_rows(), 200))
        writer.commit(batch(Schema(), src[part], dst[part], time[part]), Progress(), int(time[part][-1]))
        tail = tail or JournalTail.open(tmp_path / "short")
        assert tail.refresh() or a == 0
        assert tail.state == writer.state
    names = [int(p.stem) for p in journal_files(tmp_path / "short/journal")]
    assert names[:4] == [1, 11, 21, 28] and max(b - a for a, b in itertools.pairwise(names)) == 10, "27 commits filled a segment"
    late = JournalTail.open(tmp_path / "short")
    assert late.state == writer.state and verify_log(tmp_path / "short") == (writer.state.seq, [])

    # Retention drops the files that say nothing of what is left.
    writer.drop_before(160)
    kept = [int(p.stem) for p in journal_files(tmp_path / "short/journal")]
    first = writer.state.segments[0]
    assert kept == names[-len(kept):] and 1 < len(kept) < len(names) and first.first_edge > 0
    assert verify_log(tmp_path / "short")[1] == [] and late.refresh() and late.state == writer.state
    writer.close()
    again = LogWriter(tmp_path / "short", Schema(), 80)
    assert again.state == late.state
    again.close()


def test_a_state_after_a_line_has_the_segments_that_the_line_leaves():
    rng = np.random.default_rng(2)
    state, plain = LogState(Schema()), {}
    for seq in range(1, 400):
        fields = {"segments": [], "dropped": []}
        last = max(plain, default=None)
        match rng.integers(6) if plain else 0:
            case 0:
                first = 0 if last is None else last + plain[last][1]
                if last is None or plain[last][1]:
                    fields["segments"] = [[first, int(rng.integers(1, 9)), 0, 10]]
            case 1 if len(plain) > 5:
                fields["dropped"] = sorted(plain)[: int(rng.integers(1, 3))]
            case 2:
                some = sorted(plain)[int(rng.integers(len(plain)))]
                fields["segments"] = [[*plain[some][:4], seq]]
            case _:
                fields["segments"] = [[last, plain[last][1] + 1, 0, 10]]
        before = state
        state = state.after(commit(seq=seq, **fields))
        for entry in fields["segments"]:
            plain[entry[0]] = entry
        for first in fields["dropped"]:
            del plain[first]
        assert state.segments == tuple(SegmentState(*plain[k]) for k in sorted(plain))
        assert before.seq == seq - 1 and state.num_edges == max(e[0] + e[1] for e in plain.values())
        assert state.first_edge == min(plain)
    assert len(plain) > 3


def test_another_writer_is_noticed_long_after_the_journal_was_looked_at(tmp_path, monkeypatch):
    two = batch(Schema(), np.array([0, 3]), np.array([1, 3]), np.array([10, 10]))
    first = LogWriter(tmp_path, Schema())
    os.utime(tmp_path / "journal", (10**9, 10**9))
    for _ in range(2):
        first.commit(two, Progress(), 20)
    monkeypatch.setattr("streamd.eventlog.recovery.fcntl.flock", lambda fd, how: None)
    second = LogWriter(tmp_path, Schema())
    with pytest.raises(LockedError, match="in spite of the lock"):
        first.commit(two, Progress(), 99)
    second.commit(two, Progress(), 40)


def test_stored_tensors_of_other_sets_are_refused_by_name(tmp_path):
    path = tmp_path / "facts"
    path.write_bytes(pack({"x": np.arange(3)}))
    assert unpack(path)[1]["sets"] == "default"
    path.write_bytes(pack({"x": np.arange(3)}, sets="default,views"))
    with pytest.raises(CorruptionError, match="edge sets default,views"):
        unpack(path)


def positions(*parts, topic_id="id"):
    return Progress("c", {"t": topic_id}, {"t": dict(enumerate(parts))})


def first_line(path):
    return decode_line(journal_files(path / "journal")[-1].read_bytes().splitlines(True)[0])


def test_single_events_ahead_are_written_and_read_as_older_releases_do():
    """The recording is of a release that knew no runs."""
    *_, (_, newest) = read_lines(Path(__file__).parent / "golden/events_ahead.journal")
    (_, checkpoint), *lines = read_lines(Path(__file__).parent / "golden/events_ahead.journal")
    state = LogState.restored(checkpoint)
    for _, line in lines:
        state = state.after(line)
    single = [(4, 0), (4, 1), (5, 0), (9, 0)]
    assert state.progress.positions["t"] == {0: Position(3, 1, tuple(Run(p, p) for p in single), 7), 1: Position(2)}
    assert journal.progress_fields(state.progress)["positions"]["t"]["0"] == newest["progress"]["positions"]["t"]["0"]
    assert state.checkpoint()["format"] == 3, "whoever wrote it can read it still"


def test_a_log_with_a_run_ahead_begins_a_file_of_format_5_and_one_without_never_does(tmp_path):
    writer = LogWriter(tmp_path, Schema(), 80)
    alone = Position(2, 0, (Run((4, 0), (4, 0)),))
    writer.commit(empty_batch(Schema()), positions(alone), 1)
    assert first_line(tmp_path)["format"] == 3 and len(journal_files(tmp_path / "journal")) == 1
    run = Position(2, 0, (Run((4, 0), (9, 3)), Run((11, 0), (11, 0))))
    writer.commit(empty_batch(Schema()), positions(run), 2)
    assert first_line(tmp_path)["format"] == 5 and first_line(tmp_path)["progress"]["positions"]["t"]["0"] == [2, 0, [[4, 0, 9, 3], [11, 0]], -1]

    # It stays of that format: lines from before are still there. All readers follow.
    writer.commit(empty_batch(Schema()), positions(Position(12)), 3)
    writer.close()
    assert JournalTail.open(tmp_path).state.progress == positions(Position(12)) and verify_log(tmp_path) == (3, [])
    LogWriter(tmp_path, Schema(), 80).close()
    assert first_line(tmp_path)["format"] == 5


@pytest.mark.parametrize("entry", [[4], [4, 0, 9], [4, 0, 9, 3, 1]])
def test_events_ahead_in_a_form_that_is_not_known_are_refused(entry):
    progress = {"cluster": "c", "topics": {}, "positions": {"t": {"0": [2, 0, [entry], -1]}}}
    with pytest.raises(ValueError, match="ahead|unpack"):
        STATE.after(commit(progress=progress))


def test_with_the_id_of_a_topic_all_its_positions_go_also_those_the_new_one_does_not_have_yet(tmp_path):
    writer = LogWriter(tmp_path, Schema(), 80)
    other = {"u": {0: Position(5)}}
    three = positions(Position(200), Position(200), Position(200))
    writer.commit(empty_batch(Schema()), Progress("c", {**three.topic_ids, "u": "other"}, {**three.positions, **other}), 1)
    writer.commit(empty_batch(Schema()), Progress("c", {"t": "new"}, {"t": {0: Position(200)}}), 2)
    assert writer.progress.positions == {"t": {0: Position(200)}, **other} and writer.progress.topic_ids["t"] == "new"
    writer.close()
    again = LogWriter(tmp_path, Schema(), 80)
    again.commit(empty_batch(Schema()), Progress("c", {"t": ""}, {"t": {1: Position(3)}}), 3)
    assert again.progress.positions["t"] == {0: Position(200), 1: Position(3)}, "a broker that names no ids says nothing about it"
    again.close()
