"""A log's declaration as a GraphSchema, and settings made of one."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import TFGNNError
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.settings.loading import load_settings, schema_of
from streamd.tfgnn.logs.declared import declared_sets, graph_schema
from streamd.tfgnn.logs.settings import settings_of_schema
from streamd.tfgnn.records.shards import shard_paths
from streamd.tfgnn.schema.messages import EdgeSet
from streamd.tfgnn.schema.schema import dtype_of, parse_schema, schema_binary, schema_text, shape_of
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table
from tests.builders import settings, stream, write_log

GOLDEN = Path(__file__).parent / "golden"
NODES = {"user": {"features": {"age": "number", "country": {"categories": ["de", "ünï", 3], "missing": "de"}}}, "item": {}}
EDGES = {"views": {"source": "user", "target": "item", "features": {"seconds": {"type": "number", "missing": 0.5}}},
         "buys": {"source": "user", "target": "item", "features": {"where": {"hash": 8}, "note": {"text": 6, "missing": ""}, "pos": {"vector": 2}, "gift": "bool"}},
         "a": {"source": "item", "target": "user"}}


def loaded(text, folder):
    (folder / "settings.yaml").write_text(text)
    return load_settings(folder / "settings.yaml", {}, {})[0]


@pytest.mark.parametrize("reverse", [(), ("views", "a")])
@pytest.mark.parametrize("encode", [lambda s: schema_text(s).encode(), schema_binary])
@pytest.mark.parametrize("values", [
    {"graph__node_sets": NODES, "graph__edge_sets": EDGES}, {"graph__edge_sets": {"default": {"features": {"x": "number"}}}},
    {"stream__edge_feature_dim": 3, "stream__node_feature_dim": 2}, {}])
def test_a_declaration_comes_back_from_its_schema(tmp_path, values, encode, reverse):
    s = settings(tmp_path, **values)
    declared = declared_sets(s)
    made = parse_schema(encode(graph_schema(declared, [n for n in reverse if n in declared.edge_sets])))
    again = loaded(settings_of_schema(made), tmp_path)
    assert (schema_of(again).edge_feature_dim, schema_of(again).node_feature_dim) == (schema_of(s).edge_feature_dim, schema_of(s).node_feature_dim)
    if values.get("graph__node_sets"):
        assert schema_of(again) == schema_of(s) and list(again.graph.edge_sets) == ["views", "buys", "a"]
    else:
        assert list(again.graph.edge_sets) == ["default"]


def test_a_log_says_its_own_sets_whatever_the_settings_declare(tmp_path):
    s = settings(tmp_path, graph__node_sets=NODES, graph__edge_sets=EDGES)
    LogWriter(tmp_path, schema_of(s)).close()
    done = CliRunner().invoke(app, ["tfgnn", "schema", "--data-dir", str(tmp_path), "--reversed"])
    made = parse_schema(done.output.encode())
    assert set(made.edge_sets) == {"views", "buys", "a", "rev_views", "rev_buys", "rev_a"}
    assert made.edge_sets["rev_a"].source == "user" and dtype_of(made.node_sets["user"].features["country"]).name == "DT_STRING"
    (tmp_path / "graph.pbtxt").write_text(done.output)
    text = CliRunner().invoke(app, ["config", "--from-schema", str(tmp_path / "graph.pbtxt")]).output
    assert schema_of(loaded(text, tmp_path)) == schema_of(s) and "rev_views: views from target to source" in text


def test_the_features_of_a_log_without_names_are_one_vector(tmp_path):
    write_log(tmp_path, *stream(20), Schema(3, 0, 0))
    made = graph_schema(declared_sets(settings(tmp_path), Schema(3, 0, 0)))
    assert shape_of(made.edge_sets["default"].features["features"]) == (3,)
    made = graph_schema(declared_sets(settings(tmp_path, graph__edge_sets={"default": {"features": {"p": {"vector": 3}}}}), Schema(3, 0, 0)))
    assert shape_of(made.edge_sets["default"].features["p"]) == (3,)


def test_of_a_peers_schema_what_a_log_can_hold_becomes_settings_and_the_rest_is_said(tmp_path):
    text = settings_of_schema(parse_schema((GOLDEN / "unigraph_csv" / "graph.pbtxt").read_bytes()))
    told = yaml.safe_load(text)
    assert told["graph"]["node_sets"] == {"author": {}, "institution": {}, "paper": {"features": {"score": "number", "year": "number"}}}
    assert list(told["graph"]["edge_sets"]) == ["affiliated_with", "cites", "writes"]
    for line in ("edge set written: writes from target to source", "node set paper, feature title: a text"):
        assert f"# left out: {line}" in text
    assert loaded(text, tmp_path).graph.edge_sets["writes"].source == "author"


@pytest.mark.parametrize(("file", "table", "declared", "features"), [
    ("e.csv", "source,target,#weight\n", "", {"weight": "number"}),
    ("e.csv", "source,target,weight\na,b,1\n", "", {"weight": "number"}),
    ("e.csv@2", "source,target,#weight\n", "", {"weight": "number"}),
    ("e.csv", "source,target,#weight\n", "#weight", {"#weight": "number"}),
    ("e.csv", "source,target,weight\n", "weight", {"weight": "number"}),
    ("e.csv", "source,target,weight,#weight\n", "weight", {"weight": "number", "#weight": "number"}),
    ("e.csv", "source,target,time\n", "", None),
    ("e.tfrecord", 0.5, "", {"weight": "number"}), ("e.tfrecord", None, "", None)])
def test_weights_that_a_table_has_and_the_schema_does_not_declare_become_a_feature(tmp_path, file, table, declared, features):
    feature = f'features {{ key: "{declared}" value {{ dtype: DT_FLOAT }} }}' if declared else ""
    text = f'node_sets {{ key: "n" value {{}} }} edge_sets {{ key: "e" value {{ source: "n" target: "n" {feature} metadata {{ filename: "{file}" }} }} }}'
    (tmp_path / "graph.pbtxt").write_text(text)
    for path in shard_paths(tmp_path / file):
        if isinstance(table, str):
            path.write_text(table)
        else:
            weight = {} if table is None else {"weight": np.array([table], np.float32)}
            ends = {"source": np.array([b"a"], object), "target": np.array([b"b"], object)}
            write_table(EdgeSet(source="n", target="n"), path, [Rows(first=0, num=1, **ends, **weight)])
    printed = CliRunner().invoke(app, ["config", "--from-schema", str(tmp_path)]).output
    assert yaml.safe_load(printed)["graph"]["edge_sets"]["e"].get("features") == features and "left out" not in printed
    loaded(printed, tmp_path)


def test_a_table_whose_header_cannot_be_read_is_named_in_a_comment(tmp_path):
    (tmp_path / "graph.pbtxt").write_text('node_sets { key: "n" value {} } edge_sets { key: "e" value { source: "n" target: "n" metadata { filename: "e.csv" } } }')
    printed = CliRunner().invoke(app, ["config", "--from-schema", str(tmp_path)]).output
    assert re.search("# left out: the weights of edge set e, if it has some: .*e.csv is not a file", printed)
    assert yaml.safe_load(printed)["graph"]["edge_sets"] == {"e": {"source": "n", "target": "n"}}


@pytest.mark.parametrize(("text", "says"), [
    ('node_sets { key: "n" value {} }', "no edge set"),
    ('node_sets { key: "2n" value {} } edge_sets { key: "e" value { source: "2n" target: "2n" } }', "the name of a set is a letter"),
    ('node_sets { key: "n" value {} } edge_sets { key: "e" value { source: "n" target: "n" '
     'metadata { extra { key: "streamd.features" value: "[1" } } } }', "streamd.features of edge set e is not a JSON object"),
    ('node_sets { key: "n" value {} } edge_sets { key: "e" value { source: "n" target: "n" '
     'metadata { extra { key: "streamd.features" value: "{\\"a\\": \\"nought\\"}" } } } }', "cannot be used for a log: .*edge_sets"),
    ('node_sets { key: "n" value {} } edge_sets { key: "e" value { source: "n" target: "n" '
     'features { key: "v" value { dtype: DT_FLOAT shape { dim { size: 99999 } } } } } }', "cannot be used for a log")])
def test_a_schema_that_cannot_be_a_logs_is_refused_by_name(text, says):
    with pytest.raises(TFGNNError, match=says):
        settings_of_schema(parse_schema(text.encode()))


def test_a_reversed_edge_set_whose_table_is_its_own_is_kept(tmp_path):
    text = (GOLDEN / "unigraph_csv" / "graph.pbtxt").read_text()
    schema = parse_schema(text.encode())
    del schema.edge_sets["writes"]
    made = loaded(settings_of_schema(schema), tmp_path)
    assert made.graph.edge_sets["written"].source == "paper"


def test_a_feature_with_the_name_of_a_tables_column_is_refused(tmp_path):
    declared = declared_sets(settings(tmp_path, graph__edge_sets={"default": {"features": {"#time": "number"}}}))
    with pytest.raises(TFGNNError, match="'#time' of edge set 'default' has the name of a column"):
        graph_schema(declared)


def test_a_reversed_edge_set_without_a_forward_one_is_kept():
    text = settings_of_schema(parse_schema(
        b'node_sets { key: "a" value {} } node_sets { key: "b" value {} } edge_sets { key: "e" value { source: "a" target: "b" '
        b'metadata { extra { key: "edge_type" value: "reversed" } } } }'))
    assert yaml.safe_load(text)["graph"]["edge_sets"] == {"e": {"source": "a", "target": "b"}} and "left out" not in text


def test_a_name_with_a_line_end_stays_in_its_comment():
    schema = parse_schema(b"""
        node_sets { key: "a" value { features { key: "x\\n: y" value { dtype: DT_STRING } } } }
        edge_sets { key: "e" value { source: "a" target: "a" } }""")
    text = settings_of_schema(schema)
    assert "# left out: node set a: feature x : y" in text.replace("node set a, ", "node set a: ") and yaml.safe_load(text)["graph"]["node_sets"] == {"a": {}}
