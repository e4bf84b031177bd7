"""Files and samples of topics in a shape of their own, through the command line."""

import csv
import datetime
import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import structlog
import yaml
from kafka import TopicPartition
from typer.testing import CliRunner

from streamd.cli.doctor_checks import run_check
from streamd.cli.main import app
from streamd.clock import SystemClock
from streamd.errors import SettingsError
from streamd.eventlog.reader import LogReader
from streamd.exchange import produce
from streamd.exchange.event_files import EventFile
from streamd.exchange.guess import guess
from streamd.exchange.load import FileRow
from streamd.exchange.sample import Sample, judge, shares
from streamd.settings.loading import load_settings
from tests.builders import ManualClock
from tests.decode.mapped import CLICKS, NOW, click, record
from tests.decode.test_envelopes import binary, change, cloud, wrapped


def invoke(*args, **env):
    return CliRunner().invoke(app, [str(a) for a in args], env={k: str(v) for k, v in env.items()})


@pytest.fixture
def config(tmp_path):
    (tmp_path / "s.yaml").write_text(CLICKS)
    return tmp_path / "s.yaml"


@pytest.fixture
def clicks(tmp_path):
    """Thirty records of the topic as NDJSON, every tenth of which is skipped."""
    path = tmp_path / "clicks.ndjson"
    rows = [click(user_id=i, ts=f"2026-11-22T10:00:{i:02}Z", kind="other" if i % 10 == 9 else "view") for i in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_in_a_topics_shape_is_imported_by_its_source(config, clicks, tmp_path):
    done = invoke("tguf", "import", clicks, "--source", "clicks", "--config", config, "--data-dir", tmp_path / "log")
    assert done.exit_code == 0 and "27 events" in done.output, done.exception
    assert "times 2026-11-22T10:00:00Z to 2026-11-22T10:00:28Z, read as the source of clicks defines" in done.output
    log = LogReader.open(tmp_path / "log")
    assert log.keys[:3] == ["user:0", "b41", "user:1"] and log.features_of(np.array([0])).tolist() == [[3.5, 1, 0, 0]]


def test_a_row_that_does_not_fit_ends_an_import_with_its_path(config, clicks, tmp_path):
    clicks.write_text(clicks.read_text() + json.dumps(click(item=None)) + "\n")
    done = invoke("tguf", "import", clicks, "--source", "clicks", "--config", config, "--data-dir", tmp_path / "log")
    assert re.search(r"line 31: dst \(item\.id\) is missing \(missing_field\)", str(done.exception))


@pytest.mark.parametrize(("args", "says"), [
    (("--source", "other"), "There is no source of topic other; there are clicks"), (("--source", "clicks", "--src", "x"), "contradict one another")])
def test_a_wrong_source_is_named_before_a_log_is_made(config, clicks, tmp_path, args, says):
    done = invoke("tguf", "import", clicks, *args, "--config", config, "--data-dir", tmp_path / "log")
    assert says in str(done.exception) and not (tmp_path / "log").exists()


def test_csv_and_parquet_in_a_shape_of_their_own(tmp_path):
    (tmp_path / "s.yaml").write_text("sources: [{topic: x, time: iso8601, fields: {src: {path: u, prefix: 'u:'}, dst: v, time: t}, where: {k: [a]}}]")
    rows = [("7", "8", "2026-11-22T10:00:00Z", "a"), ("9", "z", "2026-11-22T10:00:01Z", "a"), ("", "", "", "b")]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("u", "v", "t", "k"), *rows])
    when = [datetime.datetime(2026, 11, 22, 10, 0, s, tzinfo=datetime.UTC) for s in range(3)]
    pyarrow.parquet.write_table(pa.table({"u": [7, 9, None], "v": ["8", "z", None], "t": when, "k": ["a", "a", "b"]}), tmp_path / "t.parquet")
    for name, key in (("t.csv", 8), ("t.parquet", "8")):
        done = invoke("tguf", "import", tmp_path / name, "--source", "x", "--config", tmp_path / "s.yaml", "--data-dir", tmp_path / f"log-{name}")
        assert "2 events" in done.output, done.exception
        assert LogReader.open(tmp_path / f"log-{name}").keys == ["u:7", key, "u:9", "z"]


