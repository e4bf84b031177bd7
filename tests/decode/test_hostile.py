"""Hostile records through decoder, Arrow reader and loop: what stands for more than its bytes is a dead letter, its neighbors go in."""

import json
import re
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

from streamd.decode import arrow
from streamd.decode.arrow_metadata import check_head
from streamd.decode.decoder import Decoder
from streamd.decode.record_items import RecordItems
from streamd.decode.wire import ARROW
from streamd.errors import BadEvent
from streamd.ingest.dead_letters.sinks import REASONS
from streamd.ingest.kafka import safe_records as kafka_records
from tests.builders import Record
from tests.decode.attacks import aliased, schema_of_millions, stream
from tests.decode.test_decode import decode, decode_all, edge
from tests.ingest.world import World

ARROW_HEADER = (("content-type", ARROW.encode()),)
MOST_MEGABYTES = 250


@pytest.mark.parametrize(("program", "count"), [("attacks", 22), ("mapped_attacks", 18)])
def test_no_record_of_four_megabytes_grows_the_process_beyond_a_bound(program, count):
    run = subprocess.run([sys.executable, "-m", f"tests.decode.{program}"], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert len(found) == count
    for name, (reasons, megabytes, taken) in found.items():
        assert len(reasons) == 1 and set(reasons) <= set(REASONS) - {"out_of_memory"} and not taken, name
        assert megabytes < MOST_MEGABYTES, name


@pytest.mark.parametrize(("columns", "said"), [
    ({"src": pa.array([True])}, "column src is of type bool: cast it to string or int64"),
    ({"src": pa.array([1.5])}, "column src is of type double with values that are neither text nor integers: cast it to string or int64"),
    ({"src": pa.array([b"\xff"])}, "column src is of type binary with values that are neither text nor integers: cast it to string or int64"),
    ({"time": pa.array([5], pa.timestamp("ns"))}, r"column time is of type timestamp\[ns\]: cast it to int64 or timestamp\[us\]"),
    ({"time": pa.array([5.0])}, "column time is of type double: cast"),
    ({"features": pa.array(["a"])}, "column features is of type string: cast it to a list of float32"),
    ({"features": pa.array([["a"]])}, "column features is a ListType: cast"),
    ({"node": pa.array([{"a": 1}])}, "column node is a StructType: cast"),
    ({"src": pa.array([5], pa.date32())}, r"column src is of type date32\[day\]: cast"),
    ({"type": pa.array([True])}, "column type is of type bool: cast it to string"),
    ({"src": pa.array([["a"]])}, "column src is a ListType: cast"),
    ({"user_id": ["a"], "item_id": ["b"], "ts": [5]}, "no event has user_id; has user_id, item_id, ts: map them to src, dst, time"),
    ({"src": ["a"], "dst": ["b"], "\x1b[2J\n": [1]}, r"no event has \\x1b\[2J\\n; .*: leave it out"),
])
def test_a_column_is_refused_by_name_before_a_row_is_made(columns, said, monkeypatch):
    monkeypatch.setattr(arrow, "rows_of", None)
    good, (bad,) = decode(stream(columns), ARROW_HEADER)
    assert not good and (bad.index, bad.reason) == (-1, "bad_arrow")
    assert re.search(said, bad.error), bad.error


@pytest.mark.parametrize("column", [
    pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"], pa.string_view()), pa.array([b"a", b"b"], pa.binary_view()), pa.array(["a", "b"], pa.string_view()).dictionary_encode(),
    pa.array([b"a", b"b"]), pa.array([1.0, 2.0]), pa.array([1, 2], pa.decimal128(20, 2)), pa.array([uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes], pa.uuid()), pa.array([1, 2]).dictionary_encode(),
])
@pytest.mark.parametrize("dst", ["b", None])
def test_keys_of_other_types_are_read_by_columns_and_by_rows(column, dst):
    want = {"a": ("a", "b"), 1.0: (1, 2)}.get(column.to_pylist()[0], tuple(map(str, column.to_pylist())))
    want = ("a", "b") if isinstance(column.to_pylist()[0], bytes) else want
    table = {"src": column, "dst": pa.array(["x", dst]).dictionary_encode(), "time": [1, 2], "features": [[1.0, 2.0]] * 2}
    good, bad = decode(stream(table), ARROW_HEADER)
    assert [(e.a, e.b) for e in good] == [(want[0], "x"), (want[1], "b")][: 2 - len(bad)]
    assert [(b.reason, json.loads(b.raw)["src"]) for b in bad] == ([] if dst else [("missing_field", want[1])])


def test_two_columns_of_one_name_are_refused():
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["src", "src"])
    assert "two columns are named src" in decode(stream(table), ARROW_HEADER)[1][0].error


