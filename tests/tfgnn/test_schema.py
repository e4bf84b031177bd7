"""GraphSchema and SamplingSpec: text and binary, and everything that is refused."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.errors import TFGNNError
from streamd.tfgnn.sampling.draws import TOP_K
from streamd.tfgnn.sampling.spec import check_spec, parse_spec, read_spec, spec_binary, spec_text
from streamd.tfgnn.schema import messages
from streamd.tfgnn.schema.messages import (
    EdgeSet,
    GraphSchema,
    NodeSet,
    SamplingOp,
    SamplingSpec,
)
from streamd.tfgnn.schema.schema import (
    dtype_of,
    new_feature,
    parse_schema,
    read_schema,
    schema_binary,
    schema_text,
)

GOLDEN = Path(__file__).parent / "golden"
WORDS = new_feature("DT_STRING", (None, 3, None), "d")
WORDS.shape.dim[0].name, WORDS.shape.dim[2].name = "a", "c"
LABEL = new_feature("DT_INT64", description="class")
LABEL.source = "x"
FULL = GraphSchema(
    context={"features": {"label": LABEL, "#note": new_feature("DT_STRING")}, "metadata": {}},
    node_sets={
        "paper": NodeSet(
            description="é 中", context=("label",), features={"words": WORDS, "empty": new_feature("DT_BFLOAT16", (0,))},
            metadata={"filename": "p@3.csv", "cardinality": 0, "extra": [{"key": "k", "value": "v"}, {"key": "k", "value": ""}],
                          "bigquery": {"table_spec": {"project": "p", "table": "t"}, "read_method": "DIRECT_READ", "reshuffle": True}}),
        "latent": NodeSet()},
    edge_sets={"cites": EdgeSet(source="paper", target="latent", context=("label",), metadata={
        "cardinality": 2**62, "extra": [{"key": "edge_type", "value": "reversed"}], "bigquery": {"sql": "select 1"}})},
    info={"graph_type": "SUBGRAPH", "root_set": ("paper", "latent")})


def test_every_field_comes_back_from_text_and_from_binary():
    assert parse_schema(schema_text(FULL).encode()) == FULL
    assert parse_schema(schema_binary(FULL)) == FULL
    assert schema_binary(FULL) == schema_binary(parse_schema(schema_text(FULL).encode()))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/*.pbtxt")), ids=lambda p: p.parent.name)
def test_a_schema_of_the_peer_comes_back_the_same(path):
    schema = read_schema(path)
    assert len(schema.node_sets) >= 2
    assert parse_schema(schema_text(schema).encode()) == schema == parse_schema(schema_binary(schema))
    assert read_schema(path.parent) == schema, "a folder with one .pbtxt stands for it"


def test_the_text_format_is_read_in_all_its_forms():
    text = """
    # a comment
    node_sets < key: 'a' value { context: ["x", "y"], description: 'one' ' two' } > node_sets { key: "b" value: {} }
    context { features { key: "x" value { dtype: 9 } } features { key: "y" value { dtype: DT_BOOL; } } }
    edge_sets { key: "e" value { source: "a" target: "a" } } edge_sets { key: "e" value { source: "b", target: "a" } }
    """
    schema = parse_schema(text.encode())
    assert schema.node_sets["a"] == NodeSet(context=("x", "y"), description="one two")
    assert {name: dtype_of(f).name for name, f in schema.context.features.items()} == {"x": "DT_INT64", "y": "DT_BOOL"}
    assert schema.edge_sets["e"].source == "b", "the last of a key counts"


@pytest.mark.parametrize(("text", "place", "words"), [
    ("node_sets {\n  key: 'a'\n  value { fatures {} } }", ":3:11", "no field named \"fatures\""),
    ("node_sets { key: 'a' value { features { key: 'b' value {\n dtype: DT_FOO } } } }", ":2:9", "no value named DT_FOO"),
    ("node_sets { key: 'a'\n value {", ":2:8", 'Expected "}"'),
    ("node_sets { key: 3 }", ":1:18", "Expected string"),
    # The guide's own snippet of a ragged feature lacks a brace.
    ('node_sets { key: "a" value { features {\n key: "b" value { dtype: DT_INT64\n shape { dim { size: -1 }\n} } } }', ":4:7", 'Expected "}"'),
    ("info { graph_type: FULL graph_type: FULL }", ":1:37", "should not have multiple"),
    ("context { metadata { cardinality: " + "9" * 30 + " } }", ":1:35", "out of range"),
])
def test_what_is_no_schema_is_refused_with_line_and_column(text, place, words):
    with pytest.raises(TFGNNError) as error:
        parse_schema(text.encode(), "g.pbtxt")
    assert str(error.value).startswith(f"g.pbtxt{place}: ") and words in str(error.value)
    assert len(str(error.value)) < 400


def feature(body, where="node_sets { key: 'n' value { %s } }"):
    return where % (f"features {{ key: 'f' value {{ {body} }} }}")


EDGES = "node_sets { key: 'n' value {} } edge_sets { key: 'e' value { %s } }"


@pytest.mark.parametrize(("text", "words"), [
    (feature(""), "node set 'n', feature 'f' has no dtype"),
    (feature("dtype: DT_COMPLEX64"), "DT_COMPLEX64, which records cannot hold"),
    (feature("dtype: DT_QINT8"), "DT_QINT8"),
    (feature("dtype: DT_INT64 shape { unknown_rank: true }"), "unknown rank"),
    (feature("dtype: DT_INT64 shape { dim { size: -2 } }"), "a dim has the size -2"),
    (feature("dtype: DT_INT64 shape { dim { size: 3 name: 'x' } }"), "names dims and has no description"),
    (feature("dtype: DT_INT64 shape { dim { size: 65536 } dim { size: 65536 } }"), "make 4294967296 values an item"),
    (feature("dtype: DT_INT64 shape { dim { size: 0 } dim { size: -1 } }"), "a dim of 0 before a ragged one"),
    (feature("dtype: DT_INT64 shape {" + "dim { size: 1 }" * 40 + "}"), "has 40 dims"),
    ("node_sets { key: 'n' value { features { key: '#size' value { dtype: DT_INT64 } } } }", "'#size': records use this name"),
    (EDGES % "source: 'n' target: 'n' features { key: '#source' value { dtype: DT_INT64 } }", "'#source'"),
    (EDGES % "source: 'n' target: 'n' features { key: '#target' value { dtype: DT_INT64 } }", "'#target'"),
    ("context { features { key: '#size' value { dtype: DT_INT64 } } }", "context, feature '#size'"),
    ("node_sets { key: 'n' value { context: 'x' } }", "names the context feature 'x', which is not there"),
    (EDGES % "target: 'n'", "edge set 'e' has no source"),
    (EDGES % "source: 'n'", "edge set 'e' has no target"),
    (EDGES % "source: 'n' target: 'm'", "its target 'm' is not a node set"),
    (EDGES % "source: 'm' target: 'n'", "its source 'm' is not a node set"),
])
def test_a_schema_that_contradicts_itself_is_refused(text, words):
    with pytest.raises(TFGNNError, match="^g.pbtxt: ") as error:
        parse_schema(text.encode(), "g.pbtxt")
    assert words in str(error.value)


def test_what_is_refused_on_reading_is_refused_on_writing():
    with pytest.raises(TFGNNError, match="not a node set"):
        schema_text(GraphSchema(edge_sets={"e": EdgeSet(source="a", target="b")}))
    with pytest.raises(TFGNNError, match="sample_size 0"):
        spec_binary(SamplingSpec(seed_op={"op_name": "s", "node_set_name": "n"}, sampling_ops=(
            {"op_name": "a", "input_op_names": ("s",), "edge_set_name": "e", "sample_size": 0},)))


def test_a_folder_must_hold_exactly_one_schema(tmp_path):
    with pytest.raises(TFGNNError, match="exactly one .pbtxt; there are: none"):
        read_schema(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.pbtxt").write_text("")
    with pytest.raises(TFGNNError, match=r"a\.pbtxt, b\.pbtxt"):
        read_schema(tmp_path)
    assert read_schema(tmp_path / "a.pbtxt") == GraphSchema()
    with pytest.raises(TFGNNError, match="cannot be read"):
        read_schema(tmp_path / "c.pbtxt")


def test_a_string_that_is_no_text_is_refused():
    with pytest.raises(TFGNNError, match="utf-8"):
        parse_schema(schema_binary(FULL).replace("é".encode(), b"\xff\xfe"))


def test_an_escape_that_nobody_knows_is_read_without_a_warning():
    assert parse_schema(rb"node_sets { key: 'a\y' value {} }").node_sets.keys() == {"a\\y"}


def test_a_file_too_large_for_a_schema_is_refused_unread():
    with pytest.raises(TFGNNError, match="check that this is the schema"):
        parse_schema(b"\0" * (messages.MAX_SCHEMA_BYTES + 1))


def test_without_protobuf_the_error_names_the_extra():
    code = ("import sys\nsys.modules['google.protobuf'] = None\nfrom streamd.errors import TFGNNError\n"
            "try:\n    import streamd.tfgnn.schema.schema\nexcept TFGNNError as error:\n    print(error)")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "need protobuf" in done.stdout and "streamd-gnn[tfgnn]" in done.stdout


def test_messages_survive_pickling():
    """As Beam sends them to its workers."""
    spec = read_spec(GOLDEN / "topk2.pbtxt")
    for message in (FULL, FULL.node_sets["paper"], FULL.edge_sets["cites"], FULL.context, spec, spec.sampling_ops[0]):
        assert pickle.loads(pickle.dumps(message)) == message


def test_unknown_fields_are_dropped():
    data = schema_binary(FULL) + bytes([7 << 3 | 2, 1]) + b"x"
    assert schema_binary(parse_schema(data)) == schema_binary(FULL)


def test_the_classes_live_beside_those_of_others():
    """TensorFlow registers tensorflow.Example in the default pool; ours is in a pool of its own."""
    code = ("from google.protobuf import descriptor_pool as p, descriptor_pb2 as d\n"
            "p.Default().AddSerializedFile(d.FileDescriptorProto(name='x.proto', package='streamd.tfgnn',\n"
            "    message_type=[d.DescriptorProto(name='Example')]).SerializeToString())\n"
            "from streamd.tfgnn.schema.messages import Example\n"
            "assert Example().features is not None")
    subprocess.run([sys.executable, "-c", code], check=True)


SPEC = SamplingSpec(seed_op={"op_name": "seed", "node_set_name": "paper"}, sampling_ops=(
    {"op_name": "hop1", "input_op_names": ("seed",), "edge_set_name": "cites", "sample_size": 2},
    {"op_name": "hop2", "input_op_names": ("hop1", "seed"), "edge_set_name": "cites", "sample_size": 1, "strategy": "LATEST_K"}))


@pytest.mark.parametrize("spec", [SPEC, SamplingSpec(symmetric_link_seed_op={"op_name": "s"})])
def test_a_spec_comes_back_from_text_and_from_binary(spec):
    assert parse_spec(spec_text(spec).encode()) == spec == parse_spec(spec_binary(spec))


def test_a_spec_of_the_peer_is_read():
    spec = read_spec(GOLDEN / "topk2.pbtxt", read_schema(GOLDEN / "unigraph_csv"))
    assert (spec.seed_op.op_name, spec.seed_op.node_set_name) == ("seed", "paper")
    assert [(op.op_name, op.sample_size, op.strategy) for op in spec.sampling_ops] == [("hop1", 2, TOP_K), ("hop2", 1, TOP_K)]


def test_an_operation_without_a_strategy_takes_the_top():
    text = "seed_op { op_name: 's' node_set_name: 'n' } sampling_ops { op_name: 'a' input_op_names: 's' edge_set_name: 'e' sample_size: 3 }"
    assert parse_spec(text.encode()).sampling_ops[0].strategy == TOP_K


def changed(**fields):
    """The spec with the first operation alone, and some fields of it changed."""
    spec = SamplingSpec(seed_op=SPEC.seed_op, sampling_ops=[SPEC.sampling_ops[0]])
    for name in fields:
        spec.sampling_ops[0].ClearField(name)
    spec.sampling_ops[0].MergeFrom(SamplingOp(**fields))
    return spec


def begun_at(node_set):
    return SamplingSpec(seed_op={"op_name": "seed", "node_set_name": node_set}, sampling_ops=SPEC.sampling_ops)


@pytest.mark.parametrize(("spec", "words"), [
    (changed(sample_size=-1), "operation 'hop1' has sample_size -1"),
    (changed(edge_set_name=""), "has no edge_set_name"),
    (changed(edge_set_name="written"), "the edge set 'written' is not in the schema; there are affiliated_with, cites"),
    (changed(input_op_names=()), "has no input_op_names"),
    (changed(input_op_names=("hop2",)), "its input 'hop2' is not defined before it"),
    (changed(input_op_names=("hop1",)), "its input 'hop1' is not defined before it"),
    (changed(op_name="seed"), "occurs twice"),
    (changed(op_name=""), "has no op_name"),
    (changed(edge_set_name="affiliated_with"), "gives nodes of 'paper', and its edge set 'affiliated_with' begins at 'author'"),
    (begun_at(""), "has no node_set_name"),
    (begun_at("x"), "the node set 'x' is not in the schema"),
    (SamplingSpec(symmetric_link_seed_op={"op_name": "s"}), "'_readout' is not in the schema"),
])
def test_a_spec_that_cannot_be_run_is_refused(spec, words):
    schema = read_schema(GOLDEN / "unigraph_csv")
    del schema.edge_sets["written"]
    with pytest.raises(TFGNNError) as error:
        check_spec(spec, schema)
    assert words in str(error.value)


@pytest.mark.parametrize(("change", "without", "advice"), [
    # paper --cites--> paper, author --writes--> paper, author --affiliated_with--> institution
    ({"edge_set_name": "affiliated_with", "node_set": "institution"}, [],
     r"add the reverse of 'affiliated_with' to the schema.*key: \"rev_affiliated_with\" value .*source: \"institution\" target: \"author\" "
     r"metadata . filename: \"affiliated_with.csv\" extra . key: \"edge_type\" value: \"reversed\""),
    ({"edge_set_name": "affiliated_with"}, [], "action: correct the sampling spec.$"),
    ({"edge_set_name": "writes"}, [], "action: name 'written', the reverse of 'writes'.$"),
    ({"edge_set_name": "writes"}, ["written"], 'add the reverse of \'writes\'.*"rev_writes".*source: "paper" target: "author"'),
    ({"edge_set_name": "written"}, ["written"], 'add the reverse of \'writes\'.*"written".*source: "paper" target: "author"'),
    ({"edge_set_name": "cited_by"}, ["written"], 'add the reverse of \'cites\'.*"cited_by".*source: "paper" target: "paper"'),
    ({"edge_set_name": "authors", "next": "affiliated_with"}, ["written"], 'add the reverse of \'writes\'.*"authors"'),
    # The reverse of a reversed set is the table as it is.
    ({"edge_set_name": "writes", "node_set": "author"}, ["writes"], 'add the reverse of \'written\'.*filename: "writes.csv" }'),
    ({"edge_set_name": "x", "node_set": "author"}, ["writes", "written"], "action: correct the sampling spec.$")])
def test_where_the_other_direction_is_there_the_advice_is_the_reversed_set(change, without, advice):
    schema = read_schema(GOLDEN / "unigraph_csv")
    for name in without:
        del schema.edge_sets[name]
    ops = [{"op_name": "hop1", "input_op_names": ["seed"], "edge_set_name": change["edge_set_name"], "sample_size": 2}]
    if "next" in change:
        ops.append({"op_name": "next", "input_op_names": ["hop1"], "edge_set_name": change["next"], "sample_size": 2})
    spec = SamplingSpec(seed_op={"op_name": "seed", "node_set_name": change.get("node_set", "paper")}, sampling_ops=ops)
    with pytest.raises(TFGNNError, match=advice):
        check_spec(spec, schema)


def test_a_spec_without_a_seed_is_refused():
    with pytest.raises(TFGNNError, match="has no seed"):
        parse_spec(b"sampling_ops {}")