def test_produce_sends_records_as_they_are_once_they_fit(config, clicks, monkeypatch):
    sent = []

    class Producer:
        def send(self, topic, key, value):
            sent.append((topic, key, value))
            return self

        def flush(self): ...

        def get(self, timeout): ...

        def close(self): ...

    monkeypatch.setattr(produce, "make_producer", lambda kafka, **how: Producer())
    monkeypatch.setattr(produce, "check_topic", lambda kafka, topic: None)
    done = invoke("produce", clicks, "--config", config)
    assert done.exit_code == 0, done.exception
    assert [value for _, _, value in sent] == clicks.read_bytes().splitlines()
    assert sent[3][:2] == ("clicks", b"user:3") and sent[9][1] == b""
    assert "leave out the names of columns" in str(invoke("produce", clicks, "--src", "x", "--config", config).exception)
    clicks.write_text(json.dumps(click(ts=5)) + "\n")
    assert "line 1: time (ts)" in str(invoke("produce", clicks, "--config", config).exception)


@pytest.mark.parametrize(("form", "times", "status", "says"), [
    ("iso8601", ["2019-01-01+02:00", "2019-06-30+05:30"], 0, '"time":1546293600000.*"time":1561833000000'), ("days", [20417, 20418], 0, '"time":1764028800000'),
    ("s", [20417, 20418], 1, "all times look like days, not seconds: 20417 was read as 1970-01-01T05:40:17Z; set time in the source of t to days"),
    ("s", [20150218, 20150219], 1, "all times look like dates in digits, not seconds: 20150218 was read as 1970-08-22T05:16:58Z; set time in the source of t to iso8601"),
    ("iso8601", [20150218, 20150219], 0, '"time":1424217600000'), ("ns", ["1764000000000000000"], 0, '"time":1764000000000'), ("us", ["1764000000000000000"], 1, "looks_like=ns"),
    ("s", [0, 20417], 0, "2 edges"), ("s", [-86400], 1, "time is 1969-12-31T00:00:00Z, before 1970")])
@pytest.mark.parametrize("kind", ["ndjson", "csv"])
def test_check_names_times_of_another_unit(tmp_path, kind, form, times, status, says):
    (tmp_path / "s.yaml").write_text(f"sources: [{{topic: t, time: {form}, fields: {{src: u, dst: v, time: t}}}}]")
    rows = [json.dumps({"u": "a", "v": "b", "t": time}) if kind == "ndjson" else f"a,b,{time}" for time in times]
    (tmp_path / f"t.{kind}").write_text("\n".join(["u,v,t"] * (kind == "csv") + rows) + "\n")
    done = invoke("sources", "check", tmp_path / f"t.{kind}", "--config", tmp_path / "s.yaml", COLUMNS="300")
    assert done.exit_code == status and re.search(says, done.output, re.DOTALL), done.output


