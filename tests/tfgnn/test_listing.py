"""`streamd tfgnn show`: graphs, examples and rows in words, and files that mean harm."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError, TFGNNError, TFRecordError
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import frame, write_records
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, by_row, ragged
from streamd.tfgnn.sampling.run import plan_run, sample_tables
from streamd.tfgnn.schema.messages import Example
from streamd.tfgnn.schema.schema import parse_schema, read_schema, schema_text
from streamd.tfgnn.tables import listing
from streamd.tfgnn.tables.listing import Part, lines_of
from tests.tfgnn.sampled_world import World

GOLDEN = Path(__file__).parent / "golden"


def show(*words):
    done = CliRunner().invoke(app, ["tfgnn", "show", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def example(**lists):
    made = Example()
    for key, values in lists.items():
        kind = {bytes: "bytes", float: "float", int: "int64"}[type(values[0])]
        getattr(made.features.feature[key], f"{kind}_list").value.extend(values)
    return made.SerializeToString(deterministic=True)


SCHEMA = parse_schema(b"""
context { features { key: "label" value { dtype: DT_INT64 } } }
node_sets { key: "paper" value { features { key: "#id" value { dtype: DT_STRING } } features { key: "emb" value { dtype: DT_FLOAT shape { dim { size: 3 } } } }
  features { key: "words" value { dtype: DT_STRING shape { dim { size: -1 } dim { size: -1 } } } } } }
