"""GraphTensors as tf.train.Example: the peer's records, the guide's rules, every lie, random graphs against a plain reference."""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import TFGNNError, TFRecordError
from streamd.tfgnn.records.columns import ColumnReader
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.kernels import SLOW, scan_examples
from streamd.tfgnn.records.records import write_records
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, Ragged, ragged
from streamd.tfgnn.schema.messages import Context, EdgeSet, Example, GraphSchema, NodeSet
from streamd.tfgnn.schema.schema import (
    TYPES,
    dtype_of,
    new_feature,
    ragged_dims,
    read_schema,
    shape_of,
)
from tests.tfgnn import reference

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = {r["name"]: r for r in json.loads((GOLDEN / "encoding/expected.json").read_text())["records"]}


def feature(dtype, *shape):
    return new_feature(f"DT_{dtype}", [None if s == -1 else s for s in shape])


def example(**lists):
    """A record of the lists under keys, in which __ stands for / and _. for a dot that begins a name."""
    made = Example()
    for key, values in lists.items():
        target = made.features.feature[key]
        if not isinstance(values, tuple):
            kind = {bytes: "bytes", float: "float", int: "int64"}[type(values[0])] if values else "int64"
            values = kind, values
        getattr(target, f"{values[0]}_list").value.extend(values[1])
        getattr(target, f"{values[0]}_list").SetInParent()
    return made.SerializeToString(deterministic=True)


def values_of(array):
    """As expected.json writes values."""
    if isinstance(array, list):
        return [values_of(v) for v in array]
    if isinstance(array, bytes):
        return array.decode()
    return str(array) if isinstance(array, float) and math.isinf(array) else array


def check_features(have, want):
    assert have.keys() == want.keys()
    for name, one in want.items():
        assert values_of(have[name].tolist()) == one["value"], name
        if one["kind"] == "dense":
            assert list(have[name].shape) == one["shape"], name
            assert have[name].dtype == (object if one["dtype"] == "string" else one["dtype"]), name


@pytest.mark.parametrize("name", ["00_full", "03_explicit_zero_sizes"])
def test_the_peers_records_have_the_peers_values(name):
    codec = Codec(read_schema(GOLDEN / "encoding"))
    graph = codec.decode((GOLDEN / f"encoding/{name}.example").read_bytes())
    want = EXPECTED[name[3:]]["graph"]
    check_features(graph.context, want["context"])
    assert graph.node_sets.keys() == want["node_sets"].keys() and graph.edge_sets.keys() == want["edge_sets"].keys()
    for name, one in want["node_sets"].items():
        assert graph.node_sets[name].sizes_C.tolist() == one["sizes"]
        check_features(graph.node_sets[name].features, one["features"])
    for name, one in want["edge_sets"].items():
        edges = graph.edge_sets[name]
        assert (edges.sizes_C.tolist(), edges.source_E.tolist(), edges.target_E.tolist()) == (one["sizes"], one["source"], one["target"])
        check_features(edges.features, one["features"])


def test_a_record_of_the_peer_is_written_again_with_the_same_lists():
    codec = Codec(read_schema(GOLDEN / "encoding"))
    record = (GOLDEN / "encoding/00_full.example").read_bytes()
    ours, theirs = (Example.FromString(r) for r in (codec.encode(codec.decode(record)), record))
    assert ours == theirs


def test_the_peers_lie_is_refused_by_name():
    with pytest.raises(TFGNNError, match="node set 'paper', feature 'words' has 3 values; 3 items of its shape have 4"):
        Codec(read_schema(GOLDEN / "encoding")).decode((GOLDEN / "encoding/15_row_lengths_sum_mismatch.example").read_bytes())


def test_the_peers_samples_have_the_peers_content():
    folder = GOLDEN / "v1_edge_topk2"
    want = json.loads((folder / "expected.json").read_text())["subgraphs"]
    found = {}
    for graph in Codec(read_schema(folder)).read(folder / "samples.tfrecord@2"):
        seed = graph.context["seed_id"][0].decode()
        papers = graph.node_sets["paper"].features["#id"].tolist()
        cites = graph.edge_sets["cites"]
        ends = zip(cites.source_E, cites.target_E, cites.features["weight"].tolist(), strict=True)
        found[seed] = [p.decode() for p in papers], sorted((papers[s].decode(), papers[t].decode(), w) for s, t, w in ends)
    assert found == {seed: (one["nodes"]["paper"]["ids_in_record_order"], sorted((s, t, f["weight"]) for s, t, f in one["edges"].get("cites", [])))
                     for seed, one in want.items()}