def test_the_commands_of_tables_take_the_units_of_sources(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(produce, "check_topic", lambda kafka, topic: None)
    monkeypatch.setattr(produce, "send_events", lambda kafka, topic, events, unit, speed, line: len(sent.extend(e.value for e in events) or sent))
    (tmp_path / "t.csv").write_text("src,dst,time\na,b,1764000000000000000\nc,d,1764000001000000000\n")
    done = invoke("produce", tmp_path / "t.csv", "--time-unit", "ns")
    assert done.exit_code == 0 and [json.loads(value)["time"] for value in sent] == [1764000000000, 1764000001000], done.exception
    for command in (("import",), ("tguf", "import")):
        log = tmp_path / f"log{len(command)}"
        done = invoke(*command, tmp_path / "t.csv", "--time-unit", "ns", "--data-dir", log)
        assert done.exit_code == 0 and "2025-11-24T16:00:01Z, read as nanoseconds" in done.output, done.exception
    for command in ("import", "produce", "backtest"):
        assert "--time-unit is 'nss'; there are days, s, ms, us, ns, iso8601; did you mean 'ns'?" in str(invoke(command, tmp_path / "t.csv", "--time-unit", "nss").exception)


def test_check_shows_events_and_reasons_and_writes_nothing(config, clicks, tmp_path):
    clicks.write_text(clicks.read_text() + json.dumps(click(item=None)) + "\n")
    before = sorted(tmp_path.iterdir())
    done = invoke("sources", "check", clicks, "--config", config, COLUMNS="200")
    assert done.exit_code == 1 and '{"src":"user:8","dst":"b41"' in done.output and "dst (item.id) is missing" in done.output
    assert "31 records: 27 edges; 3 skipped; 1 refused (missing_field 1)" in done.output
    done = invoke("sources", "check", clicks, "--records", 5, "--config", config)
    assert done.exit_code == 0 and "5 records: 5 edges; 0 skipped; 0 refused" in done.output
    narrow = invoke("sources", "check", clicks, "--records", 1, "--config", config, COLUMNS="60").output
    assert "…" not in narrow and '{"seconds":3.5,"how":"card"}}' in re.sub(r"\s", "", narrow)
    assert sorted(tmp_path.iterdir()) == before
    assert "There is no source of topic x" in str(invoke("sources", "check", clicks, "--source", "x", "--config", config).exception)


def test_check_reads_our_own_events_too(tmp_path):
    (tmp_path / "t.ndjson").write_text('{"src": 1, "dst": 2, "time": 5}\n{"src": 1}\n')
    done = invoke("sources", "check", tmp_path / "t.ndjson")
    assert "2 records: 1 edge; 0 skipped; 1 refused (missing_field 1)" in done.output


def arrow_batch(*rows):
    sink = io.BytesIO()
    table = pa.Table.from_pylist(list(rows))
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def counted(words):
    """The number of records of a verdict, and the sum of those with events, skipped and refused."""
    total, events, skipped, refused = re.fullmatch(r"([\d,]+) records?: (.*?); ([\d,]+) skipped; ([\d,]+) refused.*", words).groups()
    with_events = re.match(r"([\d,]+) with", events) or re.match(r"([\d,]+) \w+$", events)
    return int(total), int(with_events[1] if with_events else 0) + int(skipped) + int(refused)


WELL, CUT, OTHER = {"u": 1, "v": 2, "t": 5, "k": 1}, {"u": 1, "v": None, "t": 5, "k": 1}, {"u": 1, "v": 2, "t": 5, "k": 0}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_reader_of_a_file_gives_the_action_for_a_missing_column(ending, tmp_path):
    path = tmp_path / f"t.{ending}"
    if ending == "csv":
        path.write_text("a\n1\n")
    else:
        pa.parquet.write_table(pa.table({"a": [1]}), path)
    for action, says in (("ask Eve.", "no column 'c'; there are a. Operator action: ask Eve."), ("", "no column 'c'; there are a. Operator action: name the columns with --src")):
        with pytest.raises(SettingsError) as raised:
            list(EventFile(path).rows(("c",), action))
        assert says in str(raised.value)


@pytest.mark.parametrize("form", ["json", "arrow"])
@pytest.mark.parametrize(("values", "words"), [
    ([WELL] * 3, "6 records: 6 edges; 0 skipped; 0 refused"),
    ([WELL, OTHER, CUT, None], "8 records: 2 edges; 4 skipped; 2 refused (missing_field 2)"),
    ([[WELL] * 50, [OTHER, OTHER], [CUT, CUT], [WELL, CUT], None], "10 records: 4 with 102 edges; 4 skipped; 2 refused entirely; 6 events refused (missing_field 6)"),
    ([[OTHER]], "2 records: no events; 2 skipped; 0 refused"),
    ([[CUT]], "2 records: no events; 0 skipped; 2 refused (missing_field 2)")])
def test_the_counts_of_a_sample_add_up_to_its_records(values, words, form, tmp_path):
    """Both partitions have the same offsets."""
    body = f"envelope: debezium, format: {form}" if None in values and form == "json" else f"format: {form}"
    rows = [[v] if isinstance(v, dict) else v for v in values]
    if "debezium" in body:
        rows = [v and [{"op": "c", "before": None, "after": row} for row in v] for v in rows]
    (tmp_path / "s.yaml").write_text(f"sources: [{{topic: t, time: us, {body}, where: {{k: 1}}, fields: {{src: u, dst: v, time: t}}}}]\nkafka: {{topics: [t]}}\ningest: {{tombstones: delete}}\n")
    if form == "arrow" and None in values:
        rows = [v if v else [OTHER] for v in rows]
    encoded = [v and (arrow_batch(*v) if form == "arrow" else json.dumps(v[0] if len(v) == 1 else v).encode()) for v in rows]
    records = [FileRow(offset=n, value=value, key=b'{"order": 5}') for n, value in enumerate(encoded)]
    settings, _ = load_settings(tmp_path / "s.yaml", environ={})
    verdict = judge(settings, Sample("t", {0: records, 1: records}), SystemClock())
    assert verdict.words == words
    total, summed = counted(verdict.words)
    assert total == summed == 2 * len(values)


def test_a_tombstone_that_a_sample_cut_from_its_delete_is_skipped_without_a_warning(tmp_path):
    (tmp_path / "s.yaml").write_text("sources: [{topic: t, time: us, envelope: debezium, fields: {src: u, dst: v, time: t}}]\nkafka: {topics: [t]}\n")
    settings, _ = load_settings(tmp_path / "s.yaml", environ={})
    change = json.dumps({"op": "c", "before": None, "after": WELL}).encode()
    records = [FileRow(offset=n, value=value, key=b'{"order": 5}') for n, value in enumerate((None, change, None))]
    for some, warnings in ((records[:2], 0), (records, 1)):
        with structlog.testing.capture_logs() as logged:
            verdict = judge(settings, Sample("t", {0: some}), SystemClock())
        assert len(logged) == warnings and (verdict.num_taken, verdict.num_skipped) == (1, len(some) - 1)


def test_check_shows_the_first_events_of_a_record_and_counts_the_others(tmp_path):
    rows = [[WELL] * 50, [WELL] * 4, [*[WELL] * 5, *[CUT] * 9]]
    (tmp_path / "r.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "s.yaml").write_text("sources: [{topic: t, time: us, fields: {src: u, dst: v, time: t}}]\n")
    done = invoke("sources", "check", tmp_path / "r.ndjson", "--config", tmp_path / "s.yaml", COLUMNS="200")
    shown = [line.split()[3] for line in done.output.splitlines() if line.startswith(" 0 ")]
    assert [(shown.count(word), word) for word in ("edge", "missing_field")] == [(10, "edge"), (3, "missing_field")]
    assert re.findall(r"\.\.\. and (\d+) more of this record", done.output) == ["47", "8"]


def test_check_of_a_topic_that_is_not_read_names_those_that_are(config, clicks):
    said = str(invoke("sources", "check", "click", "--config", config).exception)
    assert "click is neither a file nor a topic that the settings read; there are clicks; did you mean 'clicks'" in said and "`streamd sources guess click` proposes one" in said


@pytest.mark.parametrize("command", ["check", "guess"])
@pytest.mark.parametrize(("name", "near"), [("clikcs.ndjson", "clicks.ndjson?"), ("nosuch.csv", ""), ("no/such", ""), ("nosuch.csv.gz", "")])
def test_a_mistyped_name_of_a_file_is_a_missing_file(config, clicks, monkeypatch, command, name, near):
    monkeypatch.chdir(clicks.parent)
    said = str(invoke("sources", command, name, "--config", config).exception)
    assert said == f"There is no file {name}{f'; did you mean {near}' if near else '.'} Operator action: check the path."


def test_a_topic_may_be_named_as_a_file(config):
    config.write_text("kafka: {topics: [clicks.json]}")
    for command in ("check", "guess"):
        assert "No broker answers" in str(invoke("sources", command, "clicks.json", "--config", config, STREAMD_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1").exception)


def test_check_of_records_without_a_source_says_so_once(config, clicks):
    config.write_text(config.read_text() + "  - {topic: buys, time: us, fields: {src: u, dst: v, time: t, features: {seconds: s, how: h}}}\n")
    done = invoke("sources", "check", clicks, "--config", config)
    assert done.exit_code == 1 and done.output.count("no source") == 1
    assert "this file has no source, so its records were read as streamd's own events; there are sources of clicks, buys" in done.output


def test_check_reads_lists_in_the_cells_of_a_table_as_import_does(tmp_path):
    (tmp_path / "s.yaml").write_text("stream: {edge_feature_dim: 2, time_unit: us}\n")
    (tmp_path / "t.csv").write_text('src,dst,time,features\n1,2,5,"[0.5, 2]"\n1,3,6,"[1, 0]"\n')
    done = invoke("sources", "check", tmp_path / "t.csv", "--config", tmp_path / "s.yaml")
    assert done.exit_code == 0 and "2 records: 2 edges; 0 skipped; 0 refused" in done.output, done.output


def test_what_comes_from_outside_cannot_spoil_the_terminal(config, tmp_path):
    (tmp_path / "t.ndjson").write_text(json.dumps(click(item={"id": "\x1b[2J"})) + "\n" + json.dumps({"\x1b[2J": 1, "id\x1b": "\x1b"}) + "\n")
    for command in ("check", "guess"):
        assert "\x1b" not in invoke("sources", command, tmp_path / "t.ndjson", "--config", config).output


def guessed(records, tmp_path):
    """The guess for records, and what its own settings make of them."""
    it = guess("t", records, NOW)
    (tmp_path / "guess.yaml").write_text(it.settings)
    settings = load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0]
    return it, judge(settings, Sample("t", {0: list(records)}), ManualClock(NOW))


SHAPES = {
    "clicks": [click(user_id=i % 5, ts=f"2026-11-22T10:00:{i:02}Z") for i in range(40)],
    "seconds": [{"from": f"a{i % 3}", "to": f"b{i % 4}", "ts": 1_795_000_000 + i, "amount": i / 2} for i in range(40)],
    "text times": [{"customerId": i % 3, "product": {"code": f"b{i % 4}"}, "created_at": str(1_795_000_000_000 + i)} for i in range(40)],
    "no time": [{"u": i % 3, "v": f"b{i % 4}"} for i in range(40)],
    "optional fields": [{"user": i % 3, "item": i % 4, "ts": 1_795_000_000_000 + i, **({"price": i, "gift": True} if i % 3 else {})} for i in range(40)],
    "debezium": [change("c", u=i % 3, user_id=i % 3, item_id=i, t=1_795_000_000_000 + i) for i in range(40)],
    "debezium with schemas": [wrapped(change("u", user_id=i % 3, item_id=i, t=1_795_000_000_000 + i)) for i in range(40)],
    "connect": [wrapped({"user": i % 3, "item": i, "ts": 1_795_000_000_000 + i}) for i in range(40)],
    "cloudevents": [cloud(data={"user": i % 3, "item": i, "ts": 1_795_000_000_000 + i}) for i in range(40)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_guess_maps_all_records_it_was_made_of(shape, tmp_path):
    records = [record(v, i) for i, v in enumerate(SHAPES[shape])]
    it, verdict = guessed(records, tmp_path)
    assert verdict.counts == {"edge": 40}, (it, verdict.judged[:3])


def test_a_guess_finds_fields_by_name_and_says_its_doubts(tmp_path):
    rows = [click(user_id=i % 5, id=f"e{i}", kind="view" if i % 2 else "buy", pay="card" if i % 3 else "cash", ts=f"2026-11-22T10:00:{i:02}Z",
                  dwell={"s": i} if i % 4 else None) for i in range(40)]
    it, _ = guessed([record(v, i) for i, v in enumerate(rows)], tmp_path)
    settings = yaml.safe_load(it.settings)
    (source,) = settings["sources"]
    assert (source["time"], source["fields"]["src"], source["fields"]["dst"], source["fields"]["time"]) == ("iso8601", "user_id", "item.id", "ts")
    declared = settings["graph"]["edge_sets"]["default"]["features"]
    assert declared["dwell_s"] == {"type": "number", "missing": 0} and declared["pay"] == {"categories": ["card", "cash"]}
    assert any("kind is one of buy, view" in d for d in it.doubts)


def test_a_guess_takes_neither_times_nor_ids_of_the_record_itself_for_ends(tmp_path):
    """A table as others publish it: every cell is text, and no name is one that is known."""
    rows = [{"ride_id": f"R{i}", "started_at": f"2026-03-01 07:45:{i:02}", "ended_at": f"2026-03-01 08:45:{i:02}", "km": f"{i % 17}.5",
             "start_station_name": f"s{i % 11}", "end_station_name": f"s{i % 13}", "member": "yes" if i % 2 else "no"} for i in range(50)]
    it, verdict = guessed([record(v, i) for i, v in enumerate(rows)], tmp_path)
    fields = it.tree["sources"][0]["fields"]
    assert (fields["src"], fields["dst"], fields["time"]) == ("start_station_name", "end_station_name", "started_at")
    assert set(fields["features"]) == {"km", "member"} and verdict.counts == {"edge": 50}
    assert not any("if a key means one thing as" in d for d in it.doubts), "their names differ by the direction only"

    # Where nothing comes back it says so.
    rows = [{"trip_id": f"t{i}", "rider_id": f"r{i}", "at": 1_795_000_000 + i} for i in range(50)]
    it, _ = guessed([record(v, i) for i, v in enumerate(rows)], tmp_path)
    assert sum("nothing can be learned of a key that never repeats" in d for d in it.doubts) == 2


def test_a_guess_declares_the_set_that_is_named(tmp_path):
    records = [record({"u": i % 3, "v": i % 4, "ts": 1_795_000_000_000 + i, "price": i}, i) for i in range(40)]
    text = guess("t", records, NOW, "buys")
    (tmp_path / "guess.yaml").write_text(text.settings)
    settings = load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0]
    assert settings.sources[0].edge_set == "buys" and [*settings.graph.edge_sets["buys"].features] == ["price"]
    assert judge(settings, Sample("t", {0: records}), ManualClock(NOW)).counts == {"edge": 40}
    assert any("edge set buys needs source and target" in d for d in text.doubts)


def test_a_check_shows_events_with_their_sets(tmp_path):
    sets = {"graph.edge_sets": {"views": {}, "buys": {"features": {"price": "number"}}},
            "sources": [{"topic": "t", "edge_set": "buys", "time": "ms", "fields": {"src": "u", "dst": "v", "time": "ts", "features": {"price": "p"}}}]}
    settings = load_settings(None, {"data_dir": tmp_path} | sets, {})[0]
    rows = [{"u": 1, "v": 2, "ts": 1_795_000_000_000, "p": 3}, {"u": 1, "v": 2, "ts": 1_795_000_000_000}]
    told = judge(settings, Sample("t", {0: [record(r, i) for i, r in enumerate(rows)]}), ManualClock(NOW))
    assert told.judged[0].event == '{"edge_set":"buys","src":1,"dst":2,"time":1795000000000,"features":{"price":3}}'
    assert told.refused == {"missing_field": 1}


def test_a_check_shows_features_by_their_names(tmp_path):
    features = {"branch": {"categories": ["north", 7, True]}, "loan": "bool", "pages": "number", "size": {"vector": 2}}
    source = {"topic": "t", "time": "s", "fields": {"src": "u", "dst": "v", "time": "t", "features": {name: name for name in features}},
              "nodes": {"where": {"kind": ["user"]}, "fields": {"id": "u", "features": {"age": "age"}}}}
    sets = {"graph.edge_sets": {"default": {"features": features}}, "graph.node_sets": {"default": {"features": {"age": "number"}}}, "sources": [source]}
    settings = load_settings(None, {"data_dir": tmp_path} | sets, {})[0]
    row = {"u": "a", "v": "b", "t": 1_795_000_000, "loan": True, "pages": 565.1, "size": [1, 0.1]}
    rows = [*(row | {"branch": one} for one in ("north", "7", True, "moon")), {"kind": "user", "u": "a", "age": 41}]
    told = judge(settings, Sample("t", {0: [record(r, i) for i, r in enumerate(rows)]}), ManualClock(NOW))
    shown = [json.loads(one.event)["features"] for one in told.judged]
    assert shown == [*({"branch": one, "loan": True, "pages": 565.1, "size": [1, 0.1]} for one in ("north", "7", "true", "other")), {"age": 41}], told.judged


def test_binary_cloudevents_are_told_by_their_headers(tmp_path):
    told = binary(value={"user": 1, "item": 2})
    it, verdict = guessed([record(told["value"], i, headers=told["headers"]) for i in range(20)], tmp_path)
    assert yaml.safe_load(it.settings)["sources"][0]["envelope"] == "cloudevents" and verdict.counts == {"edge": 20}


@pytest.mark.parametrize("value", [None, b"", b"\x00\x00\x00\x00\x07x", b"[1, 2]", b'{"a": 1e400}', b'"x"', b'{"": {"$": 1}}', b"\xff", b'{"a": ' + b"[" * 50_000])
def test_a_guess_of_what_cannot_be_read_is_an_error_or_settings_with_a_doubt(value, tmp_path):
    try:
        it, _ = guessed([record(value, i) for i in range(3)], tmp_path)
    except SettingsError as error:
        assert "Nothing can be guessed from the 3 records of t" in str(error)
    else:
        assert it.doubts


def checked(tmp_path, text, rows, name="clicks.ndjson", *more):
    """`sources check` of a file: exit status, and what it says or raises."""
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / name).write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)))
    done = invoke("sources", "check", tmp_path / name, "--config", tmp_path / "s.yaml", *more)
    return done.exit_code, f"{done.output}{done.exception}"


