"""Files into a log and out of it, through the command line."""

import csv
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.format import TGUFSchema
from streamd.eventlog.tguf.reader import open_tguf
from streamd.eventlog.tguf.writer import TGUFWriter
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, MICROSECONDS, Progress, Schema, SetKey, empty_batch
from streamd.exchange import produce
from tests.builders import (
    SECOND,
    SETS,
    batch,
    feature_updates,
    sets_stream,
    stream,
    write_sets_log,
)

REFERENCE = Path(__file__).parents[3] / "shared/tguf/nodefeat_labels_splits.tguf"


def invoke(*args, **env):
    return CliRunner().invoke(app, [str(a) for a in args], env={k: str(v) for k, v in env.items()})


def log_of(path):
    return LogReader.open(path)


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
    assert "times 2020-09-13T12:26:40Z to 2020-09-13T12:28:19Z, read as seconds" in done.output
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
    assert re.search("rides.csv row 1: .*behind the watermark", str(invoke("tguf", "import", table, *options, **WIDE).exception))
    assert log_of(tmp_path / "log").num_edges == 300


@pytest.mark.parametrize(("row", "says"), [
    ("zone:1,2,1600000000,1,1", "row 301 is earlier"), ("zone:1,2,1600001000,1,nan", "row 301: column 'b': 'nan' is not a number"),
    (",2,1600001000,1,1", r"row 301: column 'from': src is missing \(missing_field\)"),
    ("zone\x7f,2,1600001000,1,1", r"row 301: src is empty or holds a control character \(bad_key\)"), ("zone:1,2,soon,1,1", "row 301: column 'when'"),
    ("zone:1,2,1600000000000,1,1", "row 301: column 'when': .*ahead of the clock"),
    ("zone:1,2,9223372036855,1,1", "row 301: column 'when': .*out of range")])
def test_the_first_row_that_does_not_fit_is_named(table, tmp_path, row, says):
    with table.open("a") as file:
        file.write(row + "\n")
    done = invoke("tguf", "import", table, *COLUMNS, "--data-dir", tmp_path / "log", **WIDE)
    assert done.exit_code != 0 and re.search(f"rides.csv {says}.* Operator action: .*Events appended before: 0",
                                             str(done.exception)), done.exception
    assert not (tmp_path / "log").exists(), "a refused import leaves no log"


def test_the_references_file_goes_in_with_labels_and_node_features(tmp_path):
    if not REFERENCE.exists():
        pytest.skip("the reference file is not here")
    file = open_tguf(REFERENCE)
    wide = {"STREAMD_STREAM__EDGE_FEATURE_DIM": file.header.msg_dim, "STREAMD_STREAM__LABEL_DIM": file.header.label_dim,
            "STREAMD_STREAM__NODE_FEATURE_DIM": file.header.node_feat_dim}
    done = invoke("tguf", "import", REFERENCE, "--data-dir", tmp_path, **wide)
    assert done.exit_code == 0, done.exception
    log = log_of(tmp_path)
    src, dst, time = log.edges(0, file.num_edges)
    assert [log.keys[u] for u in src] == file.src.tolist() and [log.keys[v] for v in dst] == file.dst.tolist()
    assert (time == file.time).all() and (log.features_of(np.arange(file.num_edges)) == file.msg).all()
    node, when, target = log.labels()
    assert [log.keys[n] for n in node] == file.label_n_id.tolist() and (target == file.label_target).all()
    assert (when >= file.label_time).all()
    assert {log.keys[n]: v for n, v in feature_updates(log)} == dict(
        enumerate(file.node_feat.tolist()))
    wrong = invoke("tguf", "import", REFERENCE, "--data-dir", tmp_path / "other")
    assert "EDGE_FEATURE_DIM" in str(wrong.exception)


SHAPE = Schema(2, 1, 1)
WIDTHS = {"STREAMD_STREAM__EDGE_FEATURE_DIM": 2, "STREAMD_STREAM__NODE_FEATURE_DIM": 1, "STREAMD_STREAM__LABEL_DIM": 1}