def one_set(*shape, dtype="INT64"):
    return GraphSchema(node_sets={"n": NodeSet(features={"f": feature(dtype, *shape)})})


@pytest.mark.parametrize(("shape", "rows", "lists"), [
    ((), [5, 6], {"nodes/n.f": [5, 6]}),
    ((2,), [[1, 2], [3, 4]], {"nodes/n.f": [1, 2, 3, 4]}),
    ((-1,), [[1], [2, 3]], {"nodes/n.f": [1, 2, 3], "nodes/n.f.d1": [1, 2]}),
    ((-1, 2), [[[1, 2]], []], {"nodes/n.f": [1, 2], "nodes/n.f.d1": [1, 0]}),
    ((2, -1), [[[1], []], [[2, 3], [4]]], {"nodes/n.f": [1, 2, 3, 4], "nodes/n.f.d2": [1, 0, 2, 1]}),
    ((-1, -1), [[[1, 2], [3]], []], {"nodes/n.f": [1, 2, 3], "nodes/n.f.d1": [2, 0], "nodes/n.f.d2": [2, 1]}),
    ((-1, 2, -1), [[[[1], []]], []], {"nodes/n.f": [1], "nodes/n.f.d1": [1, 0], "nodes/n.f.d3": [1, 0]}),
])
def test_the_guides_encodings(shape, rows, lists):
    schema = one_set(*shape)
    codec = Codec(schema)
    f = schema.node_sets["n"].features["f"]
    value = ragged(f, rows) if None in shape_of(f) else np.array(rows)
    record = codec.encode(GraphTensor(node_sets={"n": Nodes(sizes_C=np.array([2]), features={"f": value})}))
    have = Example.FromString(record).features.feature
    assert {k: list(v.int64_list.value) for k, v in have.items()} == {"nodes/n.#size": [2], **lists}
    assert codec.decode(record).node_sets["n"].features["f"].tolist() == rows


@pytest.mark.parametrize(("dtype", "values", "kind", "wire"), [
    ("BOOL", [True, False], "int64", [1, 0]), ("UINT64", [2**64 - 1, 5], "int64", [-1, 5]), ("INT8", [-128, 127], "int64", [-128, 127]),
    ("UINT32", [2**32 - 1, 0], "int64", [2**32 - 1, 0]), ("DOUBLE", [1e300, 0.5], "float", [math.inf, 0.5]),
    ("HALF", [0.5, 65504], "float", [0.5, 65504]), ("BFLOAT16", [1.5, -2], "float", [1.5, -2]), ("STRING", [b"a\0", "é".encode()], "bytes", None)])
def test_types_and_the_lists_that_hold_them(dtype, values, kind, wire):
    codec = Codec(one_set(dtype=dtype))
    given_ = np.array(values, TYPES[f"DT_{dtype}"].numpy)
    record = codec.encode(GraphTensor(node_sets={"n": Nodes(sizes_C=np.array([2]), features={"f": given_})}))
    held = Example.FromString(record).features.feature["nodes/n.f"]
    assert list(getattr(held, f"{kind}_list").value) == (values if wire is None else wire)
    back = codec.decode(record).node_sets["n"].features["f"]
    assert back.dtype == TYPES[f"DT_{dtype}"].numpy and back.tolist() == (wire if dtype == "DOUBLE" else values)


@pytest.mark.parametrize("value", [2, -1])
def test_a_bool_is_0_or_1_in_records_read_and_written(value):
    codec, as_integers = Codec(one_set(dtype="BOOL")), Codec(one_set(dtype="INT64"))
    graph = GraphTensor(node_sets={"n": Nodes(sizes_C=np.array([2]), features={"f": np.array([1, value])})})
    for refused in (lambda: codec.encode(graph), lambda: codec.decode(as_integers.encode(graph))):
        with pytest.raises(TFGNNError, match=f"node set 'n', feature 'f' has {value}, which DT_BOOL does not hold"):
            refused()


