"""The options that describe a file mean the same to `import`, `produce` and `backtest`; columns that a user names win over our words."""

import gzip
import inspect
import json
import os
import threading
import time

import pytest
from typer.testing import CliRunner

from streamd.cli.backtest import backtest
from streamd.cli.file_options import FileOptions
from streamd.cli.import_ import import_
from streamd.cli.main import app
from streamd.cli.produce_command import produce
from streamd.eventlog.reader import LogReader
from streamd.exchange import produce as sending
from streamd.number_texts import count_noun
from tests.decode.mapped import Topic, source
from tests.exchange.test_published import JODIE

COMMANDS = [import_, produce, backtest]
S = 1_000_000
T = 1_700_000_000
SETS = "graph: {edge_sets: {views: {}, buys: {}}}"


@pytest.fixture
def sent(monkeypatch):
    """What `produce` sends instead of to Kafka: (topic, key, value)."""
    kept = []

    class Producer:
        def send(self, topic, key, value):
            kept.append((topic, key, json.loads(value)))
            return self

        def flush(self): ...

        def get(self, timeout): ...

        def close(self): ...

    monkeypatch.setattr(sending, "make_producer", lambda kafka, **how: Producer())
    monkeypatch.setattr(sending, "check_topic", lambda kafka, topic: None)
    return kept


def write(tmp_path, text, name="t.csv", config=""):
    (tmp_path / "s.yaml").write_text(config)
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


def run(tmp_path, command, file, *words):
    data = () if command == "produce" else ("--data-dir", tmp_path / "log")
    return CliRunner().invoke(app, [str(word) for word in (command, file, *words, "--config", tmp_path / "s.yaml", *data)])


def imported(tmp_path, file, *words):
    """The edges of a file in a log: (source, destination, seconds)."""
    done = run(tmp_path, "import", file, *words)
    assert done.exit_code == 0, done.exception
    log = LogReader.open(tmp_path / "log")
    return [(log.keys[a], log.keys[b], int(t) / S) for a, b, t in zip(*log.edges(0, log.num_edges), strict=True)]


def produced(tmp_path, sent, file, *words):
    """The events of a file as they are sent to a topic."""
    sent.clear()
    done = run(tmp_path, "produce", file, "--topic", "events", *words)
    assert done.exit_code == 0, done.exception
    assert f"{count_noun(len(sent), 'event')} acknowledged by events" in done.output and all(topic == "events" for topic, _, _ in sent)
    return [value for _, _, value in sent]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_every_option_of_a_table(command):
    names = [*inspect.signature(command).parameters]
    assert {*FileOptions.__dataclass_fields__} <= {*names} and "table" not in names
    for name, parameter in inspect.signature(command).parameters.items():
        if name in FileOptions.__dataclass_fields__:
            assert parameter.default == getattr(FileOptions(), name)


@pytest.mark.parametrize(("name", "text", "words"), [
    ("t.csv", f"u;v;t\n8;3;{T}\nx;3;{T + 1}\n", ("--delimiter", ";", "--src", "u", "--dst", "v", "--time", "t")),
    ("t.txt", f"8 3 {T}\nx 3 {T + 1}\n", ("--delimiter", "blanks", "--no-header", "--src", "1", "--dst", "2", "--time", "3")),
    ("t.txt.gz", f"# of a day\n8\t3\t{T}\nx\t3\t{T + 1}\n", ("--delimiter", "tab", "--comment", "#", "--no-header", "--src", "1", "--dst", "2", "--time", "3")),
    ("t.csv", f"src , dst,time\n 8,3 ,{T}\nx, 3,{T + 1}\n", ("--strip",)),
    ("t.csv", f"src,dst,time\nx,3,{T + 1}\n8,3,{T}\n", ("--sort",)),
    ("t.csv", f"t,a,b\n{T * 1000},8,3\n{T * 1000 + 1000},x,3\n", ("--src", "a", "--dst", "b", "--time", "t", "--time-unit", "ms"))])
