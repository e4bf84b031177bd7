"""One table of types: docs/types.md, and the same rows read through every format."""

import datetime
import decimal
import json
import re
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamd.clock import utc
from streamd.errors import SettingsError, StreamdError
from tests.decode.ngrams_reference import numbers_of_text
from tests.decode.registry import F, Registry
from tests.exchange.readers import ARROW, READERS, Typed, read

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
DAY = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
FEATURES = {"number": {"type": "number", "missing": -1}, "bool": {"type": "bool", "missing": False}, "category": {"categories": ["1", "1.5", "true", "a", "2"], "missing": "2"},
            "vector": {"vector": 2, "missing": [8, 9]}, "text": {"text": 8, "missing": "nothing said"}}
CATEGORIES = FEATURES["category"]["categories"]
WORDS = [1, "1", 1.5, "1.5", "01", "a", True, "true", None, "2026-01-31T12:00:00", "12:30:00", str(uuid.UUID(int=5))]
"""Values of conditions that are tried with each type."""
DAY_TEXT = "2026-01-31T12:00:00"
USES = ("key", "time", "number", "bool", "category", "vector", "condition")
UUID_FIXED = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}


def decimals(value, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale}, decimal.Decimal(value)


def arrays(*columns):
    """The same cell as Arrow arrays, each in a file and in a topic."""
    return [(reader, Typed(array, array.to_pylist())) for array in columns for reader in ARROW]


def polars(column):
    """Dictionaries of views, which Parquet does not have."""
    return [one for one in arrays(column) if one[0] != "parquet"]


def typed(reader, *columns):
    return [(reader, Typed(kind, [value])) for kind, value in columns]


def json_of(value):
    return [(reader, [value]) for reader in ("ndjson", "json", "json-schema")]


def csv(*cells):
    return [("csv", [cell]) for cell in cells]


def array(value, kind=None):
    return pa.array([value], kind)


# The name of a row of the page: how the cell is written in each format that has it.
CELLS = {
    "CSV `1`": csv("1"),
    "CSV `01`": csv("01"),
    "CSV `1.5`": csv("1.5"),
    "CSV `a`": csv("a"),
    "CSV `true`, `T`, `FALSE`, `f`": csv("true"),
    "CSV `[1.5, 2]`": csv("[1.5, 2]"),
    "CSV, an empty cell": csv(""),
    "JSON `1`": json_of(1),
    "JSON `1.0`": json_of(1.0),
    "JSON `1.5`": json_of(1.5),
    'JSON `"1"`': json_of("1"),
    'JSON `"a"`': json_of("a"),
    'JSON `""`': json_of(""),
    "JSON `true`": json_of(True),
    "JSON `[1.5, 2]`": json_of([1.5, 2]),
    "JSON `null`": json_of(None),
    "JSON `{}`": json_of({}),
    "integers": [*arrays(array(1, pa.int16()), array(1, pa.uint64()), array(1).dictionary_encode()), *typed("avro", ("long", 1), ("int", 1)),
                 *typed("protobuf", (F.TYPE_SINT32, 1), (F.TYPE_FIXED64, 1)), *typed("tfgnn", ("DT_UINT8", 1))],
    "unsigned integers beyond int64": [*arrays(array(2**63, pa.uint64())), *typed("protobuf", (F.TYPE_UINT64, 2**63))],
    "floats, whole": [*arrays(array(1.0), array(1.0, pa.float16())), *typed("avro", ("double", 1.0), ("float", 1.0)), *typed("protobuf", (F.TYPE_FLOAT, 1.0)), *typed("tfgnn", ("DT_FLOAT", 1.0))],
    "floats, others": [*arrays(array(1.5, pa.float32())), *typed("avro", ("float", 1.5)), *typed("protobuf", (F.TYPE_DOUBLE, 1.5)), *typed("tfgnn", ("DT_DOUBLE", 1.5))],
    "NaN": [*arrays(array(float("nan"))), *typed("avro", ("double", float("nan"))), *typed("protobuf", (F.TYPE_FLOAT, float("nan"))), *typed("tfgnn", ("DT_FLOAT", float("nan")))],
    "infinity": [*arrays(array(float("inf"))), *typed("avro", ("double", float("-inf"))), *typed("protobuf", (F.TYPE_DOUBLE, float("inf"))), *typed("tfgnn", ("DT_FLOAT", float("inf")))],
    "decimals, whole": [*arrays(array(decimal.Decimal(1), pa.decimal128(38, 0)), array(decimal.Decimal(1), pa.decimal256(40, 2))), *typed("avro", decimals(1, 0), decimals("1.00", 2))],
    "decimals, others": [*arrays(array(decimal.Decimal("1.5"), pa.decimal128(9, 2))), *typed("avro", decimals("1.5", 2))],
    "booleans": [*arrays(array(True)), *typed("avro", ("boolean", True)), *typed("protobuf", (F.TYPE_BOOL, True)), *typed("tfgnn", ("DT_BOOL", True))],
    "text, also views and dictionaries": [*arrays(array("a", pa.large_string()), array("a", pa.string_view()), array("a").dictionary_encode()), *polars(array("a", pa.string_view()).dictionary_encode()),
                                          *typed("avro", ("string", "a"), ({"type": "enum", "name": "Word", "symbols": ["a"]}, "a")),
                                          *typed("protobuf", (F.TYPE_STRING, "a"), (".rows.Word", 1)), *typed("tfgnn", ("DT_STRING", "a"))],
    "bytes with UTF-8": [*arrays(array(b"a"), array(b"a", pa.binary(1)), array(b"a", pa.binary_view())), *typed("avro", ("bytes", b"a"), ({"type": "fixed", "name": "One", "size": 1}, b"a")),
                         *typed("protobuf", (F.TYPE_BYTES, b"a"))],
    "bytes, others": [*arrays(array(b"\xff"), array(b"\xff", pa.binary(1))), *typed("avro", ("bytes", b"\xff")), *typed("protobuf", (F.TYPE_BYTES, b"\xff"))],
    "UUIDs": [*arrays(pa.array([uuid.UUID(int=5).bytes], pa.uuid())), *typed("avro", (UUID_FIXED, uuid.UUID(int=5).bytes), ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=5))))],
    "timestamps, dates": [*arrays(array(DAY), array(DAY, pa.timestamp("ns", "Europe/Berlin")), array(DAY, pa.timestamp("s"))), *typed("protobuf", (".google.protobuf.Timestamp", DAY))],
    "times of day, durations": [*arrays(array(datetime.time(12, 30)), array(datetime.timedelta(hours=12, minutes=30)))],
    "lists of numbers": [*arrays(array([1.5, 2.0], pa.list_(pa.float32(), 2)), array([1.5, 2.0]), array([decimal.Decimal("1.5"), decimal.Decimal(2)])),
                         *typed("avro", ({"type": "array", "items": "double"}, [1.5, 2.0])), *typed("protobuf", ([F.TYPE_FLOAT], [1.5, 2.0])), *typed("tfgnn", ("DT_FLOAT", [1.5, 2.0]))],
    "structs, maps": [*arrays(array({"a": 1})), *typed("avro", ({"type": "map", "values": "long"}, {"a": 1})), *typed("protobuf", (".rows.Row.Inner", {"a": 1}))],
    "nulls": [*arrays(pa.nulls(1), pa.array([None], pa.string())), *typed("avro", (["null", "long"], None)), *typed("protobuf", (F.TYPE_INT64, None))],
}