CITES = GraphSchema(
    context=Context(features={"label": feature("INT64"), "tags": feature("STRING", -1)}),
    node_sets={"paper": NodeSet(features={"words": feature("STRING", -1), "year": feature("INT32"), "pairs": feature("INT64", 2, -1)}),
               "latent": NodeSet()},
    edge_sets={"cites": EdgeSet(source="paper", target="latent", features={"w": feature("FLOAT")})})
GOOD = {"context/label": [7], "nodes/paper.#size": [2], "nodes/paper.year": [1, 2], "nodes/latent.#size": [3],
        "edges/cites.#size": [2], "edges/cites.#source": [0, 1], "edges/cites.#target": [2, 0], "edges/cites.w": [0.5, 1.5]}


def test_an_absent_ragged_feature_has_empty_rows_and_a_latent_set_its_size():
    """The guide: three empty rows for an omitted ragged feature of three items."""
    graph = Codec(CITES).decode(example(**GOOD))
    assert graph.node_sets["paper"].features["words"].tolist() == [[], []]
    assert graph.node_sets["paper"].features["pairs"].tolist() == [[[], []], [[], []]]
    assert graph.context["tags"].tolist() == [[]]
    assert graph.node_sets["latent"].num == 3
    # Written, its zeros are there, so that the peer reads as many rows.
    have = Example.FromString(Codec(CITES).encode(graph)).features.feature
    assert list(have["nodes/paper.words.d1"].int64_list.value) == [0, 0]
    assert list(have["nodes/paper.pairs.d2"].int64_list.value) == [0, 0, 0, 0]


@pytest.mark.parametrize("without", [("edges/cites.#size", "edges/cites.#source", "edges/cites.#target", "edges/cites.w")])
def test_a_set_without_a_size_is_empty(without):
    graph = Codec(CITES).decode(example(**{k: v for k, v in GOOD.items() if k not in without}))
    assert graph.edge_sets["cites"].sizes_C.tolist() == [0] and len(graph.edge_sets["cites"].features["w"]) == 0
    only_label = Codec(CITES).decode(example(**{"context/label": [7]}))
    assert [n.num for n in only_label.node_sets.values()] == [0, 0]


def test_an_empty_list_of_another_kind_is_an_empty_list():
    """The guide's second example of empty features writes an empty bytes_list for integers."""
    record = example(**GOOD | {"nodes/paper.#size": [0], "nodes/paper.year": ("bytes", []), "edges/cites.#size": ("float", []),
                               "edges/cites.#source": [], "edges/cites.#target": [], "edges/cites.w": []})
    assert Codec(CITES).decode(record).node_sets["paper"].features["year"].tolist() == []


def test_several_components():
    record = example(**GOOD | {"context/label": [7, 8], "nodes/paper.#size": [0, 2], "nodes/latent.#size": [1, 2], "edges/cites.#size": [0, 2]})
    graph = Codec(CITES).decode(record)
    assert graph.context["label"].tolist() == [7, 8] and graph.context["tags"].tolist() == [[], []]
    assert graph.node_sets["paper"].sizes_C.tolist() == [0, 2]
    assert reference.same(reference.of_graph(Codec(CITES).decode(Codec(CITES).encode(graph))), reference.of_graph(graph))


