"""Files of events: which columns and times are taken, and how what cannot be taken is named."""

import datetime
import gzip
import json
import os
import re
import threading

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.decode.encoding import Times as TimesOfSource
from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.format import TGUFSchema
from streamd.eventlog.tguf.writer import TGUFWriter
from streamd.events import SetKey
from streamd.exchange.event_files import EventFile
from streamd.exchange.importing import import_file
from streamd.exchange.tables import Columns, read_events
from streamd.exchange.times import Times
from streamd.settings.loading import load_settings
from tests.builders import ManualClock

NOW_S = 1_700_000_000
NAMED = Columns("a", "b", "when", ("x", "y"))


def times(unit="ms", out=None):
    return Times(unit, out or unit, 60, ManualClock(NOW_S * 1_000_000))


def events(path, columns=Columns(), unit="ms", out=None):
    return [(e.key, json.loads(e.value), e.time) for e in read_events(EventFile(path), columns, times(unit, out))]


def write(path, rows):
    """Rows of text or values, the first the header, in the form that the suffix names."""
    head, *body = rows
    if path.suffix == ".parquet":
        columns = zip(*body, strict=True)
        pyarrow.parquet.write_table(pa.table(dict(zip(head, map(list, columns), strict=True))), path)
    elif path.suffix == ".ndjson":
        path.write_text("".join(json.dumps(dict(zip(head, row, strict=True))) + "\n" for row in body))
    else:
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture(params=["t.csv", "t.ndjson", "t.parquet"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_every_form_of_file_takes_its_columns_by_name(path):
    write(path, [("a", "b", "when", "x", "y", "src"), ("u:1", "p:2", 5, 0.5, 1, "other"), ("u:3", "p:4", 6, 2, 3, "other")])
    assert events(path, NAMED) == [
        (b"u:1", {"src": "u:1", "dst": "p:2", "time": 5, "features": [0.5, 1.0]}, 5),
        (b"u:3", {"src": "u:3", "dst": "p:4", "time": 6, "features": [2.0, 3.0]}, 6)]


def test_compressed_text_and_a_byte_order_mark_are_read(tmp_path):
    for name, text in (("t.csv.gz", "src,dst,time\nu,p,5\n"), ("t.jsonl.gz", '{"src": "u", "dst": "p", "time": 5}\n\n')):
        with gzip.open(tmp_path / name, "wt", encoding="utf-8-sig") as file:
            file.write(text)
        assert events(tmp_path / name) == [(b"u", {"src": "u", "dst": "p", "time": 5}, 5)]


@pytest.mark.parametrize(("name", "want"), [("t.csv", [7, "u7", "²", -7]), ("t.ndjson", ["7", "u7", "²", "-7"]), ("t.parquet", ["7", "u7", "²", "-7"])])
def test_a_table_of_text_turns_integers_into_integer_keys_and_typed_files_keep_types(tmp_path, name, want):
    rows = [("src", "dst", "time"), *((text, "p", 5) for text in ("7", "u7", "²", "-7"))]
    path = write(tmp_path / name, rows)
    assert [e[1]["src"] for e in events(path)] == want
    assert [e[1]["src"] for e in events(path, Columns(keys="text"))] == ["7", "u7", "²", "-7"]


def test_ndjson_lines_that_are_events_of_ours_pass_unchanged(tmp_path):
    lines = ['{"type": "node",  "id": 5, "features": [1]}', '{"type":"label","node":"u","time":7,"target":[1]}',
             '{"type": "delete", "src": "u", "dst": "p", "time": 3}', '{"type":"delete","node":"u"}']
    edge = '{"src": "u",  "dst": "p", "extra": 1}'
    (tmp_path / "t.ndjson").write_text("\n".join([*lines, edge]) + "\n")
    read = times()
    got = list(read_events(EventFile(tmp_path / "t.ndjson"), Columns(), read))
    assert [e.value.decode() for e in got] == [*lines, edge] and [e.time for e in got] == [None, 7, 3, None, None]
    assert [e.key for e in got] == [b"5", b"u", b"u", b"u", b"u"]
    assert read.summary() == "times 1970-01-01T00:00:00.007Z to 1970-01-01T00:00:00.007Z, read as milliseconds"
    (tmp_path / "t.ndjson").write_text("\n".join(lines) + '\n{"a": "u", "b": 1, "when": 5, "features": [2], "x": 3}\n')
    got = events(tmp_path / "t.ndjson", Columns("a", "b", "when", ("features",), own_types=True))
    assert got[4][1] == {"src": "u", "dst": 1, "time": 5, "features": [2.0]} and [json.loads(x) for x in lines] == [g[1] for g in got[:4]]
    with pytest.raises(SettingsError, match=r"line 1: no column 'a'; there are type, id, features.*add --own-types"):
        events(tmp_path / "t.ndjson", Columns("a", "b", "when"))


@pytest.mark.parametrize("name", ["t.ndjson", "t.csv", "t.parquet"])
@pytest.mark.parametrize("kind", ["node", "label", "delete", "edge"])
def test_named_columns_win_over_our_words(tmp_path, name, kind):
    """A row's own `type`, `time`, `features`, `src` and `id` are columns like any other: case 01 is OpenStreetMap's nodes."""
    rows = [("type", "id", "user", "timestamp", "time", "features", "src", "node", "target"), (kind, 101, "ann", 5, "noon", "wifi", "x", "n", "t"), ("way", 55, "bob", 6, "", "", "", "", "")]
    write(tmp_path / name, rows)
    got = events(tmp_path / name, Columns("user", "id", "timestamp"))
    assert [e[1] for e in got] == [{"src": "ann", "dst": got[0][1]["dst"], "time": 5}, {"src": "bob", "dst": got[1][1]["dst"], "time": 6}]
    assert [str(e[1]["dst"]) for e in got] == ["101", "55"]


@pytest.mark.parametrize(("cell", "want"), [([1, 2], [1.0, 2.0]), ({"price": 2.5}, {"price": 2.5})])
def test_a_named_column_of_lists_or_mappings_holds_all_features(tmp_path, cell, want):
    (tmp_path / "t.ndjson").write_text(json.dumps({"u": 1, "v": 2, "t": 5, "extra": cell, "features": ["wifi"]}) + "\n")
    assert events(tmp_path / "t.ndjson", Columns("u", "v", "t", ("extra",)))[0][1]["features"] == want


@pytest.mark.parametrize(("text", "want_us"), [
    ("2020-09-13T12:26:40Z", 0), ("2020-09-13 12:26:40", 0), ("2020-09-13T14:26:40+02:00", 0), ("2020-09-13T12:26:40.25", 250_000),
    ("20200913T122640Z", 0), ("2020-09-14", 41_600_000_000), (" 2020-09-13T12:26:40Z ", 0),
    ("2020-09-13T12:26:40.000001999", 1), (str(1_600_000_000), 0), ("2020-09-12T23:26:40-13:00", 0)])
def test_times_are_integers_or_iso_8601_in_utc_where_no_zone_is_named(path, text, want_us):
    write(path, [("src", "dst", "time"), ("u", "p", text)])
    ((_, event, when),) = events(path, unit="s", out="us")
    assert event["time"] == when == 1_600_000_000_000_000 + want_us


@pytest.mark.parametrize(("kind", "value"), [
    (pa.timestamp("ns"), 1_600_000_000_000_001_999), (pa.timestamp("us", "Asia/Tokyo"), 1_600_000_000_000_001),
    (pa.timestamp("us"), 1_600_000_000_000_001)])
def test_parquet_timestamps_are_taken_in_utc(tmp_path, kind, value):
    table = pa.table({"src": ["u"], "dst": ["p"], "time": pa.array([value], pa.int64()).cast(kind)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert events(tmp_path / "t.parquet", unit="s", out="us")[0][2] == 1_600_000_000_000_001


def test_parquet_dates_are_midnight_in_utc(tmp_path):
    pyarrow.parquet.write_table(pa.table({"src": ["u"], "dst": ["p"], "time": [datetime.date(2020, 9, 13)]}), tmp_path / "t.parquet")
    assert events(tmp_path / "t.parquet")[0][2] == 1_599_955_200_000


@pytest.mark.parametrize(("kind", "number", "says"), [
    (pa.timestamp("s"), 2**40, "1099511627776(000)? as timestamp.* is before the year 1 or after 9999"), (pa.timestamp("ms"), 2**60, "1152921504606846976 as timestamp"),
    (pa.timestamp("us"), -2**60, "-1152921504606846976 as timestamp"), (pa.date32(), 2**31 - 1, "2147483647 as date32"), (pa.date32(), -5, "the time 1969-12-27T00:00:00 is 1969-12-27T00:00:00Z, before 1970"),
    (pa.timestamp("ns"), 2**63 - 1, "the time 2262-04-11T23:47:16.854775 is .* ahead of the clock")])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_typed_time_at_the_edges_is_named_by_row_and_column(tmp_path, suffix, kind, number, says):
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    table = pa.table({"src": ["u", "u"], "dst": ["p", "p"], "when": pa.array([None, number], whole).fill_null(0).cast(kind)})
    path = tmp_path / f"t.{suffix}"
    pyarrow.parquet.write_table(table, path) if suffix == "parquet" else pyarrow.feather.write_feather(table, str(path))
    with pytest.raises(SettingsError, match=rf"t\.{suffix} row 2: column 'when': {says}.*Operator action: correct it in the file"):
        events(path, Columns(time="when"))


@pytest.mark.parametrize(("value", "says"), [
    ("soon", "'soon' is neither a number of milliseconds nor an ISO 8601"), ("1.5", "finer than milliseconds"), ("1e3000", "neither"), ("nan", "neither"), ("1_000", "neither"),
    ("٣", "neither"), ("", "neither"), ("2020-13-01", "neither"), ("-1", "'?-1'? is 1969-12-31T23:59:59.999Z, before 1970"), ("9" * 30, "out of range"),
    ("9" * 5000, "neither"), ("1969-12-31T23:59:59Z", "before 1970"), ("1e30", "out of range"), (str(NOW_S * 1000 + 60_001), "ahead of the clock"),
    ("2023-11-14T22:14:20.001Z", "ahead of the clock"), (str(NOW_S * 1_000_000), "is 55840-11-08T22:13:20Z.*ahead of the clock.*looks like microseconds"),
    ("20200218123000", "ahead of the clock.*looks like dates in digits"), (str(NOW_S * 10**9), "out of range; it looks like nanoseconds, numbers are read as milliseconds"),
    ("2020-09-13T12:26:40.0001Z", "finer than milliseconds")])
def test_a_time_that_cannot_be_is_named_with_row_column_and_what_to_do(path, value, says):
    word = "line" if path.suffix == ".ndjson" else "row"
    write(path, [("a", "b", "when"), ("u", "p", "5"), ("u", "p", value)])
    with pytest.raises(SettingsError, match=rf"{path.name} {word} 2: column 'when': .*{says}.* Operator action: \w"):
        events(path, Columns("a", "b", "when"))


@pytest.mark.parametrize(("number", "option"), [(NOW_S * 1_000_000, "us"), (20200218123000, "iso8601"), (NOW_S * 10**9, "ns")])
def test_a_time_that_looks_like_another_unit_says_which_option_reads_it(path, number, option):
    write(path, [("src", "dst", "time"), ("u", "p", str(number))])
    with pytest.raises(SettingsError, match=f"Operator action: set --time-unit to {option}, or correct it"):
        events(path)
    assert len(events(path, unit=option, out="us")) == 1


def test_the_last_time_within_the_horizon_is_taken(path):
    write(path, [("src", "dst", "time"), ("u", "p", str(NOW_S * 1000 + 60_000)), ("u", "p", "0")])
    assert [e[2] for e in events(path)] == [NOW_S * 1000 + 60_000, 0]


@pytest.mark.parametrize(("unit", "cell", "want_us"), [
    ("s", "1600000000.25", 1_600_000_000_250_000), ("s", "1.6e9", 1_600_000_000_000_000), ("s", " 1600000000 ", 1_600_000_000_000_000), ("ms", "1600000000000.5", 1_600_000_000_000_500),
    ("ns", "1600000000000001999", 1_600_000_000_000_001), ("days", "18518", 1_599_955_200_000_000), ("days", "18518.5", 1_599_998_400_000_000), ("iso8601", "20200913", 1_599_955_200_000_000),
    ("iso8601", "20200913122640", 1_600_000_000_000_000), ("s", "20200913T122640Z", 1_600_000_000_000_000), ("days", "2020-09-13", 1_599_955_200_000_000)])
def test_every_unit_of_a_source_is_one_of_tables(path, unit, cell, want_us):
    """In text cells and, of numbers, in typed ones; as `docs/sources.md` lists the units."""
    typed = [cell] if "T" in cell or "-" in cell or " " in cell else [cell, float(cell) if "." in cell or "e" in cell else int(cell)]
    for value in typed:
        write(path, [("src", "dst", "time"), ("u", "p", value)])
        ((_, event, when),) = events(path, unit=unit, out="us")
        assert event["time"] == when == want_us
        if len(typed) > 1:
            assert TimesOfSource(unit).one(value, "t") == want_us


@pytest.mark.parametrize(("unit", "cells", "looks_like"), [
    ("s", ["20150218", "20150219"], "iso8601"), ("s", ["19600", "19601"], "days"), ("ms", ["1600000000.5", "1600000001.5"], "s"), ("us", ["1600000000000"], "ms"),
    ("s", ["20150218", "1600000000"], None), ("s", ["19600", "2020-09-13"], None), ("s", ["0", "19600"], None), ("iso8601", ["20150218"], None)])
def test_times_of_a_file_that_all_look_like_another_unit_are_found(path, unit, cells, looks_like):
    write(path, [("src", "dst", "time"), *(("u", "p", cell) for cell in cells)])
    read = times(unit, "us")
    list(read_events(EventFile(path), Columns(), read))
    found = read.find_other_unit()
    assert (found and found.looks_like) == looks_like and (found is None or found.action == f"set --time-unit to {looks_like}")


def test_an_import_into_an_empty_log_refuses_times_of_another_unit(path):
    write(path, [("src", "dst", "time"), ("u", "p", "1600000000"), ("u", "q", "1600000001")])
    own = load_settings(None, {"data_dir": path.parent / "log"}, {})[0]
    with pytest.raises(StreamdError, match=r"t\.\w+ (row|line) 1, column 'time': all times look like seconds, not milliseconds: 1600000000 was read as 1970-01-19T12:26:40Z\. "
                                           r"Operator action: set --time-unit to s, or set ingest\.accept_first_times: true\. Events appended before: 0"):
        import_file(own, path, Columns(), lambda *_: None)
    assert LogReader.open(own.data_dir) is None, "a refused import leaves no log"
    # The log is as new: the right unit, or the setting, takes them.
    accepted = load_settings(None, {"data_dir": path.parent / "other", "ingest.accept_first_times": True}, {})[0]
    assert import_file(accepted, path, Columns(), lambda *_: None).num_events == 2
    assert import_file(own, path, Columns(time_unit="s"), lambda *_: None).times.endswith("to 2020-09-13T12:26:41Z, read as seconds")


def test_a_source_takes_the_unit_of_the_command_unless_it_has_one(path):
    write(path, [("u", "v", "t"), ("a", "b", "1600000000.5")])
    fields = {"src": "u", "dst": "v", "time": "t"}
    for time, unit in ((None, "s"), ("s", "s"), ("s", "")):
        own = load_settings(None, {"data_dir": path.parent / f"log{time}{unit}", "sources": [{"topic": "t", "time": time, "fields": fields}]}, {})[0]
        assert import_file(own, path, Columns(source="t", time_unit=unit), lambda *_: None).num_events == 1
        assert LogReader.open(own.data_dir).edges(0, 1)[2].tolist() == [1_600_000_000_500_000]
    with pytest.raises(SettingsError, match="source of t has times in the form s"):
        import_file(own, path, Columns(source="t", time_unit="ms"), lambda *_: None)
    own = own.model_copy(update={"data_dir": path.parent / "new"})
    write(path, [("u", "v", "t"), ("a", "b", "19600")])
    with pytest.raises(StreamdError, match=r"look like days.*set time in the source of t to days, or set ingest\.accept_first_times"):
        import_file(own, path, Columns(source="t"), lambda *_: None)


@pytest.mark.parametrize("value", [1.5, True, [1], None])
def test_a_typed_time_that_is_no_time_is_refused(tmp_path, value):
    line = {"a": "u", "b": "p", "when": value}
    (tmp_path / "t.ndjson").write_text(json.dumps(line))
    with pytest.raises(SettingsError, match="column 'when': (there is no value|.* is neither|1.5 is finer than milliseconds)"):
        events(tmp_path / "t.ndjson", Columns("a", "b", "when"))


@pytest.mark.parametrize("columns", [Columns("u"), Columns(dst="u"), Columns(time="u"), Columns(features=("dst", "u"))])
def test_a_wrong_column_is_named_beside_those_there_before_anything_is_read(path, columns):
    write(path, [("src", "dst", "time"), ("u", "p", 5)])
    with pytest.raises(SettingsError, match=r"no column 'u'; there are src, dst, time\. Operator action: name the columns"):
        read_events(EventFile(path), columns, times())


@pytest.mark.parametrize(("columns", "says"), [
    (Columns(), r"no column 'src'; there are event, listener, track\. Operator action: name the columns"),
    (Columns("listener.id", "track"), r"no column 'listener.id'; only --source reads fields inside 'listener'\. Operator action: name"),
    (Columns("tracks", "track"), "did you mean 'track'")])
def test_a_column_that_ndjson_lacks_gets_advice_for_ndjson(columns, says, tmp_path):
    (tmp_path / "x.ndjson").write_text('{"event": "play", "listener": {"id": 3}, "track": "t1"}\n')
    with pytest.raises(SettingsError, match=says) as refused:
        read_events(EventFile(tmp_path / "x.ndjson"), columns, times())
    assert "--no-header" not in str(refused.value)


@pytest.mark.parametrize(("name", "content", "says"), [
    ("x.csv", "src,dst\n", "x.csv: no column 'time'; there are src, dst"),
    ("x.csv", "src,src,dst,time\n1,1,2,3\n", "2 columns 'src'"), ("x.csv", "src,dst,time\n1,2,3\n1,2\n", "row 2: column 'time': there is no"),
    ("x.csv", "src,dst,time\n1,2,3\n1,2,3,4\n", "after row 1: the next row has 4 cells, the header 3.*--delimiter"),
    ("x.csv", 'src,dst,time\n1,2,3\n"1,2,3\n', "after row 1"), ("x.csv", b"src,dst,time\n1,\xff,3\n", "cannot be read from its start"),
    ("x.csv.gz", b"\x1f\x8b,dst,time\n", "from its start"), ("x.parquet", b"PAR1", "from its start"),
    ("x.ndjson", '{"type":"node","id":1}\n{oops\n', "line 2: not JSON"), ("x.ndjson", "[1]\n", "line 1: a list, not an object.*jq -c"),
    ("x.ndjson", "[" * 100_000, "line 1: not JSON"), ("x.ndjson", "{}\n", "line 1: no column 'src'; there are none"),
    ("x.ndjson", '{"src": 1.5, "dst": 1, "time": 1}\n', "column 'src': 1.5 is not a key"),
    ("x.ndjson", '{"src": 1, "dst": null, "time": 1}\n', "column 'dst': dst is missing .missing_field."),
    ("x.ndjson", b'\n{"src": "\xff"}\n', "cannot be read from its start"), ("x.txt", "", "neither .csv")])
def test_files_that_are_no_events_are_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=says) as raised:
        events(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value) and "Operator action:" in str(raised.value)


@pytest.mark.parametrize("value", ["nan", "inf", "-1e999", "much", ""])
def test_a_feature_that_is_no_number_is_named(path, value):
    write(path, [("src", "dst", "time", "x"), ("u", "p", 5, "1"), ("u", "p", 6, value)])
    with pytest.raises(SettingsError, match=f"2: column 'x': '{value}' is not (a number|finite)"):
        events(path, Columns(features=("x",)))


def test_the_index_that_pandas_writes_first_is_no_column_of_edge_sets(tmp_path):
    (tmp_path / "t.csv").write_text(",u,i,ts\n0,u1,p1,5\n1,u2,p1,6\n")
    assert [(e[1]["src"], e[1].get("edge_set")) for e in events(tmp_path / "t.csv", Columns("u", "i", "ts"))] == [("u1", None), ("u2", None)]


@pytest.mark.parametrize("columns", [Columns(keys="text"), Columns("src", "dst", "time", ("x",), keys="text")])
@pytest.mark.parametrize(("key", "want"), [(8, "8"), (8.0, "8"), ("u", "u"), (2**63, str(2**63)), (2**64 - 1, str(2**64 - 1))])
def test_text_keys_are_text_in_every_file_named_columns_or_not(tmp_path, columns, key, want):
    for name in ("t.ndjson", "t.parquet", "t.csv")[: 2 if type(key) is float else 3]:
        cell = np.uint64(key) if name == "t.parquet" and type(key) is int else key
        path = write(tmp_path / name, [("src", "dst", "time", "x"), (cell, "p", 5, 1)])
        assert [e[1]["src"] for e in events(path, columns)] == [want], name


@pytest.mark.parametrize("name", ["t.ndjson", "t.parquet"])
@pytest.mark.parametrize("columns", [Columns(), Columns("src", "dst", "time", ("x",))])
def test_an_id_beyond_int64_names_the_way_out(tmp_path, name, columns):
    path = write(tmp_path / name, [("src", "dst", "time", "x"), (np.uint64(2**63) if name == "t.parquet" else 2**63, "p", 5, 1)])
    with pytest.raises(SettingsError, match=r"1: column 'src': 9223372036854775808 does not fit int64.*--keys text"):
        events(path, columns)


def test_nan_is_a_missing_value_in_ndjson_as_in_parquet(tmp_path):
    for name in ("t.ndjson", "t.parquet"):
        path = write(tmp_path / name, [("src", "dst", "time", "x", "other"), ("u", "p", 5, float("nan"), float("nan"))])
        assert [e[1]["features"] for e in events(path, Columns(features=("x",), by_name=(True,)))] == [{}]


def test_half_a_character_of_json_is_refused_by_the_decoder_and_not_before(tmp_path):
    (tmp_path / "t.ndjson").write_text('{"src": "\\ud800", "dst": "p", "time": 5}\n')
    assert [e[1]["src"] for e in events(tmp_path / "t.ndjson")] == ["\ud800"]


def test_parquet_nulls_are_no_keys(tmp_path):
    pyarrow.parquet.write_table(pa.table({"src": ["u", None], "dst": ["p", "p"], "time": [5, 6]}), tmp_path / "t.parquet")
    with pytest.raises(SettingsError, match="row 2: column 'src': src is missing .missing_field."):
        events(tmp_path / "t.parquet")


def test_a_file_without_rows_has_no_events_and_no_times(tmp_path):
    (tmp_path / "t.csv").write_text("src,dst,time\n")
    (tmp_path / "t.ndjson").write_text("\n")
    (tmp_path / "empty.csv").write_text("")
    assert events(tmp_path / "t.csv") == events(tmp_path / "t.ndjson") == events(tmp_path / "empty.csv") == [] and times().summary() == "no times"


def test_the_range_of_times_is_told_with_how_they_were_read(path):
    write(path, [("src", "dst", "time"), ("u", "p", "1600000000"), ("u", "p", "2020-09-13T12:26:41.5Z"), ("u", "p", "1599999999")])
    read = times("s", "us")
    assert len(list(read_events(EventFile(path), Columns(), read))) == 3
    assert read.summary() == "times 2020-09-13T12:26:39Z to 2020-09-13T12:26:41.5Z, read as seconds and ISO 8601"


SETS = {"graph.node_sets": {"user": {}, "item": {}}, "graph.edge_sets": {
    "views": {"source": "user", "target": "item", "features": {"seconds": "number"}},
    "buys": {"source": "user", "target": "item", "features": {"price": "number", "how": {"categories": ["card", "cash"], "missing": "?"}}}}}


def declared(path, **values):
    return load_settings(None, {"data_dir": path, "stream.time_unit": "s"} | SETS | values, {})[0]


@pytest.mark.parametrize("name", ["t.csv", "t.ndjson", "t.parquet"])
def test_rows_name_their_edge_set_and_their_features(tmp_path, name):
    """Of one file all rows are of one set, of another each row says its own; both are the same log."""
    each = write(tmp_path / f"each-{name}", [["edge_set", "src", "dst", "time", "price", "how", "seconds"],
                                             ["buys", "a", "b", 5, 3.5, "card", None if name != "t.csv" else ""], ["views", "a", "b", 6, None if name != "t.csv" else "", None if name != "t.csv" else "", 2.0]])
    s = declared(tmp_path / "each")
    assert import_file(s, each, Columns(features=("price", "how", "seconds")), lambda *_: None).num_events == 2
    log = LogReader.open(s.data_dir)
    assert log.features_of(np.arange(2)).tolist() == [[0, 1, 0, 3.5, 1, 0, 0], [1, 0, 2, 0, 0, 0, 0]] and list(log.keys) == ["a", SetKey(1, "b")]

    alone = write(tmp_path / name, [["src", "dst", "time", "price", "how"], ["a", "b", 5, 3.5, "card"], ["a", "b", 6, 4, "bonds"]])
    s = declared(tmp_path / "alone")
    import_file(s, alone, Columns(features=("price", "how"), edge_set="buys"), lambda *_: None)
    assert LogReader.open(s.data_dir).features_of(np.arange(2)).tolist() == [[0, 1, 0, 3.5, 1, 0, 0], [0, 1, 0, 4, 0, 0, 1]]


@pytest.mark.parametrize(("columns", "says"), [
    (Columns(features=("price", "how")), r"row 1: edge_set is missing: views, buys"), (Columns(features=("price", "how"), edge_set="buy"), "There is no edge set buy; there are views, buys; did you mean 'buys'"),
    (Columns(features=("price", "how"), edge_set="views"), "row 1.*'card' is not a number"),
])
def test_a_table_without_a_set_is_refused(tmp_path, columns, says):
    path = write(tmp_path / "t.csv", [["src", "dst", "time", "price", "how"], ["a", "b", 5, 3.5, "card"]])
    with pytest.raises(StreamdError, match=says):
        import_file(declared(tmp_path / "log"), path, columns, lambda *_: None)


def test_lines_get_the_edge_set_that_they_do_not_name(tmp_path):
    lines = [{"src": 1, "dst": 2, "time": 5, "features": {"price": 1}}, {"edge_set": "views", "src": 1, "dst": 2, "time": 5, "features": [1]},
             {"type": "delete", "src": 1, "dst": 2, "time": 5}, {"type": "delete", "node_set": "user", "node": 1}]
    path = tmp_path / "t.ndjson"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [value for _, value, _ in events(path, Columns(edge_set="buys"), "s")] == [
        lines[0] | {"edge_set": "buys"}, lines[1], lines[2] | {"edge_set": "buys"}, lines[3]]


def test_a_tguf_file_is_of_the_set_that_is_named(tmp_path):
    path = tmp_path / "x.tguf"
    with TGUFWriter.create(path, TGUFSchema(2, 1)) as file:
        file.append_edges(np.array([1, 2]), np.array([1, 1]), np.array([5, 6]), np.array([[1], [2]], np.float32))
        file.commit()
    s = declared(tmp_path / "log")
    with pytest.raises(SettingsError, match="does not name its edge set; .*views, buys|does not name its edge set.*--edge-set: one of views, buys"):
        import_file(s, path, Columns(), lambda *_: None)
    with pytest.raises(SettingsError, match="width 1, those of graph.edge_sets are 4 wide"):
        import_file(s, path, Columns(edge_set="buys"), lambda *_: None)
    import_file(s, path, Columns(edge_set="views"), lambda *_: None)
    log = LogReader.open(s.data_dir)
    assert log.features_of(np.arange(2)).tolist() == [[1, 0, 1, 0, 0, 0, 0], [1, 0, 2, 0, 0, 0, 0]] and list(log.keys) == [1, SetKey(1, 1), 2]


def test_features_of_which_some_are_declared_and_some_are_not_are_refused(tmp_path):
    """As an array, the column `cost` would be taken for the declared price."""
    (tmp_path / "s.yaml").write_text("graph: {edge_sets: {default: {features: {amount: number, price: number}}}}")
    made = load_settings(tmp_path / "s.yaml", {"data_dir": tmp_path / "log"}, environ={})[0]
    table = write(tmp_path / "t.csv", [("src", "dst", "time", "amount", "cost"), ("u", "p", 5, 1, 2)])
    with pytest.raises(SettingsError, match="There is no declared feature prise; there are amount, price; did you mean 'price'"):
        import_file(made, table, Columns(features=("amount", "prise")), print)
    assert import_file(made, write(tmp_path / "u.csv", [("src", "dst", "time", "a", "b"), ("u", "p", 5, 1, 2)]),
                       Columns(features=("a", "b")), lambda *_: None).num_events == 1, "by their order"


def run(*args, **env):
    done = CliRunner().invoke(app, [str(a) for a in args], env=env)
    return done.output + (str(done.exception) if done.exception else "")


def keys_of(log):
    return LogReader.open(log).keys


def test_a_folder_of_parts_is_read_in_order_and_its_errors_name_the_part(tmp_path):
    folder = tmp_path / "events.parquet"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.crc").write_bytes(b"crc")
    for n in range(2):
        pyarrow.parquet.write_table(pa.table({"src": [f"a{n}"], "dst": ["b"], "time": [5 + n]}), folder / f"part-0000{n}.snappy.parquet")
    (folder / "part-00002").write_text("src,dst,time\nc,d,9\n")
    assert "3 events" in run("import", folder, "--data-dir", tmp_path / "log") and keys_of(tmp_path / "log") == ["a0", "b", "a1", "c", "d"]
    (folder / "part-00003.NDJSON").write_text('{"src": "a", "dst": "b", "time": 10}\n{"src": "a", "dst": "b", "time": "soon"}\n')
    assert "part-00003.NDJSON line 2: column 'time'" in run("import", folder, "--data-dir", tmp_path / "log2")
    (folder / "part-00003.NDJSON").unlink()
    (folder / "day=1").mkdir()
    (folder / "day=1" / "part.csv").write_text("src,dst,time\ne,f,4\n")
    assert "4 events" in run("import", folder, "--data-dir", tmp_path / "log3") and keys_of(tmp_path / "log3")[0] == "e"
    (folder / "others").mkdir()
    assert "has folders in it, such as others, which are no partitions" in run("import", folder, "--data-dir", tmp_path / "log4")


@pytest.mark.parametrize("content", [b"src,dst,time\na,b,5\n", gzip.compress(b"src,dst,time\na,b,5\n"), b'{"src": "a", "dst": "b", "time": 5}\n',
                                     b"\xef\xbb\xbfsrc,dst,time\na,b,5\n"], ids=["csv", "gzip", "ndjson", "utf-8 mark"])
def test_a_pipe_is_read_once(tmp_path, content):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()
    assert "1 event appended" in run("import", tmp_path / "pipe", "--data-dir", tmp_path / "log")
    writer.join()


def test_a_pipe_of_parquet_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"PAR1....",))
    writer.start()
    assert "parquet cannot be read from a pipe. Operator action: write it to a file" in run("import", tmp_path / "pipe", "--data-dir", tmp_path / "log")
    writer.join()


@pytest.mark.parametrize("name", ["T.CSV", "t.Csv.GZ", "t.TSV", "t.feather", "t.arrow", "t.arrows"])
def test_endings_of_any_case_are_known(tmp_path, name):
    path, table = tmp_path / name, pa.table({"src": ["a"], "dst": ["b"], "time": [5]})
    if name.endswith(("feather", "arrow")):
        pyarrow.feather.write_feather(table, str(path))
    elif name.endswith("arrows"):
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        text = b"src,dst,time\na,b,5\n".replace(b",", b"\t" if "TSV" in name else b",")
        path.write_bytes(gzip.compress(text) if "GZ" in name else text)
    assert [e[1] for e in events(path)] == [{"src": "a", "dst": "b", "time": 5}]


def test_cells_of_a_source_are_compared_and_typed_as_its_records_are(tmp_path):
    (tmp_path / "t.csv").write_text("zip,shop,ts,status,flag\n02134,s1,1764000000000,1,TRUE\n10001,s1,1764000001000,2,f\n")
    (tmp_path / "s.yaml").write_text("""sources: [{topic: t, time: ms, where: {status: ["1", 2]}, fields: {src: {path: zip, type: text}, dst: shop, time: ts, features: {flag: flag}}}]
graph: {edge_sets: {default: {features: {flag: bool}}}}""")
    said = run("sources", "check", tmp_path / "t.csv", "--config", tmp_path / "s.yaml")
    said = re.sub(r"\s", "", said)
    assert '{"src":"02134","dst":"s1","time":1764000000000,"features":{"flag":true}}' in said and '{"src":"10001","dst":"s1","time":1764000001000,"features":{"flag":false}}' in said
    (tmp_path / "s.yaml").write_text("sources: [{topic: t, time: ms, fields: {src: zip, dst: shop, time: ts}}]")
    assert "row 2: column 'zip': it has '02134'" in run("sources", "check", tmp_path / "t.csv", "--config", tmp_path / "s.yaml")


def test_seconds_among_milliseconds_are_named_beside_the_range_of_times(tmp_path):
    now_s = 1_790_000_000

    def summary(unit, *numbers):
        read = Times(unit, "us", 60, ManualClock(now_s * 1_000_000))
        for number in numbers:
            read.read(number)
        return read.summary()

    assert summary("ms", now_s * 1000, now_s - 5).endswith("read as milliseconds; the earliest look like seconds, the latest do not")
    assert summary("ms", now_s * 1000, now_s * 1000 - 5).endswith("read as milliseconds")
    assert summary("s", 20_000, 3_000_000).endswith("read as seconds"), "seconds that count from 0 are no days"