@pytest.fixture(scope="module")
def registry():
    server = Registry()
    yield server
    server.stop()


def outcome(folder, registry, reader, cell, use, expected=""):
    """What becomes of one cell, in the words of the page. expected: its words."""
    columns = {"src": ["s"], "dst": ["d"], "time": ["5" if reader == "csv" else 5]}
    columns[{"key": "dst", "time": "time", "condition": "c"}.get(use, "x")] = cell

    def decoded(feature=None, where=None):
        return read(reader, folder, columns, feature, where=where, registry=registry)

    if use == "condition":
        # The values of the page meet the condition, all others do not; each by itself only where that is not so.
        told = expected.replace("`", "").split(", ")
        met, others = [[word for word in WORDS if (json.dumps(word) in told) is wanted] for wanted in (True, False)]
        if not decoded(where={"c": others})[0] and all(decoded(where={"c": [word]})[0] for word in met):
            return expected
        met = [word for word in WORDS if decoded(where={"c": [word]})[0]]
        return ", ".join(f"`{json.dumps(word)}`" for word in met) or "none"
    try:
        events, reasons = decoded(FEATURES.get(use))
    except StreamdError:
        return "refused"
    if reasons:
        return "missing" if reasons == ["missing_field"] else "refused"
    (_, key, time, values), = events
    if use == "key":
        return f"`{json.dumps(key)}`"
    if use == "time":
        return f"`{utc(time)}`" if time > 10**12 else f"{time / 1000:g} ms"
    if use == "category":
        chosen = [*CATEGORIES, None][values.index(1)]
        return "missing" if chosen == "2" else "text" if chosen is None else f"`{chosen}`"
    if use == "vector":
        return "missing" if values == [8, 9] else f"`{values}`"
    if use == "number" and values == [-1]:
        return "missing"
    if use == "bool":
        (_, _, _, other), = decoded({"type": "bool", "missing": True})[0]
        return "missing" if other != values else f"{values[0]:g}"
    return f"{values[0]:g}"