@pytest.mark.parametrize(("change", "words"), [
    ({"nodes/paper.#size": [3]}, "node set 'paper', feature 'year' has 2 values; 3 items of its shape have 3"),
    ({"nodes/paper.#size": None}, "feature 'year' has 2 values; 0 items"),
    ({"nodes/paper.#size": [-2]}, "node set 'paper': its #size is -2"),
    ({"nodes/latent.#size": [2**62]}, "node set 'latent': its #size is 4611686018427387904"),
    ({"nodes/latent.#size": [2**62, 2**62]}, "has 2 sizes"),
    ({"nodes/paper.year": None}, "feature 'year' is missing, and there are 2 items"),
    ({"nodes/paper.year": [1.0, 2.0]}, "'nodes/paper.year' is a float_list, its dtype needs a int64_list"),
    ({"nodes/paper.year": [1, 2**31]}, "has 2147483648, which DT_INT32 does not hold"),
    ({"context/label": None}, "context, feature 'label' is missing"),
    ({"context/label": [1, 2]}, "context, feature 'label' has 2 values"),
    ({"edges/cites.#source": [0, 2]}, "edge set 'cites': #source has the index 2; node set 'paper' has 2 nodes"),
    ({"edges/cites.#target": [-1, 0]}, "#target has the index -1; node set 'latent' has 3"),
    ({"edges/cites.#source": [0]}, "#source has 1 entries and #size 2"),
    ({"edges/cites.#size": [1], "edges/cites.w": [0.5]}, "#source has 2 entries and #size 1"),
    ({"edges/cites.#target": None}, "#target has 0 entries and #size 2"),
    ({"nodes/paper.words": [b"a"]}, "d1 has 0 row lengths for 2 rows"),
    ({"nodes/paper.words": [b"a"], "nodes/paper.words.d1": [1, 1]}, "has 1 values; 2 items of its shape have 2"),
    ({"nodes/paper.words": [b"a"], "nodes/paper.words.d1": [2, -1]}, "d1 has the row length -1"),
    ({"nodes/paper.words": [b"a"], "nodes/paper.words.d1": [2**62, 2**62]}, "d1 has the row length 4611686018427387904"),
    ({"nodes/paper.pairs": [1], "nodes/paper.pairs.d2": [1, 0]}, "d2 has 2 row lengths for 4 rows"),
])
def test_a_record_that_lies_is_refused_by_name(change, words):
    lists = {k: v for k, v in (GOOD | change).items() if v is not None}
    with pytest.raises(TFGNNError) as error:
        Codec(CITES).decode(example(**lists), "x.tfrecord record 3")
    assert str(error.value).startswith("x.tfrecord record 3") and words in str(error.value)


def test_a_size_that_lies_takes_no_memory():
    schema = GraphSchema(node_sets={"n": NodeSet(features={"words": feature("STRING", -1), "none": feature("INT64", 0)}), "latent": NodeSet()})
    codec = Codec(schema)
    codec.decode(example(**{"nodes/n.#size": [1]}))
    tracemalloc.start()
    try:
        with pytest.raises(TFGNNError, match="'words' is missing, and there are 1099511627776 items"):
            codec.decode(example(**{"nodes/n.#size": [2**40]}))
        assert codec.decode(example(**{"nodes/latent.#size": [2**40]})).node_sets["latent"].num == 2**40
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


def test_keys_that_the_schema_lacks_are_passed_over_and_a_prefix_stands_before_all():
    record = example(**{f"p/{k}": v for k, v in GOOD.items()} | {"nodes/paper.other": [1], "p/nodes/paper.#id": [b"a"]})
    graph = Codec(CITES, prefix="p/").decode(record)
    assert graph.node_sets["paper"].features["year"].tolist() == [1, 2]
    assert Codec(CITES, prefix="p/").encode(graph).count(b"p/nodes/paper.#size") == 1
    with pytest.raises(TFGNNError, match="'label' is missing"):
        Codec(CITES).decode(record)


@pytest.mark.parametrize("schema", [
    GraphSchema(node_sets={"a.b": NodeSet(features={"c": feature("INT64")}), "a": NodeSet(features={"b.c": feature("INT64")})}),
    GraphSchema(node_sets={"a": NodeSet(features={"x": feature("INT64", -1), "x.d1": feature("INT64")})})])
def test_two_parts_with_the_same_key_are_refused(schema):
    with pytest.raises(TFGNNError, match="two parts of the schema have the key 'nodes/a"):
        Codec(schema)


def papers(**features):
    full = {"words": ragged(CITES.node_sets["paper"].features["words"], [["a"], []]), "year": np.array([1, 2], np.int32),
            "pairs": ragged(CITES.node_sets["paper"].features["pairs"], [[[], []], [[], []]])} | features
    return Nodes(sizes_C=np.array([2]), features={k: v for k, v in full.items() if v is not None})


def citing(nodes=None, **edges):
    fields = {"sizes_C": np.array([1]), "source_E": np.array([1]), "target_E": np.array([0]), "features": {"w": np.array([1.0])}} | edges
    return GraphTensor(context={"label": np.array([1]), "tags": ragged(CITES.context.features["tags"], [["x"]])},
                       node_sets={"paper": nodes or papers(), "latent": Nodes(sizes_C=np.array([1]))}, edge_sets={"cites": Edges(**fields)})