@pytest.mark.parametrize(("old", "new", "says"), [
    # A value that stands for missing ones must not hide a misspelt path.
    ("how: pay", "how: pey", "No record has a value at pey; there are user_id, item.id, ts, kind, dwell.s, pay; did you mean 'pay'?."),
    ("seconds: dwell.s", "seconds: {path: dwell.sec, default: 1}", "No record has a value at dwell.sec; "),
    # A condition on a field that is not there skips all records.
    ("where: {kind:", "where: {knid:", "No record has a value at knid; "),
])
def test_a_path_that_no_record_has_is_named_by_check(tmp_path, old, new, says):
    assert checked(tmp_path, CLICKS, [click(), click()])[0] == 0
    code, text = checked(tmp_path, CLICKS.replace(old, new), [click(), click(kind="other")])
    assert code == 1 and says in text and text.count("No record") == 1


@pytest.mark.parametrize("empty", [None, ""])
def test_a_column_that_is_empty_in_a_sample_is_there(tmp_path, empty):
    """Missing features have the value of their declaration, and a row without a key is refused."""
    rows = [click(pay=empty), click(pay=empty)]
    code, said = checked(tmp_path, CLICKS, rows)
    assert "No record has" not in said and (code, "2 edges" in said) == (0, True), said
    code, said = checked(tmp_path, CLICKS.replace("item.id", "pay"), rows)
    assert code == 1 and "2 refused" in said and "No record has" not in said
    code, said = checked(tmp_path, CLICKS, [click(kind=None), click(kind=None)])
    assert code == 1 and "kind is null or empty in all records." in said and "No record has" not in said