def page_rows():
    rows = re.findall(r"^\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {cells[0]: tuple(cells[1:]) for cells in (row.split(" | ") for row in rows) if len(cells) == 1 + len(USES)}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("use", USES)
def test_the_page_has_what_becomes_of_each_type(tmp_path, registry, name, use):
    expected = page_rows()[name][USES.index(use)]
    for reader, cell in CELLS[name]:
        # TF-GNN has ids that are text, times that are integers, no conditions, and types of vectors in its schema.
        if reader == "tfgnn" and (use in ("key", "time", "condition") or (use == "vector" and name == "NaN")):
            continue
        assert outcome(tmp_path, registry, reader, cell, use, expected) == expected, (reader, cell)


@pytest.mark.parametrize("name", CELLS)
def test_a_text_takes_the_values_of_a_category(tmp_path, registry, name):
    said = page_rows()[name][USES.index("category")]
    expected = numbers_of("text", None if said == "missing" else said.strip("`"))
    for reader, cell in CELLS[name]:
        columns = {"src": ["s"], "dst": ["d"], "time": ["5" if reader == "csv" else 5], "x": cell}
        try:
            events, reasons = read(reader, tmp_path, columns, FEATURES["text"], registry=registry)
        except StreamdError:
            events, reasons = [], ["refused"]
        if said == "refused":
            assert reasons and not events, (reader, cell)
        elif said == "text":
            assert not reasons and sum(n * n for n in events[0][3]) == pytest.approx(1), (reader, cell)
        else:
            assert not reasons and events[0][3] == expected, (reader, cell)


def test_the_page_has_no_other_types():
    assert list(page_rows()) == ["type", *CELLS]


SMALL = st.floats(-1e6, 1e6, width=32)
LONG = st.integers(-(2**63) + 1, 2**63 - 1)
WORD = st.text("abcé -", min_size=1, max_size=4).filter(lambda text: text == text.strip())
VALUES = {
    "number": st.one_of(st.none(), SMALL),
    "bool": st.one_of(st.none(), st.booleans()),
    "category": st.one_of(st.none(), WORD, st.sampled_from(["a", "true", "zz"])),
    "vector": st.one_of(st.none(), st.lists(SMALL, min_size=2, max_size=2)),
    "text": st.one_of(st.none(), st.text("abcÉ -日½", min_size=1, max_size=30).filter(lambda text: text == text.strip())),
}


def numbers_of(kind, value):
    """The numbers of a value of a feature, as the log has them."""
    if value is None:
        value = FEATURES[kind]["missing"]
    if kind == "category":
        return [float(value == text) for text in CATEGORIES] + [float(value not in CATEGORIES)]
    if kind == "text":
        return np.float32(numbers_of_text(value, 8)).tolist()
    return value if kind == "vector" else [float(value)]


@st.composite
def some_rows(draw):
    """The kind of a feature, and rows of two keys, a time and its value; the keys of a column are of one type."""
    kind = draw(st.sampled_from(list(VALUES)))
    src, dst = draw(st.permutations([draw(st.sampled_from([LONG, st.integers(-9, 9)])), WORD]))
    return kind, draw(st.lists(st.tuples(src, dst, st.integers(0, 10**6), VALUES[kind]), min_size=1, max_size=12))


def written(kind, reader, values):
    """The values of a feature as a reader's format has them; None if it has no missing values of that type."""
    if reader == "tfgnn":
        absent = {"number": float("nan"), "category": "", "text": ""}.get(kind)
        return [absent if v is None else v for v in values] if absent is not None or None not in values else None
    # Protobuf has no absent lists, and an Avro column without values no type.
    if (kind == "vector" and reader == "protobuf" and None in values) or set(values if kind != "vector" else [v and "list" for v in values]) == {None}:
        return None
    return values


@hypothesis_settings(max_examples=40, deadline=None, derandomize=True)
@given(some_rows())
def test_the_same_rows_are_the_same_events_in_every_format(tmp_path_factory, registry, drawn):
    kind, rows = drawn
    folder = tmp_path_factory.mktemp("rows")
    src, dst, time, x = map(list, zip(*rows, strict=True))
    want = [(a, b, t * 1000, numbers_of(kind, v)) for a, b, t, v in rows]
    for reader in READERS:
        values = written(kind, reader, x)
        if values is not None:
            found, refused = read(reader, folder, {"src": src, "dst": dst, "time": time, "x": values}, FEATURES[kind], registry=registry)
            # Events of tables come in order of time.
            assert (found, refused) == (sorted(want, key=lambda event: event[2]) if reader == "tfgnn" else want, []), reader


@hypothesis_settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(LONG, WORD, st.integers(0, 10**6), SMALL), min_size=1, max_size=12))
def test_the_same_rows_are_the_same_events_in_other_types(tmp_path_factory, registry, rows):
    """Decimals, floats, dictionaries, views and bytes instead of integers and text."""
    folder = tmp_path_factory.mktemp("rows")
    src, dst, time, x = map(list, zip(*rows, strict=True))
    want = [(a, b, t * 1000, [v]) for a, b, t, v in rows]
    ids = pa.array(map(decimal.Decimal, src), pa.decimal128(38, 0))
    times = pa.array(time)
    forms = {"src": (ids, ids.dictionary_encode()), "dst": (pa.array(dst).dictionary_encode(), pa.array(dst, pa.string_view()), pa.array([t.encode() for t in dst])),
             "time": (times.cast(pa.timestamp("ms")), times.cast(pa.float64()), times.cast(pa.timestamp("ms")).cast(pa.timestamp("ns", "UTC"))), "x": (pa.array(x), pa.array(x, pa.float32()), pa.array(map(str, x)))}
    for at in range(3):
        columns = {name: Typed(arrays[at % len(arrays)], [None] * len(rows)) for name, arrays in forms.items()}
        for reader in (*ARROW, "parquet by columns", "arrow by columns"):
            # Times of named columns are integers or timestamps.
            if at != 1 or "columns" not in reader:
                assert read(reader, folder, columns, FEATURES["number"], registry=registry) == (want, []), (reader, at)
    number, _ = decimals(0, 0)
    avro_columns = {"src": Typed(number, list(map(decimal.Decimal, src))), "dst": Typed("bytes", [t.encode() for t in dst]), "time": Typed("double", list(map(float, time))), "x": x}
    assert read("avro", folder, avro_columns, FEATURES["number"], registry=registry) == (want, [])
    proto_columns = {"src": Typed(F.TYPE_SFIXED64, src), "dst": Typed(F.TYPE_BYTES, [t.encode() for t in dst]), "time": Typed(F.TYPE_UINT32, time), "x": Typed(F.TYPE_FLOAT, x)}
    assert read("protobuf", folder, proto_columns, FEATURES["number"], registry=registry) == (want, [])