def test_the_same_rows_in_any_form_become_the_same_events(tmp_path, sent, name, text, words):
    file = write(tmp_path, text, name, "stream: {time_unit: s}")
    assert produced(tmp_path, sent, file, *words) == [{"src": 8, "dst": 3, "time": T}, {"src": "x", "dst": 3, "time": T + 1}]
    assert imported(tmp_path, file, *words) == [(8, 3, T), ("x", 3, T + 1)]


def test_text_keys_and_unquoted_cells(tmp_path, sent):
    file = write(tmp_path, f'src,dst,time\n8,3" disk,{T}\n')
    assert produced(tmp_path, sent, file, "--keys", "text", "--quoting", "none", "--time-unit", "s") == [{"src": "8", "dst": '3" disk', "time": T * 1000}]


def test_a_public_data_set_is_sent_as_events_with_declared_features(tmp_path, sent):
    file = write(tmp_path, JODIE, config="graph: {edge_sets: {default: {features: {features: {vector: 3}}}}}")
    events = produced(tmp_path, sent, file, "--as", "jodie")
    assert [(e["src"], e["dst"], e["time"], len(e["features"])) for e in events] == [("user:0", "item:0", 0, 3), ("user:1", "item:0", 36_000, 3), ("user:0", "item:1", 77_500, 3)]
    assert [key for _, key, _ in sent] == [b"user:0", b"user:1", b"user:0"]
    assert [(e["src"], e["dst"], e["time"] / 1000) for e in events] == imported(tmp_path, file, "--as", "jodie")


MAPPED = """
stream: {label_dim: 1}
sources:
  - topic: clicks
    time: s
    labels: {where: {kind: paid}, fields: {node: user, time: ts, target: amount}}
    where: {kind: [view]}
    fields: {src: {path: user, prefix: "user:"}, dst: item, time: ts}
"""


def test_rows_of_a_source_go_to_another_topic_as_events(tmp_path, sent):
    rows = [{"kind": "view", "user": 8, "item": "b", "ts": T}, {"kind": "ping"}, {"kind": "paid", "user": 8, "amount": 2, "ts": T + 1}]
    file = write(tmp_path, "\n".join(map(json.dumps, rows)), "t.ndjson", MAPPED)
    assert produced(tmp_path, sent, file, "--source", "clicks") == [
        {"src": "user:8", "dst": "b", "time": T * 1000}, {"type": "label", "node": 8, "time": (T + 1) * 1000, "target": [2.0]}]
    # To its own topic rows go as they are, in any form of CSV.
    sent.clear()
    file = write(tmp_path, f"kind;user;item;ts;amount\nview;8;b;{T};1\n", config=MAPPED)
    assert run(tmp_path, "produce", file, "--topic", "clicks", "--delimiter", ";").exit_code == 0
    assert sent == [("clicks", b"user:8", {"kind": "view", "user": 8, "item": "b", "ts": str(T), "amount": "1"})]


@pytest.mark.parametrize(("words", "says"), [
    (("--as", "jodie", "--src", "u"), "--as jodie defines columns, cells and keys"), (("--as", "jodi"), "did you mean 'jodie'"), (("--source", "clicks", "--src", "u"), "contradict"),
    (("--source", "nowhere"), "There is no source of topic nowhere"), (("--keys", "integer"), "--keys is integer"), (("--quoting", "all"), "--quoting is all"),
    (("--edge-set", "default", "--edge-set-column", "kind"), "contradict"), (("--edge-set-column", "sort"), "no column 'sort'"), (("--delimiter", ";"), "no column 'src'"),
    (("--source", "clicks"), "row 1: a time is finer than seconds"), (("--time", "ts"), "is finer than seconds")])
def test_options_that_do_not_fit_are_named_before_anything_is_sent(tmp_path, sent, words, says):
    config = MAPPED.replace("time: s", "time: iso8601").replace("stream: {", "stream: {time_unit: s, ")
    file = write(tmp_path, f"src,dst,time,kind,user,item,ts,amount\n1,2,{T},view,8,b,2020-09-13T12:26:40.5Z,0\n", config=config)
    done = run(tmp_path, "produce", file, "--topic", "events", *words)
    assert says in str(done.exception) and not sent


