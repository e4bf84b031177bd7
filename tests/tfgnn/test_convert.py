"""GraphTensors of torch tensors and as HeteroData, there and back."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from streamd.errors import TFGNNError
from streamd.tfgnn.records.convert import from_hetero_data, from_torch, to_hetero_data, to_torch
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.tensor import GraphTensor, Nodes
from streamd.tfgnn.schema.messages import GraphSchema, NodeSet
from streamd.tfgnn.schema.schema import new_feature, read_schema
from tests.tfgnn import reference

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = read_schema(GOLDEN / "encoding")
CODEC = Codec(SCHEMA)


@pytest.fixture(params=["00_full", "03_explicit_zero_sizes"])
def graph(request):
    return CODEC.decode((GOLDEN / f"encoding/{request.param}.example").read_bytes())


def test_a_graph_of_torch_tensors_has_the_same_values(graph):
    made = to_torch(graph)
    paper = made.node_sets["paper"].features
    assert paper["year"].dtype == torch.int32 and paper["flag"].dtype == torch.bool and paper["feat"].dtype == torch.float32
    assert paper["boxes"].values.shape[1:] == (2,) and paper["boxes"].row_lengths[0].dtype == torch.int64
    assert paper["title"].dtype == object, "torch has no strings"
    assert paper["sents"].tolist() == graph.node_sets["paper"].features["sents"].tolist()
    paper["year"] += 1  # of its own memory
    assert CODEC.encode(graph) == CODEC.encode(from_torch(to_torch(graph))) != CODEC.encode(from_torch(made)) or not len(paper["year"])


def test_a_graph_as_hetero_data_and_back(graph):
    pytest.importorskip("torch_geometric")
    data = to_hetero_data(graph, SCHEMA)
    num = graph.node_sets["paper"].num
    assert data["paper"].num_nodes == num and data["author"].num_nodes == graph.node_sets["author"].num
    assert data["author", "writes", "paper"].edge_index.tolist() == [graph.edge_sets["writes"].source_E.tolist(), graph.edge_sets["writes"].target_E.tolist()]
    assert data["paper"].feat.shape == (num, 2, 3) and data.context_scores.shape == (1, 4)
    assert data["paper"]["words.d1"].tolist() == graph.node_sets["paper"].features["words"].row_lengths[0].tolist()
    data.validate()
    back = from_hetero_data(data, SCHEMA)
    assert reference.same(reference.of_graph(back), reference.of_graph(graph)) and CODEC.encode(back) == CODEC.encode(graph)


def test_pyg_joins_graphs_and_their_batch_is_read_back():
    geometric = pytest.importorskip("torch_geometric.data")
    one = CODEC.decode((GOLDEN / "encoding/00_full.example").read_bytes())
    batch = geometric.Batch.from_data_list([to_hetero_data(one, SCHEMA)] * 2)
    assert batch["paper"].num_nodes == 6 and batch["paper"]["sents.d2"].tolist() == [2, 1, 0, 3, 1] * 2
    assert batch["author", "writes", "paper"].edge_index[0].tolist() == [0, 1, 1, 2, 3, 3]
    assert batch["paper"].sizes.tolist() == [3, 3]


def test_what_hetero_data_lacks_is_named():
    pytest.importorskip("torch_geometric")
    data = to_hetero_data(CODEC.decode((GOLDEN / "encoding/00_full.example").read_bytes()), SCHEMA)
    del data["paper"]["words.d1"]
    with pytest.raises(TFGNNError, match=r"node type 'paper' has no 'words.d1'"):
        from_hetero_data(data, SCHEMA)
    del data["paper"]
    with pytest.raises(TFGNNError, match="no node type 'paper'"):
        from_hetero_data(data, SCHEMA)


@pytest.mark.parametrize("name", ["num_nodes", "keys", "sizes", "x_dict"])
def test_a_name_that_pyg_takes_is_refused(name):
    pytest.importorskip("torch_geometric")
    schema = GraphSchema(node_sets={"n": NodeSet(features={name: new_feature("DT_INT64")})})
    graph = GraphTensor(node_sets={"n": Nodes(sizes_C=np.array([1]), features={name: np.array([5])})})
    with pytest.raises(TFGNNError, match=f"uses the name '{name}' itself"):
        to_hetero_data(graph, schema)


def test_without_pyg_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(TFGNNError, match="pip install torch-geometric"):
        to_hetero_data(GraphTensor(), GraphSchema())