@pytest.mark.parametrize("keys", ["text", "integer"])
def test_a_word_makes_all_keys_of_a_column_of_one_kind(tmp_path, registry, keys):
    """`007` and 7 and 2**63 of one column, where the mapping says what they are."""
    ids = ["7", "10001"] if keys == "integer" else ["7", "007", "9223372036854775808", "ann"]
    for reader in READERS:
        if reader not in ("tfgnn", "own events") and not (keys == "integer" and reader.endswith("by columns")):
            found, refused = read(reader, tmp_path, {"src": ids, "dst": ids, "time": [5] * len(ids)}, keys=keys, registry=registry)
            assert ([event[0] for event in found], refused) == (list(map(int, ids)) if keys == "integer" else ids, []), reader


@pytest.mark.parametrize("reader", ["csv", "csv by columns", "tfgnn"])
def test_a_column_of_two_kinds_of_digits_is_refused_with_the_way_out(tmp_path, reader):
    with pytest.raises(StreamdError, match=r"'02134', which stays text, and 10001, which would be an integer.*[Tt]ype: text|--keys text|streamd.keys"):
        read(reader, tmp_path, {"src": ["02134", "10001"], "dst": ["a", "b"], "time": [5, 6]})


@pytest.mark.parametrize(("reader", "says"), [
    ("parquet", "bad_key"), ("parquet by columns", r"t.parquet row 2: column 'dst': b'..?xff' is not a key.*write them as text"), ("live arrow", "bad_key"), ("avro", "bad_key"), ("protobuf", "bad_key"),
])
def test_bytes_that_are_no_text_are_refused_by_row_and_field(tmp_path, registry, reader, says):
    values = [b"a", b"\xff", b"b"]
    column = Typed(pa.array(values), values) if reader in (*ARROW, "parquet by columns") else values
    columns = {"src": [1, 2, 3], "dst": column, "time": [5, 6, 7]}
    if says != "bad_key":
        with pytest.raises(SettingsError, match=says):
            read(reader, tmp_path, columns)
        return
    events, reasons = read(reader, tmp_path, columns, registry=registry)
    assert [e[1] for e in events] == ["a", "b"] and reasons == [says]


def test_a_column_that_no_field_needs_may_hold_any_bytes(tmp_path, registry):
    values = [b"a", b"\xff"]
    for reader in ("parquet", "arrow", "live arrow", "avro", "protobuf", "parquet by columns"):
        blob = Typed(pa.array(values), values) if "arrow" in reader or "parquet" in reader else values
        events, refused = read(reader, tmp_path, {"src": [1, 2], "dst": ["a", "b"], "time": [5, 6], "blob": blob}, registry=registry)
        assert [e[:2] for e in events] == [(1, "a"), (2, "b")] and not refused, reader