@pytest.mark.parametrize(("graph", "words"), [
    (citing(papers(year=None)), "feature 'year' is missing"),
    (citing(papers(year=np.array([1]))), "has the shape (1,), not (2,)"),
    (citing(papers(year=np.array([1, 2**40]))), "which DT_INT32 does not hold"),
    (citing(papers(year=np.array([1.5, 2]))), "has values of float64, its dtype is DT_INT32"),
    (citing(papers(more=np.array([1, 2]))), "has the feature 'more', the schema does not"),
    (citing(papers(words=np.array(["a", "b"], object))), "'words' must be ragged"),
    (citing(papers(words=ragged(feature("STRING", -1), [["a"], [5]]))), "has a int, its dtype is DT_STRING"),
    (citing(papers(words=Ragged((None,), np.array([b"a"], object), (np.array([1, 1]),)))), "has 1 values; 2 items"),
    (citing(source_E=np.array([2])), "#source has the index 2"),
    (citing(source_E=np.array([0.5])), "integers, not float64"),
    (citing(sizes_C=np.array([2])), "#source has 1 entries and #size 2"),
    (citing(sizes_C=np.array([1, 0])), "has 2"),
    (GraphTensor(), "the graph has no node set 'latent'"),
])
def test_a_graph_that_does_not_fit_the_schema_is_not_written(graph, words):
    with pytest.raises(TFGNNError) as error:
        Codec(CITES).encode(graph)
    assert words in str(error.value)


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def field(tag, data):
    return bytes([tag]) + varint(len(data)) + data


def entry(key, value):
    return field(0x0A, field(0x0A, key) + field(0x12, value))


YEAR = b"nodes/paper.year"


@pytest.mark.parametrize("year", [
    entry(YEAR, field(0x1A, b"\x08\x01\x08\x02")),                                    # not packed
    entry(YEAR, field(0x1A, field(0x0A, b"\x01") + b"\x08\x02")),                     # both
    entry(YEAR, field(0x1A, field(0x0A, b"\x01")) + field(0x1A, field(0x0A, b"\x02"))),  # a list in two parts
    entry(YEAR, field(0x12, field(0x0A, b"\0\0\0\0")) + field(0x1A, field(0x0A, b"\x01\x02"))),  # the last kind counts
    entry(YEAR, field(0x1A, field(0x0A, b"\x07"))) + entry(YEAR, field(0x1A, field(0x0A, b"\x01\x02"))),  # the last key counts
    field(0x0A, field(0x12, field(0x1A, field(0x0A, b"\x01\x02"))) + field(0x0A, YEAR)),  # the value before the key
    entry(YEAR, field(0x1A, field(0x0A, b"\x81\x80\x00\x02"))),                       # a varint longer than it must be
    entry(YEAR, field(0x1A, field(0x0A, b"\x01\x02") + b"\x38\x05")) + b"\x7a\x01x",  # unknown fields
    entry(YEAR, b"\x1a\x84\x00\n\x02\x01\x02"),                                       # a length longer than it must be
    entry(YEAR, field(0x1A, field(0x0A, b"\x01\x02"))) + entry(b"\xff", b""),         # a key that is no text
])
@pytest.mark.parametrize("wrap", [lambda f: field(0x0A, f), lambda f: field(0x0A, f) + field(0x0A, b""), lambda f: b"\x2a\x00" + field(0x0A, f)])
def test_whatever_shape_the_wire_format_allows_is_read(year, wrap):
    rest = Example.FromString(example(**{k: v for k, v in GOOD.items() if k != YEAR.decode()}))
    record = wrap(year + rest.features.SerializeToString())
    assert Codec(CITES).decode(record).node_sets["paper"].features["year"].tolist() == [1, 2]


def state(record):
    keys = np.frombuffer(YEAR, np.uint8), np.array([0, len(YEAR)]), np.array([3], np.uint8)
    arrays = np.empty((1, 1), np.uint8), *np.empty((3, 1, 1), np.int64), np.empty(1, np.uint8)
    scan_examples(np.frombuffer(record, np.uint8), np.array([0]), np.array([len(record)]), *keys, *arrays)
    return arrays[-1][0]


def test_what_we_and_the_peer_write_takes_the_fast_path():
    for path in sorted(GOLDEN.glob("encoding/*.example")):
        assert state(path.read_bytes()) != SLOW
    assert state(Codec(CITES).encode(citing())) != SLOW
    assert state(field(0x0A, entry(YEAR, field(0x1A, b"\x08\x01")))) == SLOW


def test_what_is_no_example_is_refused():
    with pytest.raises(TFGNNError, match="the record is no Example"):
        Codec(CITES).decode(b"\n\xff\xff")


