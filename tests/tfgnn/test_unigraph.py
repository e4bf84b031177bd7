"""Unigraph tables: the peer's, every form of ours, and what is refused."""

import csv
import dataclasses
import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import TFGNNError, TFRecordError
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import frame, read_records
from streamd.tfgnn.records.tensor import ragged
from streamd.tfgnn.schema.messages import Context, EdgeSet, Example, NodeSet
from streamd.tfgnn.schema.schema import new_feature, read_schema
from streamd.tfgnn.tables import reading as unigraph
from streamd.tfgnn.tables.reading import Rows, read_ids, read_seeds, read_table, table_path
from streamd.tfgnn.tables.writing import write_table

GOLDEN = Path(__file__).parent / "golden"
CSV, TFRECORD = GOLDEN / "unigraph_csv", GOLDEN / "unigraph_tfrecord"


def feature(dtype, *shape):
    return new_feature(f"DT_{dtype}", [None if s == -1 else s for s in shape])


def table(folder, set_name):
    """All rows of a table of the peer, as tuples."""
    schema = read_schema(folder)
    one = {**schema.node_sets, **schema.edge_sets}[set_name]
    return as_tuples(one, read_table(one, table_path(one, folder)))


def as_tuples(one, tables):
    found = []
    for rows in tables:
        columns = [c.tolist() for c in (rows.ids, rows.source, rows.target, rows.weight) if c is not None]
        columns += [rows.features[n].tolist() for n in sorted(one.features) if not n.startswith("#") and n != "weight"]
        found += zip(*columns, strict=True)
    return found


def test_tables_of_the_peer_in_both_formats():
    assert table(CSV, "paper")[3] == (b"p3", 0.75, b'Paper 3, a "quoted" title', 1999)
    papers = sorted(table(TFRECORD, "paper"))
    assert papers[3] == (b"p3", [4.0, 0.75, -1.0], 0.75, b'Paper 3, a "quoted" title', 1999) and len(papers) == 10
    cites = table(CSV, "cites")
    assert cites[:2] == [(b"p0", b"p1", 0.5), (b"p0", b"p2", pytest.approx(0.9))] and len(cites) == 16
    for name in ("author", "institution", "cites", "writes", "written", "affiliated_with"):
        assert sorted(table(CSV, name)) == sorted(table(TFRECORD, name)), name
    assert list(read_ids(CSV / "seeds.csv")) == [b"p0", b"p7", b"p9"]


def test_a_reversed_edge_set_has_the_same_table_the_other_way():
    assert sorted((t, s, p) for s, t, p in table(CSV, "written")) == sorted(table(CSV, "writes"))


@pytest.mark.parametrize("name", ["x.csv", "x.csv@3", "x.csv.gz", "x.tfrecord", "x-tfrecords@2", "x.tfrecord.gz"])
@pytest.mark.parametrize("set_name", ["paper", "cites", "written", "author"])
def test_what_is_written_is_read(tmp_path, name, set_name):
    schema = read_schema(CSV)
    one = {**schema.node_sets, **schema.edge_sets}[set_name]
    rows = list(read_table(one, table_path(one, CSV)))
    assert write_table(one, tmp_path / name, rows) == sum(r.num for r in rows)
    assert sorted(as_tuples(one, read_table(one, tmp_path / name))) == sorted(as_tuples(one, rows))


def test_a_reversed_table_lies_on_disk_as_it_lay_before(tmp_path):
    one = read_schema(CSV).edge_sets["written"]
    write_table(one, tmp_path / "w.csv", read_table(one, CSV / "writes.csv"))
    assert (tmp_path / "w.csv").read_text().splitlines()[:2] == ["#source,#target,position", "a0,p0,1"]


