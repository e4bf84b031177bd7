"""Graphs at random, and what a schema says of arrays and records, held to one another."""

from pathlib import Path

import numpy as np
import pytest

from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.tensor import Ragged
from streamd.tfgnn.sampling.random_graphs import random_graphs
from streamd.tfgnn.schema.graph_spec import example_spec, graph_spec
from streamd.tfgnn.schema.messages import Example
from streamd.tfgnn.schema.schema import parse_schema, read_schema

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = [GOLDEN / "encoding", GOLDEN / "unigraph_csv", GOLDEN / "unigraph_tfrecord"]
each_schema = pytest.mark.parametrize("schema", [read_schema(path) for path in SCHEMAS], ids=[path.name for path in SCHEMAS])


def parts(graph):
    yield from ((f"context/{name}", value) for name, value in graph.context.items())
    for kind, sets in (("nodes", graph.node_sets), ("edges", graph.edge_sets)):
        for name, one in sets.items():
            yield from ((f"{kind}/{name}.{feature}", value) for feature, value in one.features.items())


def rows(value):
    return value.tolist()


@each_schema
@pytest.mark.parametrize("components", [1, 3])
def test_a_random_graph_is_read_again_as_it_was(schema, components):
    codec = Codec(schema)
    for graph in random_graphs(schema, 20, components=components):
        back = codec.decode(codec.encode(graph))
        assert {key: rows(value) for key, value in parts(back)} == {key: rows(value) for key, value in parts(graph)}
        for name, edges in graph.edge_sets.items():
            # An edge's ends are nodes of its own component.
            one = schema.edge_sets[name]
            for ends, at in ((edges.source_E, one.source), (edges.target_E, one.target)):
                of_node = np.repeat(np.arange(components), graph.node_sets[at].sizes_C)
                assert of_node[ends].tolist() == np.repeat(np.arange(components), edges.sizes_C).tolist()


@each_schema
def test_the_same_seed_gives_the_same_graphs(schema):
    codec = Codec(schema)
    first, again, other = ([codec.encode(g) for g in random_graphs(schema, 5, seed=s)] for s in (1, 1, 2))
    assert first == again != other and len(set(first)) == 5


@each_schema
@pytest.mark.parametrize("prefix", ["", "left/"])
def test_the_spec_of_records_has_the_keys_and_lists_of_records(schema, prefix):
    spec = example_spec(schema, prefix)
    record = Codec(schema, prefix).encode(next(random_graphs(schema, 1)))
    have = Example.FromString(record).features.feature
    assert {key: have[key].WhichOneof("kind") for key in have} == {key: f"{one.kind}_list" for key, one in spec.items()}
    assert {key for one in spec.values() for key in one.row_lengths} <= spec.keys()


@each_schema
def test_the_spec_of_graphs_has_the_dtypes_and_shapes_of_arrays(schema):
    spec = graph_spec(schema)
    graph = next(random_graphs(schema, 1))
    arrays = {f"context/{name}": one for name, one in spec.context.items()}
    arrays |= {f"nodes/{s}.{name}": one for s, features in spec.node_sets.items() for name, one in features.items()}
    arrays |= {f"edges/{s}.{name}": one for s, edges in spec.edge_sets.items() for name, one in edges.features.items()}
    found = dict(parts(graph))
    assert found.keys() == arrays.keys()
    for key, value in found.items():
        if isinstance(value, Ragged):
            assert arrays[key].shape == (None, *value.shape) and arrays[key].dtype == value.values.dtype
        else:
            assert arrays[key].shape == (None, *value.shape[1:]) and arrays[key].dtype == value.dtype


@each_schema
def test_node_and_edge_types_are_those_of_pyg(schema):
    convert = pytest.importorskip("streamd.tfgnn.records.convert")
    pytest.importorskip("torch_geometric")
    nodes, edges = graph_spec(schema).metadata
    data = convert.to_hetero_data(next(random_graphs(schema, 1)), schema)
    assert (set(nodes), set(edges)) == tuple(map(set, data.metadata()))


def test_values_are_drawn_from_those_that_are_given():
    schema = parse_schema(b"""context { features { key: "label" value { dtype: DT_INT64 } } }
      node_sets { key: "a" value { features { key: "kind" value { dtype: DT_STRING shape { dim { size: 2 } } } } } }""")
    graphs = list(random_graphs(schema, 50, values={"context/label": [3, 5], "nodes/a.kind": [b"x"]}))
    assert {int(g.context["label"][0]) for g in graphs} == {3, 5}
    assert all(set(g.node_sets["a"].features["kind"].reshape(-1)) == {b"x"} for g in graphs)