def made_log(path, deleted=()):
    """300 edges of 2020 with features, a label beside every hundredth, features of nodes 0 to 6, some nodes deleted."""
    src, dst, time = stream(300, seed=4)
    ids = {}
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        ids.setdefault(u, len(ids))
        ids.setdefault(v, len(ids))
    src, dst = (np.array([ids[n] for n in ends.tolist()]) for ends in (src, dst))
    time = 1_600_000_000 * SECOND + time
    writer = LogWriter(path, SHAPE, 130)
    for a in range(0, 300, 100):
        while writer.remaining_rows() < 100:
            writer.seal()
        part = slice(a, a + 100)
        more = {"label_node_L": src[a:a + 1], "label_time_L": time[a:a + 1], "label_target_L": np.full((1, 1), a, np.float32)}
        if a == 0:
            more |= {"node_F": np.arange(7), "node_row_F": np.arange(101, 108), "node_edge_F": np.full(7, 100),
                     "node_values_F": np.arange(7, dtype=np.float32)[:, None]}
        keys = [f"n:{i}" for i in range(len(ids))] if a == 0 else ()
        new = batch(SHAPE, src[part], dst[part], time[part], keys, a)
        writer.commit(dataclasses.replace(new, **more), Progress(), int(time[a + 99]))
    rows = np.zeros(len(deleted), DELETION)
    rows["src"], rows["dst"] = deleted, -1
    writer.commit(dataclasses.replace(empty_batch(SHAPE), deletions_X=rows), Progress(), writer.watermark)
    writer.close()


def exported(data_dir, file):
    done = invoke("tguf", "export", file, "--negatives", 3, "--data-dir", data_dir)
    assert done.exit_code == 0, done.exception
    return open_tguf(file)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_what_is_exported_imported_and_exported_again_is_the_same_to_the_byte(tmp_path, unit):
    made_log(tmp_path / "one")
    first = exported(tmp_path / "one", tmp_path / "one.tguf")
    done = invoke("tguf", "import", tmp_path / "one.tguf", "--data-dir", tmp_path / "two",
                  STREAMD_STREAM__TIME_UNIT=unit, **WIDTHS)
    assert done.exit_code == 0, done.exception
    assert "310 events" in done.output and "read as microseconds" in done.output
    assert log_of(tmp_path / "two").watermark == first.time[-1]
    exported(tmp_path / "two", tmp_path / "two.tguf")
    assert (tmp_path / "one.tguf").read_bytes() == (tmp_path / "two.tguf").read_bytes()


def test_a_round_trip_past_deleted_nodes_gives_the_same_values_under_the_same_keys(tmp_path):
    made_log(tmp_path / "one", deleted=(2, 9))
    first = exported(tmp_path / "one", tmp_path / "one.tguf")
    assert first.num_edges < 300
    assert invoke("tguf", "import", tmp_path / "one.tguf", "--data-dir", tmp_path / "two", **WIDTHS).exit_code == 0
    second, keys = exported(tmp_path / "two", tmp_path / "two.tguf"), np.array(log_of(tmp_path / "two").keys)
    assert (keys[second.src] == first.src).all() and (keys[second.dst] == first.dst).all()
    assert (keys[second.label_n_id] == first.label_n_id).all()
    for name in ("time", "msg", "label_time", "label_target", "node_feat"):
        np.testing.assert_array_equal(getattr(second, name), getattr(first, name), name)
    assert (second.val_start, second.test_start) == (first.val_start, first.test_start)


SETS_YAML = """
stream: {label_dim: 1, time_unit: us}
graph:
  node_sets:
    user: {features: {f0: number, f1: number}}
    item: {features: {f0: number}}
  edge_sets:
    views: {source: user, target: item, features: {f0: number}}
    buys: {source: user, target: item, features: {f0: number, f1: number}}
    follows: {source: user, target: user}
"""