node_sets { key: "topic" value { } }
edge_sets { key: "on" value { source: "paper" target: "topic" features { key: "sure" value { dtype: DT_BOOL } } } }""")


@pytest.fixture
def graphs(tmp_path):
    """paper (two) --on--> topic (a million of them), in three shards."""
    words = ragged(SCHEMA.node_sets["paper"].features["words"], [[["a b", "c"], []], [["x" * 99], ["d"]]])
    papers = Nodes(sizes_C=np.array([2]), features={"#id": np.array([b"p0", b"\xff\x1b[2J"], object), "emb": np.arange(6).reshape(2, 3) / 8, "words": words})
    on = Edges(sizes_C=np.array([3]), source_E=np.array([0, 1, 1]), target_E=np.array([7, 0, 9]), features={"sure": np.array([True, False, True])})
    graph = GraphTensor(context={"label": np.array([5])}, node_sets={"paper": papers, "topic": Nodes(sizes_C=np.array([10**6]))}, edge_sets={"on": on})
    Codec(SCHEMA).write(tmp_path / "g.tfrecord@3", [graph] * 5)
    (tmp_path / "g.pbtxt").write_text(schema_text(SCHEMA))
    return tmp_path / "g.tfrecord@3"


def test_a_graph_is_shown_by_its_schema_and_nothing_of_it_moves_the_terminal(graphs, tmp_path):
    lines = show(graphs, "--graph-schema", tmp_path / "g.pbtxt", "--skip", 3, "--count", 1, "--values", 2)
    assert lines[0].startswith(f"{tmp_path}/g.tfrecord-00001-of-00003 record 1: ")
    assert lines[1:] == [
        "  context",
        "    0: label=5",
        "  node set paper: 2 nodes",
        '    0: #id=p0 emb=[0 0.125 and 1 more] words=["a b" c]',
        f'    1: #id="\\\\xff\\u001b[2J" emb=[0.375 0.5 and 1 more] words=["{"x" * 60}"... (99 bytes) d]',
        "  node set topic: 1,000,000 nodes",
        "  edge set on, paper to topic: 3 edges",
        "    0: 0 p0 -> 7 sure=true",
        '    1: 1 "\\\\xff\\u001b[2J" -> 0 sure=false',
        "    and 1 more"]


def test_an_example_is_shown_key_by_key_without_a_schema(graphs):
    lines = show(graphs, "--count", 1)
    assert "  nodes/topic.#size: 1 int64: 1000000" in lines and "  edges/on.#source: 3 int64: 0 1 1" in lines
    assert "  nodes/paper.emb: 6 float: 0 0.125 0.25 0.375 0.5 0.625" in lines and "  context/label: 1 int64: 5" in lines
    assert [line for line in lines if not line.startswith("  ")] == lines[:1]


def test_rows_of_tables_are_shown_with_a_schema_and_without():
    csv, tfrecord = GOLDEN / "unigraph_csv", GOLDEN / "unigraph_tfrecord"
    assert show(csv / "paper.csv", "--skip", 3, "--count", 1) == [
        f'{csv}/paper.csv row 4: id=p3 title="Paper 3, a \\"quoted\\" title" year=1999 score=0.75']
    assert show(csv / "writes.csv", "--count", 1, "--graph-schema", csv, "--set", "written") == [f"{csv}/writes.csv row 1: p0 -> a0 position=1"]
    assert show(csv / "cites.csv", "--count", 1, "--graph-schema", csv, "--set", "edges/cites") == [f"{csv}/cites.csv row 1: p0 -> p1 weight=0.5"]
    line, = show(tfrecord / "nodes-paper.tfrecords@2", "--skip", 2, "--count", 1, "--values", 1, "--graph-schema", tfrecord, "--set", "paper")
    assert "tfrecords-00000-of-00002 record 2: #id=" in line and "emb=[" in line and "and 2 more]" in line
    line, = show(tfrecord / "edges-cites.tfrecords-?????-of-00003", "--count", 1, "--graph-schema", tfrecord, "--set", "cites")
    assert " -> p" in line
    assert "  #id: 1 bytes: p0" in show(tfrecord / "nodes-paper.tfrecords-00000-of-00002", "--count", 1)


def test_samples_are_shown_as_they_were_written(tmp_path):
    world = World(tmp_path / "in", 1)
    out = tmp_path / "out" / "s.tfrecord@2"
    sample_tables(plan_run(world.path, world.path / "spec" / "spec.pbtxt", out))
    lines = show(out, "--graph-schema", tmp_path / "out" / "schema.pbtxt", "--count", 100, "--values", 1000)
    graphs = list(Codec(read_schema(tmp_path / "out" / "schema.pbtxt")).read(out))
    assert sum(" record " in line for line in lines) == len(graphs)
    assert sum(" -> " in line for line in lines) == sum(len(e.source_E) for g in graphs for e in g.edge_sets.values())


def test_what_is_asked_for_must_be_there(graphs, tmp_path):
    schema = GOLDEN / "unigraph_csv"
    assert show(graphs, "--skip", 9) == [f"{graphs}: there are no records after the first 9"]
    with pytest.raises(TFGNNError, match="paper.csv is a table.*--set"):
        show(schema / "paper.csv", "--graph-schema", schema)
    with pytest.raises(TFGNNError, match="no set 'papers': nodes/author, nodes/institution, nodes/paper, edges/"):
        show(schema / "paper.csv", "--graph-schema", schema, "--set", "papers")
    with pytest.raises(SettingsError, match="--set needs --graph-schema"):
        show(schema / "paper.csv", "--set", "paper")
    with pytest.raises(TFGNNError, match="is not a file"):
        show(tmp_path / "nothing")
    lines = show(GOLDEN / "unigraph_tfrecord" / "nodes-author.tfrecords", "--graph-schema", schema, "--count", 1)
    assert lines[-1] == "  it has no key of a graph; if it is a row of a table, name its set by --set"
    both = 'node_sets { key: "a" value {} } edge_sets { key: "a" value { source: "a" target: "a" } }'
    (tmp_path / "both.pbtxt").write_text(both)
    with pytest.raises(TFGNNError, match="several sets 'a': nodes/a, edges/a"):
        show(schema / "paper.csv", "--graph-schema", tmp_path / "both.pbtxt", "--set", "a")


def test_records_before_damage_are_shown(tmp_path):
    (tmp_path / "x").write_bytes(frame(example(a=[1])) + frame(example(a=[2]))[:-1])
    lines = []
    with pytest.raises(TFRecordError, match="record 1"):
        for line in lines_of(tmp_path / "x", Part()):
            lines.append(line)
    assert lines == [f"{tmp_path}/x record 0: 14 bytes", "  a: 1 int64: 1"]
    (tmp_path / "x.csv").write_text("id,a\nx,1\ny\n")
    with pytest.raises(TFGNNError, match="row 2 has 1 cells"):
        list(lines_of(tmp_path / "x.csv", Part()))


def test_a_record_shows_some_of_its_keys_and_values_however_many_it_has(tmp_path):
    many = example(**{f"k{i:04d}": [i] for i in range(1000)}, a=list(range(10**5)), **{"b\n\x1b[1m": [b"\r\n" * 10**5]})
    write_records(tmp_path / "x", [many])
    lines = show(tmp_path / "x")
    assert len(lines) == 2 + listing.MAX_KEYS and lines[-1] == "  and 802 more keys" and max(map(len, lines)) < 300
    assert lines[1] == "  a: 100,000 int64: 0 1 2 3 4 5 6 7 and 99,992 more"
    assert lines[2] == f'  "b\\n\\u001b[1m": 1 bytes: {json.dumps((chr(13) + chr(10)) * 30)}... (200,000 bytes)'
    wide = ",".join(f"c{i}" for i in range(10**4))
    (tmp_path / "x.csv").write_text(f"{wide}\n{wide}\n")
    line, = show(tmp_path / "x.csv")
    assert line.endswith("c199=c199 and 9,800 more")


def test_a_record_that_is_too_long_to_show_is_refused_before_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "MAX_BYTES", 1 << 20)
    long = frame(bytes(99 << 20))
    (tmp_path / "x.tfrecord.gz").write_bytes(gzip.compress(long, 1))
    (tmp_path / "small.tfrecord").write_bytes(frame(example(**{"#id": [b"a"]})) + long[:12] + bytes(9 << 20))
    del long
    tracemalloc.start()
    for name, words in (("x.tfrecord.gz", "record 0: its length is 103,809,040, and at most 1,048,576 bytes are read"), ("small.tfrecord", "record 1: its length is")):
        with pytest.raises(TFRecordError, match=words):
            list(lines_of(tmp_path / name, Part()))
        with pytest.raises(TFRecordError, match=words):
            list(lines_of(tmp_path / name, Part(), parse_schema(b'node_sets { key: "a" value {} }'), "a"))
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


def test_sizes_that_lie_cost_nothing(tmp_path):
    """A set of 2^40 nodes without features, and a ragged feature of 2^20 rows that is absent."""
    schema = parse_schema(b'''node_sets { key: "a" value { } } node_sets { key: "b" value {
      features { key: "w" value { dtype: DT_STRING shape { dim { size: -1 } dim { size: -1 } } } } } }''')
    write_records(tmp_path / "x", [example(**{"nodes/a.#size": [2**40], "nodes/b.#size": [2**20]})])
    lines = list(lines_of(tmp_path / "x", Part(values=1), schema))
    assert lines[1:] == ["  node set a: 1,099,511,627,776 nodes", "  node set b: 1,048,576 nodes", "    0: w=[]", "    and 1,048,575 more"]


@pytest.mark.parametrize("rows", [
    [[["a"], ["b", "c"]], [[], []], [["d"], []]], [[["a", "b"], []]], []])
def test_the_values_of_each_row_are_those_of_all_its_ragged_dims(rows):
    features = parse_schema(b'''node_sets { key: "n" value { features { key: "x" value { dtype: DT_STRING shape { dim { size: 2 } dim { size: -1 } } } }
      features { key: "y" value { dtype: DT_STRING shape { dim { size: -1 } dim { size: -1 } } } } } }''').node_sets["n"].features
    for feature in features.values():
        get = by_row(ragged(feature, rows))
        assert [get(r).tolist() for r in range(len(rows))] == [[v for part in row for v in part] for row in rows]