@pytest.mark.parametrize(("condition", "value", "shown"), [
    ("[1]", "1", '1 at k, but "1"'), ("['1']", 1, '"1" at k, but 1'), ("[true]", "true", 'true at k, but "true"'), ("[true]", 1, "true at k, but 1"), ("[1]", True, "1 at k, but true"),
    ("['true', x]", True, '"true" at k, but true')])
def test_a_condition_on_a_value_of_another_type_is_named_by_check(tmp_path, condition, value, shown):
    text = f"sources: [{{topic: t, time: ms, where: {{k: {condition}}}, fields: {{src: u, dst: v, time: ts}}}}]"
    row = {"u": 1, "v": 2, "ts": NOW // 1000, "k": value}
    code, said = checked(tmp_path, text, [row, row])
    assert code == 1 and f"No record has {shown}, which has another type" in said
    # A record that meets it proves that the type is right.
    right = {"[1]": 1, "['1']": "1", "[true]": True, "['true', x]": "true"}[condition]
    assert "No record has" not in checked(tmp_path, text, [row, row | {"k": right}])[1]


def test_a_rule_that_no_record_of_a_sample_meets_is_not_judged(tmp_path):
    text = CLICKS + "    deletes: {where: {kind: [gone], gone: [null, true]}, fields: {node: who.id}}\n"
    assert checked(tmp_path, text, [click(), click(kind="other")])[0] == 0
    code, said = checked(tmp_path, text, [click(), click(kind="gone")])
    assert code == 1 and "No record has a value at who.id" in said


@pytest.mark.parametrize("command", ["check", "import", "produce"])
@pytest.mark.parametrize("name", ["clicks.csv", "clicks.parquet"])
def test_a_table_without_a_column_of_its_source_is_refused(tmp_path, monkeypatch, command, name):
    (tmp_path / "s.yaml").write_text(CLICKS.replace("item.id", "item"))
    table = {"user_id": [8], "item": ["b41"], "ts": ["2026-11-22T10:00:00Z"], "knid": ["view"], "dwell": [{"s": 1.5}], "pay": ["card"]}
    if name == "clicks.csv":
        (tmp_path / name).write_text("\n".join(",".join(str(row) for row in rows) for rows in (table, [v[0] for v in table.values()])))
    else:
        pyarrow.parquet.write_table(pa.table(table), tmp_path / name)
    monkeypatch.setattr(produce, "make_producer", None)
    monkeypatch.setattr(produce, "check_topic", lambda kafka, topic: None)
    words = {"check": ("sources", "check", tmp_path / name), "produce": ("produce", tmp_path / name, "--topic", "clicks"),
             "import": ("tguf", "import", tmp_path / name, "--source", "clicks", "--data-dir", tmp_path / "log")}[command]
    done = invoke(*words, "--config", tmp_path / "s.yaml")
    assert f"{name}: no column 'kind'; there are user_id, item, ts, knid, dwell, pay; did you mean 'knid'" in str(done.exception)
    assert "rename the columns, or correct the paths in the source of clicks" in str(done.exception) and "--src" not in str(done.exception)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("sizes", "count", "taken"), [
    ([0, 6000, 0, 0], 3, [0, 3, 0, 0]), ([5, 5, 5], 7, [2, 2, 3]), ([1, 9, 2], 9, [1, 6, 2]), ([1, 2, 0], 9, [1, 2, 0]), ([4], 100, [4])])