def test_a_glob_reads_every_shard_by_its_own_header(tmp_path):
    (tmp_path / "x.csv-00000-of-00002").write_text("id,a\nn0,1\n")
    (tmp_path / "x.csv-00001-of-00002").write_text("a,#id\n2,n1\n")
    one = NodeSet(features={"a": feature("INT64")})
    for name in ("x.csv@2", "x.csv-?????-of-00002", "x.csv-?????-of-?????"):
        rows = list(read_table(one, tmp_path / name))
        assert [(r.first, r.ids.tolist(), r.features["a"].tolist()) for r in rows] == [(0, [b"n0"], [1]), (1, [b"n1"], [2])]


def test_rows_seeds_and_records_of_half_the_shards_are_refused(tmp_path):
    (tmp_path / "x.csv-00001-of-00002").write_text("id,source,target\nn0,n0,n1\n")
    (tmp_path / "x.tfrecord-00001-of-00002").write_bytes(b"")
    for read in (partial(read_table, NodeSet()), partial(read_table, EdgeSet(source="a", target="b")), read_seeds, read_ids):
        with pytest.raises(TFGNNError, match="number 0 is missing"):
            list(read(tmp_path / "x.csv-?????-of-00002"))
    for read in (partial(read_table, NodeSet()), read_records, Codec(read_schema(CSV)).read):
        with pytest.raises(TFGNNError, match="number 0 is missing"):
            list(read(tmp_path / "x.tfrecord-*"))


