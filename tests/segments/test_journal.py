"""What a line of the journal means, by its format."""

import numpy as np
import pytest

from streamd.errors import CorruptionError, JournalError
from streamd.events import Schema
from streamd.segments.journal import (
    LogState,
    SegmentState,
    decode_line,
    encode_line,
    journal_files,
    read_lines,
)
from streamd.segments.log import LogWriter
from streamd.segments.reader import LogReader
from streamd.tensors import pack, unpack
from tests.builders import stream, write_log

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
    ({"format": 4}, "format 4, this streamd reads up to 3"),
    ({"format": 1}, "format 1"),
    ({"sets": [{"name": "default"}, {"name": "views"}]}, "edge sets default, views"),
    ({"segments": [[0, 5, 1, 10, 0, [3, 2]]]}, "several edge sets")])
def test_a_checkpoint_of_what_is_not_known_is_refused_by_name(changed, says):
    with pytest.raises(JournalError, match=says):
        LogState.restored(STATE.checkpoint() | changed)


def test_a_commit_keeps_the_term_unless_it_says_another_and_a_schema_change_is_refused():
    assert STATE.after(commit()).term == 3 and STATE.after(commit(term=4)).term == 4
    with pytest.raises(JournalError, match="Commit 8 changes the schema"):
        STATE.after(commit(schema={"set": "views"}))


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


def test_stored_tensors_of_other_sets_are_refused_by_name(tmp_path):
    path = tmp_path / "facts"
    path.write_bytes(pack({"x": np.arange(3)}))
    assert unpack(path)[1]["sets"] == "default"
    path.write_bytes(pack({"x": np.arange(3)}, sets="default,views"))
    with pytest.raises(CorruptionError, match="edge sets default,views"):
        unpack(path)