@pytest.mark.parametrize(("text", "says"), [
    (f"u,v,{T * 1000}\nu,,{T * 1000}\n", "row 2: column 'dst': dst is missing (missing_field). Operator action: correct it"),
    (f"u,v,{T * 1000}\nu,x\x07,{T * 1000}\n", "row 2: dst is empty or holds a control character (bad_key). Operator action"),
    (f"u,v,{T}\nu,w,{T + 1}\n", f"row 1, column 'time': all times look like seconds, not milliseconds: {T} was read as 1970-01-20")])
def test_produce_refuses_the_rows_that_import_refuses_before_anything_is_sent(tmp_path, sent, text, says):
    file = write(tmp_path, f"src,dst,time\n{text}")
    refused = run(tmp_path, "import", file)
    assert says in str(refused.exception), refused.exception
    for topic in ("events", "elsewhere"):
        done = run(tmp_path, "produce", file, "--topic", topic)
        assert str(refused.exception) == f"{done.exception} Events appended before: 0." and not sent
    if "all times" in says:
        accepting = write(tmp_path, f"src,dst,time\n{text}", config="ingest: {accept_first_times: true}")
        assert len(produced(tmp_path, sent, accepting)) == 2


def test_widths_are_those_of_the_settings_only_if_these_read_the_topic(tmp_path, sent):
    text = f"src,dst,time,a,b\nu,v,{T * 1000},1,2\n"
    file = write(tmp_path, text, config="stream: {edge_feature_dim: 2}")
    done = run(tmp_path, "produce", file, "--topic", "events")
    assert "features has 0 values, the stream has 2" in str(done.exception) and not sent
    assert produced(tmp_path, sent, file, "--features", "a,b")[0]["features"] == [1, 2]
    sent.clear()
    done = run(tmp_path, "produce", file, "--topic", "elsewhere")
    assert done.exit_code == 0 and len(sent) == 1
    assert "elsewhere is not in kafka.topics" in done.output and "would refuse 1 of the events (feature_width)" in done.output.replace("\n", " ")
    sent.clear()
    # A row of another width still has its key checked.
    file = write(tmp_path, text.replace("u,v", "u\x07,v"), config="stream: {edge_feature_dim: 2}")
    assert "src is empty or holds a control character (bad_key)" in str(run(tmp_path, "produce", file, "--topic", "elsewhere").exception) and not sent


def test_rows_of_a_source_in_another_unit_are_refused_before_anything_is_sent(tmp_path, sent):
    config = MAPPED.replace("time: s\n", "time: ms\n")
    rows = [{"kind": "ping"}, {"kind": "view", "user": 8, "item": "b", "ts": T}]
    file = write(tmp_path, "\n".join(map(json.dumps, rows)), "t.ndjson", config)
    for words in (("--topic", "clicks"), ("--topic", "events", "--source", "clicks")):
        done = run(tmp_path, "produce", file, *words)
        assert "line 2: all times look like seconds, not milliseconds" in str(done.exception) and not sent
        assert "set time in the source of clicks to s, or set ingest.accept_first_times: true" in str(done.exception)


def test_events_of_a_pipe_are_sent_as_they_come(tmp_path, sent):
    """The writer waits for the first event before it writes the next one."""
    write(tmp_path, "")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen = []

    def feed():
        with pipe.open("w") as out:
            out.write(f"src,dst,time\nu,v,{T * 1000}\nu,w,{T * 1000}\n")
            out.flush()
            until = time.monotonic() + 20
            while len(sent) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            seen.append(len(sent))
            out.write(f"u,x,{T * 1000}\n")

    thread = threading.Thread(target=feed)
    thread.start()
    done = run(tmp_path, "produce", pipe, "--topic", "events")
    thread.join()
    assert done.exit_code == 0 and seen == [2] and len(sent) == 3


@pytest.mark.parametrize("words", [("--as", "jodie"), ("--src", "u"), ("--time-unit", "s"), ("--source", "clicks"), ("--keys", "text")])
def test_a_topic_with_a_source_takes_rows_as_they_are(tmp_path, sent, words):
    file = write(tmp_path, "kind\nview\n", config=MAPPED)
    assert "The source of topic clicks defines the columns" in str(run(tmp_path, "produce", file, "--topic", "clicks", *words).exception) and not sent