def test_typed_cells_and_columns_that_the_schema_lacks(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('\ufeffid,a b,flag,u,d,other\r\n"x\r\ny",1.5,1,18446744073709551615,1e300,\r\n\r\nz,nan,0,0,-1,"q,""r"\r\n', newline="")
    one = NodeSet(features={"a b": feature("FLOAT"), "flag": feature("BOOL"), "u": feature("UINT64"), "d": feature("DOUBLE")})
    rows, = read_table(one, path)
    assert rows.ids.tolist() == [b"x\r\ny", b"z"] and rows.features["flag"].tolist() == [True, False]
    assert rows.features["u"].tolist() == [2**64 - 1, 0] and rows.features["d"].tolist() == [1e300, -1]
    assert rows.features["a b"].dtype == np.float32 and rows.others["other"].tolist() == [b"", b'q,"r']


@pytest.mark.parametrize("column", ["weight", "#weight"])
@pytest.mark.parametrize("name", ["x.csv", "x.tfrecord"])
def test_a_weight_is_a_float_though_the_schema_does_not_declare_it(tmp_path, name, column):
    declared = EdgeSet(source="a", target="b", features={column: feature("FLOAT")})
    rows = Rows(first=0, num=1, source=np.array([b"s"], object), target=np.array([b"t"], object), features={column: np.array([0.5], np.float32)})
    write_table(declared, tmp_path / name, [rows])
    for one in (declared, EdgeSet(source="a", target="b")):
        read, = read_table(one, tmp_path / name)
        assert read.weight.dtype == np.float32 and read.weight.tolist() == [0.5] and not read.others


@pytest.mark.parametrize("column", ["time", "#time"])
@pytest.mark.parametrize("name", ["x.csv", "x.tfrecord"])
def test_a_time_is_an_integer_though_the_schema_does_not_declare_it(tmp_path, name, column):
    declared = EdgeSet(source="a", target="b", features={column: feature("INT64")})
    ends = {"source": np.array([b"s"] * 2, object), "target": np.array([b"t"] * 2, object)}
    write_table(declared, tmp_path / name, [Rows(first=0, num=2, features={column: np.array([-5, 2**62])}, **ends)])
    for one in (declared, EdgeSet(source="a", target="b")):
        read, = read_table(one, tmp_path / name)
        assert read.time.dtype == np.int64 and read.time.tolist() == [-5, 2**62] and not read.others
        assert (column in read.features) == (one is declared)
    # And where nobody declares it, it is written too.
    write_table(EdgeSet(source="a", target="b"), tmp_path / f"again-{name}", [read])
    again, = read_table(EdgeSet(source="a", target="b"), tmp_path / f"again-{name}")
    assert again.time.tolist() == [-5, 2**62]


def test_seeds_may_have_times_and_nodes_have_none(tmp_path):
    path = tmp_path / "seeds.csv"
    path.write_text("id,time\na,7\n")
    assert [(rows.ids.tolist(), rows.time.tolist()) for rows in read_seeds(path)] == [([b"a"], [7])]
    rows, = read_table(NodeSet(), path)
    assert rows.time is None and rows.others["time"].tolist() == [b"7"]
    path.write_text("id,time\na,2026-01-01\n")
    with pytest.raises(TFGNNError, match="row 1, column 'time': '2026-01-01' is not an integer"):
        list(read_seeds(path))


def test_features_with_dims_are_rows_of_records(tmp_path):
    one = NodeSet(features={"emb": feature("FLOAT", 2, 2), "words": feature("STRING", -1), "boxes": feature("INT64", -1, 2)})
    rows = Rows(first=0, num=2, ids=np.array([b"a", b"b\0"], object), features={
        "emb": np.arange(8, dtype=np.float32).reshape(2, 2, 2), "words": ragged(one.features["words"], [[b"x", b"y"], []]),
        "boxes": ragged(one.features["boxes"], [[], [[1, 2], [3, 4]]])})
    write_table(one, tmp_path / "x.tfrecord", [rows])
    record = Example.FromString(list(read_records(tmp_path / "x.tfrecord"))[1])
    assert list(record.features.feature["#id"].bytes_list.value) == [b"b\0"] and list(record.features.feature["boxes"].int64_list.value) == [1, 2, 3, 4]
    read, = read_table(one, tmp_path / "x.tfrecord")
    assert read.ids.tolist() == [b"a", b"b\0"]
    for name, value in rows.features.items():
        assert read.features[name].tolist() == value.tolist()
    with pytest.raises(TFGNNError, match="has dims, but a cell of CSV holds one value"):
        write_table(one, tmp_path / "x.csv", [rows])
    assert [p.name for p in tmp_path.iterdir()] == ["x.tfrecord"], "what fails leaves nothing"


def test_a_context_table_has_rows_and_no_ids(tmp_path):
    one = Context(features={"label": feature("INT64")})
    (tmp_path / "c.csv").write_text("label\n4\n")
    rows, = read_table(one, tmp_path / "c.csv")
    assert rows.ids is None and rows.features["label"].tolist() == [4]


A = NodeSet(features={"a": feature("INT64")})


@pytest.mark.parametrize(("text", "words"), [
    ("", "is empty"),
    ("a\n1\n", "has no column '#id'; there are a"),
    ("id\nx\n", "has no column 'a'"),
    ("id,#id,a\nx,y,1\n", "has the column '#id' twice"),
    ("id,a\nx,1\ny\n", "row 2 has 1 cells, the header 2"),
    ("id,a\nx,1\ny,\n", "row 2, column 'a': '' is not an integer"),
    ("id,a\nx,1.5\n", "row 1, column 'a': '1.5' is not an integer"),
    ("id,a\nx," + "9" * 5000 + "\n", "is not an integer"),
    ('id,a\n"x,1\n', "after line"),
    ("id,a\n" + "x" * 140_000 + ",1\n", "field larger than field limit"),
    (b"id,a\n\xff,1\n", "after line"),
    (gzip.compress(b"id,a\n" + b"x,1\n" * 9)[:-4], "end-of-stream"),
], ids=lambda value: value[:20] if isinstance(value, str) else "")
def test_a_table_that_cannot_be_read_is_refused_by_row(tmp_path, text, words):
    path = tmp_path / "x.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    # Python's own limit of a cell, which reading other files raises for the whole process.
    csv.field_size_limit(131_072)
    with pytest.raises(TFGNNError) as error:
        list(read_table(A, path))
    assert str(path) in str(error.value) and words in str(error.value)


@pytest.mark.parametrize(("dtype", "cell"), [
    *((dtype, cell) for dtype in ("INT64", "BOOL") for cell in ("1_0", " 1", "1 ", "+1", "\u0661", "1e0", "0x1", "--1", "-", "true")),
    ("FLOAT", "1_0.5"), ("FLOAT", "\u0661.5"), ("FLOAT", "x")])
def test_a_number_is_written_with_its_digits_alone(tmp_path, dtype, cell):
    (tmp_path / "x.csv").write_text(f"id,a\nx,0\ny,{cell}\n")
    with pytest.raises(TFGNNError, match=r"x.csv row 2, column 'a': .* is not a"):
        list(read_table(NodeSet(features={"a": feature(dtype)}), tmp_path / "x.csv"))


@pytest.mark.parametrize(("dtype", "least", "most"), [
    ("INT8", -2**7, 2**7 - 1), ("INT32", -2**31, 2**31 - 1), ("INT64", -2**63, 2**63 - 1),
    ("UINT8", 0, 2**8 - 1), ("UINT32", 0, 2**32 - 1), ("UINT64", 0, 2**64 - 1), ("BOOL", 0, 1)])
def test_an_integer_beyond_its_dtype_is_refused_by_file_row_and_column(tmp_path, monkeypatch, dtype, least, most):
    monkeypatch.setattr(unigraph, "ROWS", 2)
    one = NodeSet(features={"a": feature(dtype)})
    (tmp_path / "x-0.csv").write_text(f"id,a\nx,{least}\ny,{most}\n")
    read = [v for rows in read_table(one, tmp_path / "x-0.csv") for v in rows.features["a"].tolist()]
    assert read == [least, most]
    for value in (least - 1, most + 1, 2**64, 2**70):
        (tmp_path / "x-1.csv").write_text(f"id,a\nu,0\nv,0\nw,{value}\n")
        with pytest.raises(TFGNNError, match=rf"x-1.csv row 3, column 'a': {value} is not from {least} to {most}, the range of DT_{dtype}\."):
            list(read_table(one, tmp_path / "x-?.csv"))


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_a_time_beyond_int64_is_refused_by_file_and_row(tmp_path, value):
    one = EdgeSet(source="a", target="b")
    (tmp_path / "x.csv").write_text(f"source,target,time\ns,t,1\ns,t,{value}\n")
    with pytest.raises(TFGNNError, match=rf"x.csv row 2, column 'time': {value} is not from"):
        list(read_table(one, tmp_path / "x.csv"))
    declared = EdgeSet(source="a", target="b", features={"#time": feature("UINT64")})
    (tmp_path / "x.csv").write_text(f"source,target,#time\ns,t,1\ns,t,{value}\n")
    with pytest.raises(TFGNNError, match=rf"x.csv row 2: feature '#time' has {value}, which DT_INT64 does not hold"):
        list(read_table(declared, tmp_path / "x.csv"))


def test_an_error_in_a_record_names_the_record_itself(tmp_path):
    def refused(one, *records):
        (tmp_path / "x.tfrecord").write_bytes(b"".join(records))
        with pytest.raises(TFGNNError) as error:
            list(read_table(one, tmp_path / "x.tfrecord"))
        return str(error.value)

    good, pair = record(**{"#id": [b"a"], "a": [1]}), record(**{"#id": [b"a"], "a": [1, 2]})
    assert "x.tfrecord record 2: feature 'a' has 2 values, its shape is ()" in refused(A, good, good, pair)
    assert "x.tfrecord record 1: #id has 0 values; it must have one" in refused(A, good, record(a=[1]))
    wide = NodeSet(features={"a": feature("INT8", None)})
    assert "x.tfrecord record 2: feature 'a' has 200, which DT_INT8 does not hold" in refused(
        wide, pair, record(**{"#id": [b"b"]}), record(**{"#id": [b"c"], "a": [3, 200]}))


def test_what_comes_before_a_bad_row_is_delivered(tmp_path, monkeypatch):
    monkeypatch.setattr(unigraph, "ROWS", 4)
    path = tmp_path / "x.csv"
    path.write_text("id,a\n" + "".join(f"n{i},{i}\n" for i in range(10)) + "n10\n")
    ids = []
    with pytest.raises(TFGNNError, match="row 11 has 1 cells"):
        for rows in read_table(A, path):
            ids += rows.ids.tolist()
    assert ids == [b"n%d" % i for i in range(10)]


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(unigraph, "MAX_LINE", 1000)
    (tmp_path / "x.csv").write_text("id,a\n" + "1," * 600)
    with pytest.raises(TFGNNError, match="a line has 1000 characters or more"):
        list(read_table(A, tmp_path / "x.csv"))


def record(**lists):
    made = Example()
    for key, values in lists.items():
        kind = {bytes: "bytes", float: "float", int: "int64"}[type(values[0])]
        getattr(made.features.feature[key], f"{kind}_list").value.extend(values)
    return frame(made.SerializeToString(deterministic=True))


@pytest.mark.parametrize(("one", "data", "words"), [
    (A, record(**{"#id": [5], "a": [1]}), "'#id' is a int64_list, its dtype needs a bytes_list"),
    (A, record(a=[1]), "#id has 0 values"),
    (A, record(**{"#id": [b"a", b"b"], "a": [1]}), "#id has 2 values"),
    (A, record(**{"#id": [b"a"]}), "feature 'a' has 0 values"),
    (A, record(**{"#id": [b"a"], "a": [1, 2]}), "feature 'a' has 2 values"),
    (A, record(**{"#id": [b"a"], "a": [1]}) + record(**{"#id": [b"a"], "a": [0.5]}), "record 1: 'a' is a float_list"),
    (NodeSet(features={"a": feature("INT8")}), record(**{"#id": [b"a"], "a": [200]}), "has 200, which DT_INT8 does not hold"),
    (NodeSet(features={"a": feature("BOOL")}), record(**{"#id": [b"a"], "a": [1]}) + record(**{"#id": [b"a"], "a": [2]}),
     "record 1: feature 'a' has 2, which DT_BOOL does not hold"),
    (NodeSet(features={"a": feature("INT64", -1, 2)}), record(**{"#id": [b"a"], "a": [1, 2, 3]}), "feature 'a' has 3 values"),
    (NodeSet(features={"a": feature("INT64", -1, -1)}), b"", "holds one ragged dim at most"),
    (NodeSet(features={"a": feature("INT64", 2, -1)}), b"", "holds one ragged dim at most"),
    (EdgeSet(source="a", target="b"), record(**{"#source": [b"a"]}), "#target has 0 values"),
    (EdgeSet(source="a", target="b"), record(**{"#source": [b"a"], "#target": [b"b"], "#weight": [1]}), "'#weight' is a int64_list"),
    (A, record(**{"#id": [b"a"], "a": [1]})[:-1], "damaged at byte 0"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_records_that_are_no_rows_are_refused(tmp_path, one, data, words):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    with pytest.raises(TFGNNError) as error:
        list(read_table(one, path))
    assert str(path) in str(error.value) and words in str(error.value)
    assert isinstance(error.value, TFRecordError) == ("damaged" in words)


def test_what_has_no_place_in_a_table_is_not_written(tmp_path):
    rows = Rows(first=0, num=1, ids=np.array([b"a\nb"], object), features={"a": np.array([1])})
    for changed, words in ((rows, "a line break"), (dataclasses.replace(rows, ids=None), "have no #id"),
                           (dataclasses.replace(rows, features={}), "lack the feature 'a'"),
                           (dataclasses.replace(rows, ids=np.array([b"\xff"], object)), "is not UTF-8")):
        with pytest.raises(TFGNNError, match=words):
            write_table(A, tmp_path / "x.csv", [changed])
    with pytest.raises(TFGNNError, match="would have no header"):
        write_table(A, tmp_path / "x.csv", [])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TFGNNError, match="is not a local file"):
        table_path(NodeSet(metadata={"filename": "gs://b/x.csv"}), tmp_path)
    assert table_path(NodeSet(metadata={}), tmp_path) is None


def test_a_declared_id_is_a_string(tmp_path):
    with pytest.raises(TFGNNError, match="#id is one string a row"):
        list(read_table(NodeSet(features={"#id": feature("INT64")}), tmp_path / "x.csv"))