@pytest.fixture
def log_of_sets(tmp_path):
    """Settings that declare SETS, and a log of them: of nodes 0 to 19, users, and 20 to 34, items, each has a label and
    each third has features."""
    (tmp_path / "sets.yaml").write_text(SETS_YAML)
    src, dst, time, sets = sets_stream()
    time = 1_600_000_000 * SECOND + time
    write_sets_log(tmp_path / "one", src, dst, time, sets, segment_edges=250)
    node = np.arange(35)
    featured = node[::3]
    values = np.concatenate([SETS.node_rows(int(n >= 20), np.full((1, 2 - (n >= 20)), n + 1, np.float32)) for n in featured])
    writer = LogWriter(tmp_path / "one", SETS, 250)
    writer.commit(dataclasses.replace(
        empty_batch(SETS), label_node_L=node, label_time_L=np.full(35, time[-1]), label_target_L=np.full((35, 1), 2, np.float32),
        node_F=featured, node_row_F=np.arange(len(featured)), node_edge_F=np.zeros(len(featured), np.int64), node_values_F=values),
        Progress(), int(time[-1]))
    writer.close()
    return ("--config", tmp_path / "sets.yaml", "--data-dir")


def test_an_edge_set_between_nodes_of_one_kind_comes_back_with_their_labels_and_features(tmp_path, log_of_sets):
    file, again = tmp_path / "follows.tguf", tmp_path / "again.tguf"
    done = invoke("tguf", "export", file, "--edge-set", "follows", *log_of_sets, tmp_path / "one")
    assert done.exit_code == 0 and "20 labels" in done.output, done.exception
    shown = invoke("tguf", "inspect", file).output
    assert "node_feat" in shown and "20 labels checked (no journal" in invoke("tguf", "verify", file).output
    first = open_tguf(file)
    assert first.node_feat.shape == (19, 2) and first.node_feat[18].tolist() == [19, 19] and first.label_n_id.max() == 19
    done = invoke("tguf", "import", file, "--edge-set", "follows", *log_of_sets, tmp_path / "two")
    assert done.exit_code == 0, done.exception
    log = log_of(tmp_path / "two")
    assert not log.edge_sets_of(np.arange(log.num_edges)).tolist().count(0) and set(log.node_sets_of(np.arange(20)).tolist()) == {0}
    assert invoke("tguf", "export", again, "--edge-set", "follows", *log_of_sets, tmp_path / "two").exit_code == 0
    assert again.read_bytes() == file.read_bytes()


def test_an_edge_set_between_nodes_of_two_kinds_says_of_which_kind_a_features_node_is(tmp_path, log_of_sets):
    file = tmp_path / "buys.tguf"
    assert invoke("tguf", "export", file, "--edge-set", "buys", *log_of_sets, tmp_path / "one").exit_code == 0
    read = open_tguf(file)
    assert read.msg.shape[1] == 2 and read.node_feat[33].tolist() == [0, 1, 0, 0, 34] and read.num_labels == 35
    refused = invoke("tguf", "import", file, "--edge-set", "buys", *log_of_sets, tmp_path / "two")
    assert "does not name their node set" in str(refused.exception) and not (tmp_path / "two").exists()
    refused = invoke("tguf", "export", tmp_path / "x.tguf", "--edge-set", "sells", *log_of_sets, tmp_path / "one")
    assert "no edge set 'sells'; there are views, buys, follows" in str(refused.exception) and not (tmp_path / "x.tguf").exists()


def test_edges_between_nodes_of_two_kinds_come_back_under_their_keys(tmp_path, log_of_sets):
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path / "bare", src, dst, 1_600_000_000 * SECOND + time, sets)
    assert invoke("tguf", "export", tmp_path / "a.tguf", "--edge-set", "buys", *log_of_sets, tmp_path / "bare").exit_code == 0
    done = invoke("tguf", "import", tmp_path / "a.tguf", "--edge-set", "buys", *log_of_sets, tmp_path / "two")
    assert done.exit_code == 0, done.exception
    assert invoke("tguf", "export", tmp_path / "b.tguf", "--edge-set", "buys", *log_of_sets, tmp_path / "two").exit_code == 0
    first, second, log = open_tguf(tmp_path / "a.tguf"), open_tguf(tmp_path / "b.tguf"), log_of(tmp_path / "two")
    keys = np.array([k.key if isinstance(k, SetKey) else k for k in log.keys])
    assert (keys[second.src] == first.src).all() and (keys[second.dst] == first.dst).all() and (second.time == first.time).all()
    assert (second.msg == first.msg).all() and not log.node_sets_of(second.src).any() and log.node_sets_of(second.dst).all()