OSM = [{"type": "node", "id": 101, "user": "ann", "timestamp": "2025-01-01T00:00:00Z", "features": "x", "edge_set": "roads"},
       {"type": "label", "id": 55, "user": "ann", "timestamp": "2025-01-01T00:01:00Z", "features": [1], "edge_set": 5},
       {"type": "delete", "id": 102, "user": "bob", "timestamp": "2025-01-01T00:02:00Z", "features": None, "edge_set": None}]
NAMED = ("--src", "user", "--dst", "id", "--time", "timestamp")
FROM_OSM = [("ann", 101), ("ann", 55), ("bob", 102)]


@pytest.mark.parametrize("name", ["t.ndjson", "t.csv"])
def test_words_of_ours_are_columns_like_any_other_next_to_named_columns(tmp_path, sent, name):
    text = "\n".join(map(json.dumps, OSM)) if name == "t.ndjson" else "\n".join(
        ",".join(str(row.get(c) or "") if c != "features" else "x" for c in OSM[0]) for row in [dict(zip(OSM[0], OSM[0], strict=True)), *OSM])
    text = text.replace("type,id,user,timestamp,x,edge_set", "type,id,user,timestamp,features,edge_set")
    file = write(tmp_path, text, name)
    assert [(e["src"], e["dst"]) for e in produced(tmp_path, sent, file, *NAMED)] == FROM_OSM
    assert all(e.keys() == {"src", "dst", "time"} for _, _, e in sent)
    assert [edge[:2] for edge in imported(tmp_path, file, *NAMED)] == FROM_OSM


def test_a_backtest_takes_them_so_too(tmp_path, monkeypatch):
    """Two of the three edges are scored, after the first."""
    monkeypatch.setenv("STREAMD_MODEL__NAME", "pair")
    monkeypatch.setenv("STREAMD_TRAINING__NIGHTLY_TWIN", "false")
    file = write(tmp_path, "\n".join(map(json.dumps, OSM)).replace('"type"', '"kind"', 1), "t.txt")
    refused = str(run(tmp_path, "backtest", file, *NAMED, "--no-header").exception)
    assert "no column 'user'" in refused and "appended" not in refused, "a backtest appends nothing to a log that stays"
    file = write(tmp_path, "\n".join(map(json.dumps, OSM)), "t.ndjson")
    assert "2 events in" in run(tmp_path, "backtest", file, *NAMED, "--time-unit", "us").output


def test_a_live_topic_takes_them_so_too(tmp_path):
    topic = Topic(source("{time: iso8601, fields: {src: user, dst: id, time: timestamp}}"), tmp_path)
    events, rejected = topic.decode(*OSM)
    assert not rejected and [(e.a, e.b) for e in events] == FROM_OSM


@pytest.mark.parametrize("name", ["t.csv", "t.ndjson"])
@pytest.mark.parametrize(("column", "words"), [("edge_set", ()), ("kind", ("--edge-set-column", "kind"))])
def test_a_column_names_the_edge_set_of_each_row(tmp_path, sent, name, column, words):
    rows = [{"a": 1, "b": 2, "time": T, column: "buys"}, {"a": 1, "b": 3, "time": T, column: "views"}]
    text = "\n".join([f"a,b,time,{column}", *(",".join(map(str, r.values())) for r in rows)] if name == "t.csv" else map(json.dumps, rows))
    file = write(tmp_path, text, name, f"{SETS}\nstream: {{time_unit: s}}")
    assert [(e["dst"], e["edge_set"]) for e in produced(tmp_path, sent, file, "--src", "a", "--dst", "b", *words)] == [(2, "buys"), (3, "views")]
    assert "unknown_set" in str(run(tmp_path, "import", write(tmp_path, text.replace("views", "roads"), name, f"{SETS}\nstream: {{time_unit: s}}"), "--src", "a", "--dst", "b", *words).exception)