def test_a_column_reader_mixes_fast_and_slow_records():
    records = [field(0x0A, entry(b"f", field(0x1A, field(0x0A, bytes([i])) if i % 3 else b"\x08" + bytes([i])))) for i in range(100)]
    ends = np.cumsum([len(r) for r in records])
    column, = ColumnReader([("f", "int64")]).read(b"".join(records), ends - [len(r) for r in records], ends, "record {}".format)
    assert column.values.tolist() == list(range(100)) and column.count_R.tolist() == [1] * 100


def test_reading_a_damaged_file_gives_the_graphs_before_the_damage(tmp_path):
    path, codec = tmp_path / "x.tfrecord", Codec(CITES)
    assert codec.write(path, [citing()] * 3) == 3
    path.write_bytes(path.read_bytes()[:-1])
    found = []
    with pytest.raises(TFRecordError, match="record 2"):
        for graph in codec.read(path):
            found.append(graph.node_sets["paper"].num)
    assert found == [2, 2]
    write_records(path, [codec.encode(citing()), b"\xff"])
    graphs = codec.read(path)
    next(graphs)
    with pytest.raises(TFGNNError, match=r"x.tfrecord record 1 is no Example"):
        next(graphs)


DTYPES = st.sampled_from(sorted(TYPES))
SHAPES = st.lists(st.sampled_from([None, None, 0, 1, 2, 3]), max_size=4).map(tuple).filter(
    lambda shape: None not in shape or 0 not in shape[: len(shape) - shape[::-1].index(None)])
FEATURES = st.dictionaries(st.sampled_from(["f", "g", "é", "#id", "x.y"]), st.builds(new_feature, DTYPES, SHAPES), max_size=3)


@st.composite
def graphs(draw):
    """A schema and a graph of it."""
    schema = GraphSchema(context=Context(features=draw(FEATURES)), node_sets={"a": NodeSet(features=draw(FEATURES)), "b": NodeSet()},
                         edge_sets={"e": EdgeSet(source="a", target="b", features=draw(FEATURES))})
    components = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def value(feature, num):
        rows, lengths = num, []
        of_item = shape_of(feature)
        last = max(ragged_dims(of_item), default=0)
        for size in of_item[:last]:
            if size is None:
                lengths.append(rng.integers(0, 3, rows))
            rows = int(lengths[-1].sum()) if size is None else rows * size
        shape = (rows, *of_item[last:])
        dtype = dtype_of(feature).numpy
        if dtype_of(feature).wire == "bytes":
            values = np.array([rng.bytes(rng.integers(0, 4)) for _ in range(math.prod(shape))] + [None], object)[:-1].reshape(shape)
        elif dtype.kind in "iub":
            low, high = (0, 2) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            values = rng.integers(low, high, shape, dtype, endpoint=dtype.kind != "b")
        else:
            values = rng.normal(size=shape).astype(np.float16).astype(dtype)
        return Ragged(of_item, values, tuple(lengths)) if lengths else values

    sizes = rng.integers(1, 4, (3, components))
    total = sizes.sum(1).tolist()
    return schema, GraphTensor(
        context={n: value(f, components) for n, f in schema.context.features.items()},
        node_sets={"a": Nodes(sizes_C=sizes[0], features={n: value(f, total[0]) for n, f in schema.node_sets["a"].features.items()}),
                   "b": Nodes(sizes_C=sizes[1])},
        edge_sets={"e": Edges(sizes_C=sizes[2], source_E=rng.integers(0, total[0], total[2]), target_E=rng.integers(0, total[1], total[2]),
                              features={n: value(f, total[2]) for n, f in schema.edge_sets["e"].features.items()})})


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_any_graph_is_read_back_and_protobuf_reads_the_same(made):
    schema, graph = made
    codec = Codec(schema, prefix="p")
    record = codec.encode(graph)
    assert record == codec.encode(graph)
    back = codec.decode(record)
    assert reference.same(reference.of_graph(back), reference.of_graph(graph))
    assert reference.same(reference.decode(record, schema, "p"), reference.of_graph(graph))
    assert back.node_sets["b"].sizes_C.dtype == np.int64
    for name, value in graph.node_sets["a"].features.items():
        assert back.node_sets["a"].features[name].tolist() == value.tolist()
