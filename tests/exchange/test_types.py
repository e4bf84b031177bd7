"""One table of types: docs/types.md, and the same rows read through every kind of file."""

import datetime
import decimal
import json
import re
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamd.clock import utc
from streamd.decode.decoder import make_decoder
from streamd.errors import SettingsError
from streamd.exchange.event_files import EventFile
from streamd.exchange.load import FileRow
from streamd.exchange.sourced import rows_of_sources
from streamd.settings.loading import load_settings, schema_of

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
NOW = 1_790_000_000_000_000
DAY = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
FEATURES = {"number": {"type": "number", "missing": -1}, "bool": {"type": "bool", "missing": False}, "category": {"categories": ["1", "1.5", "true", "a", "2"], "missing": "2"},
            "vector": {"vector": 2, "missing": [8, 9]}}
CATEGORIES = FEATURES["category"]["categories"]

# The name of a row of the page: how the cell is written in one kind of file.
CELLS = {
    "CSV `1`": ("csv", "1"), "CSV `01`": ("csv", "01"), "CSV `1.5`": ("csv", "1.5"), "CSV `a`": ("csv", "a"), "CSV `true`, `T`, `FALSE`, `f`": ("csv", "true"),
    "CSV `[1.5, 2]`": ("csv", "[1.5, 2]"), "CSV, an empty cell": ("csv", ""), "JSON `1`": ("ndjson", 1), "JSON `1.0`": ("ndjson", 1.0), "JSON `1.5`": ("ndjson", 1.5),
    'JSON `"1"`': ("ndjson", "1"), 'JSON `"a"`': ("ndjson", "a"), 'JSON `""`': ("ndjson", ""), "JSON `true`": ("ndjson", True), "JSON `[1.5, 2]`": ("ndjson", [1.5, 2]), "JSON `null`": ("ndjson", None),
    "JSON `{}`": ("ndjson", {}), "integers": ("parquet", pa.array([1], pa.int16())), "uint64 beyond int64": ("parquet", pa.array([2**63], pa.uint64())),
    "floats, whole": ("parquet", pa.array([1.0])), "floats, others": ("parquet", pa.array([1.5], pa.float32())), "NaN": ("parquet", pa.array([float("nan")])),
    "decimals of scale 0": ("parquet", pa.array([decimal.Decimal(1)], pa.decimal128(38, 0))), "decimals of another scale": ("parquet", pa.array([decimal.Decimal("1.5")], pa.decimal128(9, 2))),
    "booleans": ("parquet", pa.array([True])), "text, also views and dictionaries": ("parquet", pa.array(["a"]).dictionary_encode()), "binary with UTF-8": ("parquet", pa.array([b"a"], pa.binary(1))),
    "binary, others": ("parquet", pa.array([b"\xff"])), "UUIDs": ("arrow", pa.array([uuid.UUID(int=5).bytes], pa.uuid())), "timestamps, dates": ("parquet", pa.array([DAY])),
    "times of day, durations": ("parquet", pa.array([datetime.time(12, 30)])), "lists of numbers": ("parquet", pa.array([[1.5, 2.0]], pa.list_(pa.float32(), 2))),
    "structs, maps": ("parquet", pa.array([{"a": 1}])), "nulls": ("parquet", pa.nulls(1)),
}
USES = ("key", "time", "number", "bool", "category", "vector")


