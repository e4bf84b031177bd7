"""Files into a log and out of it, and dead letters sent again, through the command line."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from streamd.cli import app
from streamd.ingest.deadletter import DeadLetter, LocalDeadLetters
from streamd.segments.reader import LogReader
from streamd.segments.tguf import open_tguf
from streamd.segments.verify import verify_log
from tests.builders import SECOND

REFERENCE = Path(__file__).parents[2] / "shared/tguf/nodefeat_labels_splits.tguf"


def invoke(*args, **env):
    return CliRunner().invoke(app, [str(a) for a in args], env={k: str(v) for k, v in env.items()})


def log_of(path):
    reader = LogReader(path)
    reader.refresh()
    return reader


@pytest.fixture
def table(tmp_path):
    """A CSV of 300 rows, seconds, two features, text and integer keys."""
    path = tmp_path / "rides.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("from", "to", "when", "a", "b"))
        for i in range(300):
            writer.writerow((f"zone:{i % 7}", i % 5, 1_600_000_000 + i // 3, i, -i / 2))
    return path


COLUMNS = ("--src", "from", "--dst", "to", "--time", "when", "--features", "a,b", "--time-unit", "s")
WIDE = {"STREAMD_STREAM__EDGE_FEATURE_DIM": 2}


def test_a_table_goes_into_a_log_and_out_again(table, tmp_path):
    done = invoke("tguf", "import", table, *COLUMNS, "--data-dir", tmp_path / "log", **WIDE)
    assert done.exit_code == 0 and "300 events" in done.output
    log = log_of(tmp_path / "log")
    src, dst, time = log.edges(0, 300)
    assert [log.keys[u] for u in src[:3]] == ["zone:0", "zone:1", "zone:2"] and [log.keys[v] for v in dst[:2]] == [0, 1]
    assert (time == (1_600_000_000 + np.arange(300) // 3) * SECOND).all() and log.watermark == time[-1]
    assert log.features_of(np.array([299])).tolist() == [[299, -149.5]] and not verify_log(tmp_path / "log")[1]
    done = invoke("tguf", "export", tmp_path / "out.tguf", "--start", "2020-09-13T12:26:50Z", "--end", "2020-09-13T12:27:00",
                  "--keys", tmp_path / "keys.csv", "--negatives", 3, "--data-dir", tmp_path / "log")
    assert done.exit_code == 0, done.output
    file = open_tguf(tmp_path / "out.tguf")
    assert (file.time == time[30:60]).all() and (file.src == src[30:60]).all() and file.val_start == 21
    with (tmp_path / "keys.csv").open() as keys:
        rows = list(csv.reader(keys, quoting=csv.QUOTE_NONNUMERIC))
    assert rows[0] == ["id", "key"] and {int(i): k for i, k in rows[1:]} == dict(enumerate(log.keys))


def test_an_import_goes_on_from_where_the_log_ends_but_never_behind_it(table, tmp_path):
    options = (*COLUMNS, "--data-dir", tmp_path / "log")
    assert invoke("tguf", "import", table, *options, **WIDE).exit_code == 0
    assert re.search("Row 1: .*behind the watermark", str(invoke("tguf", "import", table, *options, **WIDE).exception))
    assert log_of(tmp_path / "log").num_edges == 300


@pytest.mark.parametrize(("row", "says"), [
    ("zone:1,2,1600000000,1,1", "Row 301 is earlier"), ("zone:1,2,1600001000,1,nan", "row 301: a feature is nan"),
    (",2,1600001000,1,1", "Row 301: .*bad_key"), ("zone:1,2,soon,1,1", "row 301")])
def test_the_first_row_that_does_not_fit_is_named(table, tmp_path, row, says):
    with table.open("a") as file:
        file.write(row + "\n")
    done = invoke("tguf", "import", table, *COLUMNS, "--data-dir", tmp_path / "log", **WIDE)
    assert done.exit_code != 0 and re.search(says, str(done.exception)), done.exception


def test_the_references_file_goes_in_with_labels_and_node_features(tmp_path):
    if not REFERENCE.exists():
        pytest.skip("the reference file is not here")
    file = open_tguf(REFERENCE)
    wide = {"STREAMD_STREAM__EDGE_FEATURE_DIM": file.header.msg_dim, "STREAMD_STREAM__LABEL_DIM": file.header.label_dim,
            "STREAMD_STREAM__NODE_FEATURE_DIM": file.header.node_feat_dim}
    done = invoke("tguf", "import", REFERENCE, "--time-unit", "s", "--data-dir", tmp_path, **wide)
    assert done.exit_code == 0, done.exception
    log = log_of(tmp_path)
    src, dst, time = log.edges(0, file.num_edges)
    assert [log.keys[u] for u in src] == file.src.tolist() and [log.keys[v] for v in dst] == file.dst.tolist()
    assert (time == file.time * SECOND).all() and (log.features_of(np.arange(file.num_edges)) == file.msg).all()
    node, when, target = log.labels()
    assert [log.keys[n] for n in node] == file.label_n_id.tolist() and (target == file.label_target).all()
    assert (when >= file.label_time * SECOND).all()
    assert {log.keys[n]: v.tolist() for n, v in zip(log.feature_node, log.feature_values, strict=True)} == dict(
        enumerate(file.node_feat.tolist()))
    wrong = invoke("tguf", "import", REFERENCE, "--data-dir", tmp_path / "other")
    assert "EDGE_FEATURE_DIM" in str(wrong.exception)


def test_dead_letters_are_listed_and_counted_by_reason(tmp_path):
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    for i in range(5):
        letters.add(DeadLetter("rides", 1, i, 0, "late" if i % 2 else "bad_time", "why [it] is", 7, json.dumps({"n": i}).encode()))
    letters.flush()
    shown = invoke("deadletter", "list", "--data-dir", tmp_path, COLUMNS=200).output
    assert "bad_time 3, late 2" in shown and shown.count("rides/1") == 5 and "why [it] is" in shown
    few = invoke("deadletter", "list", "--reason", "late", "--limit", 1, "--data-dir", tmp_path, COLUMNS=200).output
    assert few.count("rides/1") == 1 and '{"n": 3}' in few
    assert "no dead letters" in invoke("deadletter", "list", "--data-dir", tmp_path / "none").output


def test_dead_letters_are_shown_without_what_a_terminal_would_obey(tmp_path):
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    evil = "\x1b[2J\r\n\x9b31m\u202e"
    letters.add(DeadLetter(evil, 1, 0, 0, evil, evil, 7, evil.encode() + b"\xff"))
    letters.flush()
    shown = invoke("deadletter", "list", "--data-dir", tmp_path, COLUMNS=300).output
    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(shown)
    assert shown.count("\\x1b[2J\\r\\n\\x9b31m\\u202e") == 5, "topic, reason, error, value, and reason counted"
    assert "\\xff" in shown