def test_a_schema_is_judged_before_its_fields_are_made():
    with pytest.raises(BadEvent, match="its schema|of at most|inside a"):
        check_head(schema_of_millions(), pa)
    with pytest.raises(BadEvent, match="columns inside a"):
        check_head(schema_of_millions(levels=4, padding=0), pa)
    notes = pa.schema([("src", pa.string())], {str(i): "x" for i in range(40)})
    with pytest.raises(BadEvent, match="40 notes, at most 32"):
        check_head(notes.serialize().to_pybytes(), pa)


@pytest.mark.parametrize("dst", ["b", None])
def test_a_timestamp_keeps_its_own_unit_by_columns_and_by_rows(dst):
    table = {"src": ["a", "a"], "dst": ["b", dst], "time": pa.array([1_000_001, 7], pa.timestamp("us")), "features": [[1.0, 2.0]] * 2}
    good, bad = decode(stream(table), ARROW_HEADER)
    assert [e.time for e in good] == [1_000_001, 7][: 2 - len(bad)]
    assert [(b.reason, json.loads(b.raw)["time"]) for b in bad] == ([] if dst else [("missing_field", 0)])


def test_rows_are_numbered_on_across_the_thousands_that_are_made_at_a_time():
    count = 2 * arrow.ROWS + 5
    dst = [None if i % arrow.ROWS == 7 else i for i in range(count)]
    good, bad = decode(stream({"src": ["a"] * count, "dst": dst, "time": [5] * count, "features": [[1.0, 2.0]] * count}), ARROW_HEADER)
    assert [b.index for b in bad] == [7, arrow.ROWS + 7]
    assert [e.item for e in good] == [i for i in range(count) if dst[i] is not None]


def test_a_record_without_memory_is_one_dead_letter_and_nothing_of_it_goes_in(monkeypatch):
    def items():
        yield edge()
        raise MemoryError

    monkeypatch.setattr(arrow, "read_table", lambda value, rules: pa.table({"src": ["a"]}))
    monkeypatch.setattr(arrow, "rows_of", lambda table, record, unit: RecordItems(record=record, items=items(), read=lambda item: [arrow.converted(item)], raw=lambda row: b""))
    good, bad = decode_all([Record(json.dumps(edge()).encode(), 1), Record(b"big", 2, headers=ARROW_HEADER),
                            Record(json.dumps(edge()).encode(), 3)])
    assert [e.offset for e in good] == [1, 3]
    assert [(b.offset, b.index, b.reason, b.raw) for b in bad] == [(2, -1, "out_of_memory", b"big")]


def test_single_events_that_lack_memory_together_go_alone(monkeypatch):
    from streamd.decode.reader import EventReader

    together = EventReader.of_lines

    def fails(self, values):
        if len(values) > 20:
            raise MemoryError
        return together(self, values)

    monkeypatch.setattr(EventReader, "of_lines", fails)
    good, bad = decode_all([Record(json.dumps(edge()).encode(), at) for at in range(100)])
    assert [e.offset for e in good] == list(range(100)) and not bad


def test_ingest_goes_on_behind_a_hostile_record(tmp_path):
    world = World(tmp_path)
    now = world.clock.now_us()
    world.send(0, {"src": "a", "dst": "b", "time": now})
    world.send(0, value=stream({f"c{i}": pa.nulls(50_000) for i in range(3_000)}), headers=ARROW_HEADER)
    world.send(0, {"src": "c", "dst": "d", "time": now})
    world.run(2)
    assert [e[:2] for e in world.events()] == [("a", "b"), ("c", "d")]
    assert [x["reason"] for x in world.dead_letters()] == ["bad_arrow"]
    world.stop()


def test_a_poll_is_decoded_in_portions_and_its_letters_are_written_in_between(tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_records, "PORTION_BYTES", 100)
    most, decode_records = [], Decoder.decode
    monkeypatch.setattr(Decoder, "decode",
                        lambda self, records, *rest: most.append(len(records)) or decode_records(self, records, *rest))
    world = World(tmp_path)
    now = world.clock.now_us()
    for number in range(20):
        world.send(0, {"src": number, "dst": "b", "time": now} if number % 3 else {"src": number, "time": now})
    world.send(0, *[{"src": 99, "dst": i, "time": now} for i in range(50)])
    world.run(2)
    assert len(world.events()) == 13 + 50 and len(world.dead_letters()) == 7
    assert len(most) > 7 and max(most) <= 4
    world.stop()


def test_columns_that_share_their_bytes_are_refused():
    (bad,) = decode(aliased(), ARROW_HEADER)[1]
    assert (bad.index, bad.reason) == (-1, "bad_arrow") and "share their bytes" in bad.error
