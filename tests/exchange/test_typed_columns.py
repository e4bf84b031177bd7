"""Columns of Parquet and Arrow files that no event needs, and the finest times that Arrow has, however they are nested."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from streamd.errors import SettingsError
from streamd.exchange.event_files import EventFile
from streamd.exchange.tables import Columns, read_events
from streamd.exchange.times import Times
from tests.builders import ManualClock

AT = 1_700_000_000_123_456_789
NS = pa.timestamp("ns")
ODD = {
    "time of day": pa.array([1001, 2], pa.time64("ns")),
    "duration": pa.array([1001, 2], pa.duration("ns")),
    "struct": pa.array([{"t": 1001}, None], pa.struct([("t", pa.int64())])).cast(pa.struct([("t", NS)])),
    "list": pa.array([[AT], [5]]).cast(pa.list_(NS)),
    "large list": pa.array([[AT], []], pa.large_list(pa.int64())).cast(pa.large_list(NS)),
    "list of fixed size": pa.array([[AT], [5]], pa.list_(pa.int64(), 1)).cast(pa.list_(NS, 1)),
    "structs in a large list": pa.array([[{"t": AT}], []], pa.large_list(pa.struct([("t", pa.int64())]))).cast(pa.large_list(pa.struct([("t", pa.timestamp("ns", "UTC"))]))),
    "map": pa.array([[("k", AT)], []], pa.map_(pa.string(), pa.int64())).cast(pa.map_(pa.string(), NS)),
    "dictionary": pa.array([AT, 5], NS).dictionary_encode(),
    "runs": pa.RunEndEncodedArray.from_arrays([2], pa.array([AT], NS)),
    "far from any calendar": pa.array([-(2**62), 2**62], pa.timestamp("s")),
    "nulls": pa.nulls(2),
    "halves": pa.array(np.array([1, np.nan], np.float16)),
}


def write(path, **columns):
    """An Arrow file, which has all types of columns."""
    table = pa.table({"src": ["u1", "u2"], "dst": ["p", "q"], "time": [5, 6]} | columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


def events(path, columns=Columns()):
    times = Times("ms", "us", 60, ManualClock(1_800_000_000_000_000))
    return [json.loads(e.value) for e in read_events(EventFile(path), columns, times)]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("columns", [Columns(), Columns("src", "dst", "time", ("x",))])
def test_a_column_that_no_field_needs_may_hold_anything(tmp_path, name, columns):
    path = write(tmp_path / "t.arrow", odd=ODD[name], x=[1.5, 2])
    assert [event["src"] for event in events(path, columns)] == ["u1", "u2"]


@pytest.mark.parametrize(("kind", "number", "want"), [
    (pa.time64("ns"), 45_000_000_001_001, "12:30:00.000001"), (pa.duration("ns"), 1_001, "0:00:00.000001"), (pa.time32("ms"), 45_000_001, "12:30:00.001000")])
def test_digits_below_a_microsecond_are_cut_as_those_of_timestamps_are(tmp_path, kind, number, want):
    for column in (pa.array([number, number], kind), pa.RunEndEncodedArray.from_arrays([2], pa.array([number], kind))):
        assert [event["dst"] for event in events(write(tmp_path / "t.arrow", dst=column))] == [want] * 2


def test_a_time_that_no_calendar_has_is_refused_where_it_is_read(tmp_path):
    path = write(tmp_path / "t.arrow", when=ODD["far from any calendar"])
    with pytest.raises(SettingsError, match="row 1: column 'when': -4611686018427387904 as timestamp"):
        events(path, Columns(time="when"))


def test_times_inside_large_lists_are_read_by_a_source(tmp_path):
    """Polars writes large lists."""
    from streamd.exchange.sourced import rows_of_sources
    from streamd.settings.sources import SourceSettings

    source = SourceSettings.model_validate({"topic": "t", "time": "us", "each": "items", "fields": {"src": "src", "dst": "dst", "time": "items.t"}})
    path = write(tmp_path / "t.arrow", items=ODD["structs in a large list"])
    rows = [json.loads(row) for _, row in rows_of_sources([source], EventFile(path), "us")]
    at = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=AT // 1000)
    assert rows[0]["items"] == [{"t": int((at - datetime.datetime.fromtimestamp(0, datetime.UTC)) / datetime.timedelta(microseconds=1))}] and rows[1]["items"] == []