def test_a_sample_has_as_many_records_as_were_asked_for_wherever_they_are(sizes, count, taken):
    partitions = [TopicPartition("t", n) for n in range(len(sizes))]
    assert list(map(shares(dict(zip(partitions, sizes, strict=True)), count).get, partitions)) == taken


def test_a_source_named_for_a_topic_is_refused(config):
    done = invoke("sources", "check", "clikcs", "--source", "clicks", "--config", config)
    assert "--source describes a file, and there is no file clikcs" in str(done.exception)


ODD = "sources: [{topic: clicks, time: us, fields: {src: {path: u, prefix: 'u:'}, dst: v, time: t}}]"


def odd_rows():
    """A hundred edges: five without a user, thirty to one page, two sent again."""
    rows = [{"u": f"a{i % 17}", "v": f"p{i}" if i % 10 > 2 else "front", "t": i} for i in range(93)]
    return [*rows, *({"u": "null", "v": f"q{i}", "t": 93 + i} for i in range(5)), rows[-1] | {"t": 97}, rows[-1] | {"t": 97}]


def test_check_import_and_doctor_name_odd_keys(tmp_path):
    code, text = checked(tmp_path, ODD, odd_rows())
    assert code == 0 and '"u:null" is the source of 5 of 100 edges (5 %): a placeholder' in text.replace("\n", " ")
    assert '"front" is the destination of 32 of 100 edges (32 %): fine if it is popular; if it means that there is none, `drop_keys' in text.replace("\n", " ")
    assert "1 of 100 edges are exact copies" in text
    log = ("--config", tmp_path / "s.yaml", "--data-dir", tmp_path / "log")
    done = invoke("tguf", "import", tmp_path / "clicks.ndjson", "--source", "clicks", *log)
    assert done.exit_code == 0 and '"u:null" is the source of 5 of 100 edges' in done.output and "exact copies" in done.output
    seen = run_check("keys", load_settings(tmp_path / "s.yaml", {"data_dir": tmp_path / "log"}, {})[0])
    assert seen.good and seen.result[0] == "look" and '"front" is the destination of 32 of 100 edges' in seen.seen
    assert run_check("keys", load_settings(None, {"data_dir": tmp_path / "none"}, {})[0]).seen == "there is no edge yet"


def test_a_source_drops_keys_that_its_check_named(tmp_path):
    code, text = checked(tmp_path, ODD.replace("fields", 'drop_keys: ["null"], fields'), odd_rows())
    assert code == 0 and "100 records: 95 edges; 5 skipped; 0 refused" in text and "placeholder" not in text