@pytest.mark.parametrize(("edges", "labels", "says"), [
    ([1, 2**61], [], "x.tguf time: the time 2305843009213693952 is 75039-.*ahead of the clock"),
    ([1, 2**62 + 1], [], "x.tguf time: .*out of range"), ([-5, 1], [], "x.tguf time: .*-5 is 1969-12-31T23:59:59.999995Z, before 1970"),
    ([1], [2, 2**61], "x.tguf label_time: .*ahead of the clock")])
def test_a_tguf_file_whose_times_cannot_be_leaves_no_log(tmp_path, edges, labels, says):
    write_tguf(tmp_path / "x.tguf", edges, labels)
    done = invoke("tguf", "import", tmp_path / "x.tguf", "--data-dir", tmp_path / "log", STREAMD_STREAM__LABEL_DIM=1)
    assert done.exit_code != 0 and re.search(f"{says}.*read as microseconds", str(done.exception)), done.exception
    assert not (tmp_path / "log").exists()


def write_tguf(path, edges, labels):
    ones = np.ones(len(edges), np.int64)
    with TGUFWriter.create(path, TGUFSchema(max(len(edges), 1), 0, max(len(labels), 1), 1)) as writer:
        writer.append_edges(ones, ones * 2, np.array(edges, np.int64), np.zeros((len(edges), 0), np.float32))
        writer.append_labels(np.ones(len(labels), np.int64), np.array(labels, np.int64), np.ones((len(labels), 1), np.float32))
        writer.commit()


def test_labels_of_a_tguf_file_without_edges_go_in(tmp_path):
    write_tguf(tmp_path / "x.tguf", [], [5, 6])
    done = invoke("tguf", "import", tmp_path / "x.tguf", "--data-dir", tmp_path / "log", STREAMD_STREAM__LABEL_DIM=1)
    assert done.exit_code == 0 and "2 events" in done.output, done.exception
    assert log_of(tmp_path / "log").labels()[1].tolist() == [5, 6]


def test_a_label_behind_the_log_is_named_as_one(tmp_path):
    write_tguf(tmp_path / "x.tguf", [7], [9])
    write_tguf(tmp_path / "y.tguf", [10], [8, 11])
    options = ("--data-dir", tmp_path / "log")
    assert invoke("tguf", "import", tmp_path / "x.tguf", *options, STREAMD_STREAM__LABEL_DIM=1).exit_code == 0
    done = invoke("tguf", "import", tmp_path / "y.tguf", *options, STREAMD_STREAM__LABEL_DIM=1)
    assert re.search(r"y.tguf row 1 \(label\): .*late.* new data_dir", str(done.exception)), done.exception


def test_another_unit_for_a_tguf_file_is_refused(tmp_path):
    write_tguf(tmp_path / "x.tguf", [7], [])
    options = ("tguf", "import", tmp_path / "x.tguf", "--data-dir", tmp_path / "log", "--time-unit")
    assert "microseconds. Operator action: leave it out" in str(invoke(*options, "ms", STREAMD_STREAM__LABEL_DIM=1).exception)
    assert invoke(*options, "us", STREAMD_STREAM__LABEL_DIM=1).exit_code == 0