def write(folder, kind, columns):
    """A file of columns of one kind of cells or of Arrow arrays."""
    path = folder / f"t.{kind}"
    if kind in ("parquet", "arrow"):
        table = pa.table(columns)
        pyarrow.parquet.write_table(table, path) if kind == "parquet" else pyarrow.feather.write_feather(table, str(path))
    elif kind == "csv":
        rows = [list(columns), *zip(*columns.values(), strict=True)]
        path.write_text("".join(",".join('"' + str(cell).replace('"', '""') + '"' for cell in row) + "\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in zip(*columns.values(), strict=True)))
    return path


def decoded(path, feature, time="ms"):
    """Keys, times and features of a file's edges, or the reasons of those that are refused."""
    graph = {"edge_sets": {"default": {"features": {} if feature is None else {"x": feature}}}}
    fields = {"src": "src", "dst": "dst", "time": "time", "features": {} if feature is None else {"x": "x"}}
    made = load_settings(None, {"graph.edge_sets": graph["edge_sets"], "sources": [{"topic": "t", "time": time, "fields": fields}], "kafka.topics": ["t"]}, {})[0]
    rows = rows_of_sources(made.sources, EventFile(path), "ms")
    decoder = make_decoder(made, schema_of(made))
    block, rejected = decoder.decode([FileRow(offset=n, value=v) for n, v in rows], 0, NOW, "t")
    keys = decoder.keys.keys
    events = [(keys[r["a"]], keys[r["b"]], int(r["time"]), v) for r, v in zip(block.rows, np.asarray(block.values).tolist(), strict=True)]
    return events, [r.reason for r in rejected]


def outcome(folder, kind, cell, use):
    """What becomes of one cell, in the words of the page."""
    def many(value):
        return pa.array([value]) if kind in ("parquet", "arrow") else [value]

    cells = cell if kind in ("parquet", "arrow") else [cell]
    columns = {"src": many("s"), "dst": many("d"), "time": many("5" if kind == "csv" else 5)}
    columns[{"key": "dst", "time": "time"}.get(use, "x")] = cells
    tmp_file = write(folder, kind, columns)
    try:
        events, reasons = decoded(tmp_file, FEATURES.get(use))
    except SettingsError:
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
        (_, _, _, other), = decoded(tmp_file, {"type": "bool", "missing": True})[0]
        return "missing" if other != values else f"{values[0]:g}"
    return f"{values[0]:g}"


def page_rows():
    rows = re.findall(r"^\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {cells[0]: tuple(cells[1:]) for cells in (row.split(" | ") for row in rows) if len(cells) == 1 + len(USES)}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("use", USES)
def test_the_page_has_what_becomes_of_each_type(tmp_path, name, use):
    kind, cell = CELLS[name]
    assert page_rows()[name][USES.index(use)] == outcome(tmp_path, kind, cell, use)


def test_the_page_has_no_other_types():
    assert list(page_rows()) == ["type", *CELLS]


KEYS = st.one_of(st.integers(-(2**63) + 1, 2**63 - 1), st.integers(-9, 9))
ROWS = st.lists(st.tuples(KEYS, st.text("abcé -", min_size=1, max_size=4).filter(lambda t: t == t.strip()), st.integers(0, 10**6), st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=20)


@hypothesis_settings(max_examples=60, deadline=None)
@given(ROWS)
def test_the_same_rows_are_the_same_events_in_every_kind_of_file(tmp_path_factory, rows):
    """Integer and text keys, times and numbers: CSV, NDJSON, Parquet, Arrow and its other types."""
    folder = tmp_path_factory.mktemp("rows")
    src, dst, time, x = map(list, zip(*rows, strict=True))
    arrays = {"src": pa.array(src, pa.int64()), "dst": pa.array(dst), "time": pa.array(time), "x": pa.array(x)}
    want = [(a, b, t * 1000, [pytest.approx(v, rel=1e-6)]) for a, b, t, v in rows]
    others = arrays | {"src": pa.array(map(decimal.Decimal, src), pa.decimal128(38, 0)), "dst": arrays["dst"].dictionary_encode(), "time": arrays["time"].cast(pa.timestamp("ms"))}
    encoded = arrays | {"dst": pa.array([text.encode() for text in dst]), "time": arrays["time"].cast(pa.float64())}
    lists = {"src": src, "dst": dst, "time": time, "x": x}
    for kind, columns in (("csv", lists), ("ndjson", lists), ("parquet", arrays), ("arrow", arrays), ("parquet", others), ("arrow", others), ("parquet", encoded)):
        assert decoded(write(folder, kind, columns), FEATURES["number"]) == (want, []), kind


@pytest.mark.parametrize(("column", "says"), [
    (pa.array([b"a", b"\xff"]), "row 2: column 'dst': its bytes are not UTF-8 text. Operator action: cast it to text"),
])
def test_a_value_that_cannot_be_read_is_named_by_row_and_column(tmp_path, column, says):
    path = write(tmp_path, "parquet", {"src": pa.array([1, 2]), "dst": column, "time": pa.array([5, 6])})
    with pytest.raises(SettingsError, match=says):
        decoded(path, None)


def test_text_views_and_nested_decimals_are_read(tmp_path):
    path = write(tmp_path, "arrow", {"src": pa.array(["a"]).cast(pa.string_view()), "dst": pa.array([b"b"]).cast(pa.binary_view()), "time": pa.array([5]),
                                     "x": pa.array([[decimal.Decimal("1.5"), decimal.Decimal(2)]], pa.list_(pa.decimal128(5, 1)))})
    assert decoded(path, FEATURES["vector"]) == ([("a", "b", 5000, [1.5, 2.0])], [])