@pytest.mark.parametrize("command", [("produce",), ("tguf", "import"), ("backtest",)])
@pytest.mark.parametrize(("name", "text"), [("t.csv", "src,dst,time\n1,2,3\n"), ("t.ndjson", '{"src": 1, "dst": 2, "time": 3}\n')])
def test_a_wrong_column_is_named_before_a_broker_is_asked_or_a_log_made(tmp_path, command, name, text):
    (tmp_path / name).write_text(text)
    where = () if command == ("produce",) else ("--data-dir", tmp_path / "log")
    done = invoke(*command, tmp_path / name, "--src", "from", *where, STREAMD_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert re.search(rf"{name}.*: no column 'from'; there are src, dst, time\. Operator action: name the columns", str(done.exception))
    assert not (tmp_path / "log").exists()


def test_produce_sends_named_columns_and_iso_times_in_the_streams_unit(tmp_path, monkeypatch):
    sent = []

    class Producer:
        def send(self, topic, key, value):
            sent.append((topic, key, json.loads(value)))
            return self

        def flush(self): ...

        def get(self, timeout): ...

        def close(self): ...

    monkeypatch.setattr(produce, "make_producer", lambda kafka, **how: Producer())
    monkeypatch.setattr(produce, "check_topic", lambda kafka, topic: None)
    (tmp_path / "t.ndjson").write_text('{"from": "u", "to": 7, "when": "2020-09-13T14:26:40.5+02:00"}\n')
    done = invoke("produce", tmp_path / "t.ndjson", "--src", "from", "--dst", "to", "--time", "when", "--topic", "x")
    assert done.exit_code == 0 and sent == [("x", b"u", {"src": "u", "dst": 7, "time": 1_600_000_000_500})]


def test_an_ndjson_file_with_columns_of_its_own_goes_into_a_log(tmp_path):
    rows = [{"from": f"u:{i}", "to": i, "when": f"2020-09-13T12:26:4{i}.000001Z"} for i in range(3)]
    (tmp_path / "t.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("tguf", "import", tmp_path / "t.ndjson", "--src", "from", "--dst", "to", "--time", "when",
                  "--data-dir", tmp_path / "log")
    assert "times 2020-09-13T12:26:40.000001Z to 2020-09-13T12:26:42.000001Z, read as ISO 8601" in done.output, done.exception
    log = log_of(tmp_path / "log")
    assert log.edges(0, 3)[2].tolist() == [1_600_000_000_000_001 + i * SECOND for i in range(3)]


def test_an_import_that_fails_says_how_much_went_in(tmp_path):
    lines = ["src,dst,time", *(f"u,{i},{i}" for i in range(5000)), "u,1,soon"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    done = invoke("tguf", "import", tmp_path / "t.csv", "--data-dir", tmp_path / "log")
    assert "row 5001: column 'time'" in str(done.exception) and "Events appended before: 4,096" in str(done.exception)
    assert log_of(tmp_path / "log").num_edges == 4096


@pytest.mark.parametrize("given", [("--src", "src"), ("--src", "user"), ("--features", "x"), ("--source", "clicks"), ("--edge-set", "buys")])
def test_names_of_columns_mean_nothing_without_a_table(tmp_path, given):
    """What a user names is read or refused, never passed over; the defaults may be written out."""
    with TGUFWriter.create(tmp_path / "a.tguf", TGUFSchema(1, 0, 1, 1)) as writer:
        writer.append_edges(np.array([1]), np.array([2]), np.array([3]), np.zeros((1, 0), np.float32))
        writer.commit()
    done = invoke("backtest", *given, "--data-dir", tmp_path / "none")
    of_file = "need a file, and none is given" if given != ("--src", "src") else "holds no log"
    assert of_file in str(done.exception)
    done = invoke("tguf", "import", tmp_path / "a.tguf", *given, "--data-dir", tmp_path / "log")
    says = {"--edge-set": "There is no edge set buys; there are default"}.get(given[0], "is a TGUF file, whose columns have no names")
    assert given == ("--src", "src") or (says in str(done.exception) and not (tmp_path / "log").exists())


def test_after_an_import_without_an_event_the_widths_may_be_corrected(tmp_path):
    path, data = tmp_path / "rides.csv", tmp_path / "log"
    path.write_text("src,dst,time,km\na,b,1790000000000,1.5\n")
    failed = invoke("import", path, "--features", "km", "--data-dir", data)
    assert "stream.edge_feature_dim" in str(failed.exception) and "Events appended before: 0" in str(failed.exception)
    done = invoke("import", path, "--features", "km", "--data-dir", data, STREAMD_STREAM__EDGE_FEATURE_DIM="1")
    assert done.exit_code == 0, done.exception
    assert LogReader.open(data).features_of(np.arange(1)).tolist() == [[1.5]]
    widened = invoke("import", path, "--features", "km", "--data-dir", data, STREAMD_STREAM__EDGE_FEATURE_DIM="2")
    assert "has 1 numbers in the log, 2 numbers in the settings" in str(widened.exception), "with an event they are fixed"


UNITS = {"ms": 1_000, "s": 1, "us": 1_000_000, "ns": 1_000_000_000, "days": 1 / 86_400, "iso8601": None}


@pytest.mark.parametrize("command", [("import", "--data-dir", "log"), ("backtest",), ("produce", "--topic", "events")])
@pytest.mark.parametrize("unit", UNITS)
def test_an_example_has_the_unit_of_the_file_and_columns_that_are_not_read_are_named(tmp_path, command, unit, monkeypatch):
    monkeypatch.chdir(tmp_path)
    second = 1_672_531_200
    time = 20_230_101 if unit == "iso8601" else int(second * UNITS[unit])
    (tmp_path / "t.csv").write_text(f"src,dst,time,a,b\nu,v,{time},1,2\n")
    words = ("--time-unit", unit) if unit not in MICROSECONDS else ()
    env = WIDE | ({"STREAMD_STREAM__TIME_UNIT": unit} if unit in MICROSECONDS else {})
    done = invoke(command[0], "t.csv", *command[1:], *words, **env)
    text = str(done.exception)
    assert "t.csv row 1: features has 0 values, the stream has 2; has src, dst, time, a, b. As an edge should be" in text
    example = json.loads(re.search(r"be: ({.*})", text)[1])
    shown = example["time"] if UNITS[unit] is None else example["time"] / UNITS[unit] / second
    assert shown == (20_230_101 if UNITS[unit] is None else pytest.approx(1, rel=1e-8)), example
    assert "Operator action: name the columns of features with --features; not read now: a, b." in text


def test_columns_that_options_name_need_no_other_names(tmp_path):
    (tmp_path / "t.ndjson").write_text('{"from": "u", "to": "v", "ts": 1672531200000}\n')
    done = invoke("import", tmp_path / "t.ndjson", "--src", "from", "--dst", "to", "--time", "ts", "--data-dir", tmp_path / "log", **WIDE)
    assert "the stream has 2; has from, to, ts. As an edge" in str(done.exception) and "declare as many" in str(done.exception)


def test_a_log_begins_with_no_empty_file_and_a_later_part_may_be_empty(tmp_path):
    (tmp_path / "none.csv").write_text("src,dst,time\n")
    (tmp_path / "one.csv").write_text("src,dst,time\na,b,1790000000000\n")
    done = invoke("import", tmp_path / "none.csv", "--data-dir", tmp_path / "log")
    assert "none.csv has no events. Operator action" in str(done.exception) and not (tmp_path / "log").exists()
    for name in ("one.csv", "none.csv"):
        assert invoke("import", tmp_path / name, "--data-dir", tmp_path / "log").exit_code == 0
    assert log_of(tmp_path / "log").num_edges == 1


def test_a_decimal_comma_has_a_remedy(tmp_path):
    (tmp_path / "t.csv").write_text('src;dst;time;preis\na;b;1790000000000;9,42\n')
    done = invoke("import", tmp_path / "t.csv", "--features", "preis", "--data-dir", tmp_path / "log", STREAMD_STREAM__EDGE_FEATURE_DIM="1")
    assert "'9,42' is not a number. Operator action: write decimals with a point" in str(done.exception)
