"""Converts GraphTensors to and from torch tensors and `torch_geometric.data.HeteroData`."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, Ragged, Value, Values
from streamd.tfgnn.schema.messages import GraphSchema
from streamd.tfgnn.schema.schema import Features, Shape, ragged_dims, shape_of

SIZES = "sizes"
"""Attribute of a node or edge store with its set's sizes."""


def to_torch(graph: GraphTensor) -> GraphTensor:
    """The same graph with torch tensors. Strings stay numpy arrays of bytes, since torch has no
    strings."""
    return graph.map(_to_tensor)


def from_torch(graph: GraphTensor) -> GraphTensor:
    """The same graph with numpy arrays, for `Codec.encode`."""
    return graph.map(_to_array)


def to_hetero_data(graph: GraphTensor, schema: GraphSchema) -> Any:
    """Convert a graph to HeteroData.

    A node set is data[name], with num_nodes and `sizes`; an edge set is data[source, name, target],
    with edge_index int64[2, E] and `sizes`. A feature keeps its name; a ragged one has its flat
    values under its name and the row lengths under name.d1, as in a record, so that PyG's batches
    concatenate them. Strings are lists of bytes. Context features are attributes context_<name>.

    Raises:
        TFGNNError: torch_geometric is not installed, or PyG reserves a feature's name.
    """
    data = _hetero_data()()
    for name, value in _attributes(graph.context):
        _put(data, f"context_{name}", value)
    for name, nodes in graph.node_sets.items():
        store = data[name]
        store.num_nodes = nodes.num
        _put(store, SIZES, _to_tensor(nodes.sizes_C))
        for key, value in _attributes(nodes.features):
            _put(store, key, value)
    for name, edges in graph.edge_sets.items():
        ends = schema.edge_sets[name]
        store = data[ends.source, name, ends.target]
        store.edge_index = torch.stack([_to_tensor(edges.source_E), _to_tensor(edges.target_E)])
        _put(store, SIZES, _to_tensor(edges.sizes_C))
        for key, value in _attributes(edges.features):
            _put(store, key, value)
    return data


def from_hetero_data(data: Any, schema: GraphSchema) -> GraphTensor:
    """Convert HeteroData of `to_hetero_data` to a graph of numpy arrays.

    `sizes` may be missing: then there is one component. Raises: TFGNNError, with set and feature,
    if one of the schema is missing.
    """
    node_sets = {}
    for name, node_set in sorted(schema.node_sets.items()):
        if name not in data.node_types:
            raise TFGNNError(f"the data has no node type {name!r}.", "add it, also if it is empty.")
        store = data[name]
        node_sets[name] = Nodes(
            sizes_C=_sizes(store, int(store.num_nodes)),
            features=_features(store, node_set.features, "", f"node type {name!r}"),
        )
    edge_sets = {}
    for name, edge_set in sorted(schema.edge_sets.items()):
        kind = (edge_set.source, name, edge_set.target)
        if kind not in data.edge_types:
            raise TFGNNError(f"the data has no edge type {kind}.", "add it, also if it is empty.")
        store = data[kind]
        source_E, target_E = _to_array(store.edge_index)
        edge_sets[name] = Edges(
            sizes_C=_sizes(store, len(source_E)),
            source_E=source_E,
            target_E=target_E,
            features=_features(store, edge_set.features, "", f"edge type {kind}"),
        )
    return GraphTensor(
        context=_features(data, schema.context.features, "context_", "the data"),
        node_sets=node_sets,
        edge_sets=edge_sets,
    )


def _hetero_data() -> Any:
    """The class HeteroData. Raises: TFGNNError."""
    try:
        from torch_geometric.data import HeteroData
    except ImportError:
        raise TFGNNError("HeteroData needs PyG.", "pip install torch-geometric.") from None
    return HeteroData


def _put(store: Any, name: str, value: Any) -> None:
    """Set an attribute of a store. Raises: TFGNNError if PyG reserves the name."""
    # HeteroData's names that end in _dict collect an attribute of all stores.
    if name in store or hasattr(store, name) or name.endswith("_dict"):
        raise TFGNNError(f"PyG uses the name {name!r} itself.", "rename the feature.")
    setattr(store, name, value)


def _attributes(values: Values) -> list[tuple[str, Any]]:
    """The attributes of a set's features."""
    found = []
    for name, value in values.items():
        found.append((name, _attribute(value.values if isinstance(value, Ragged) else value)))
        if isinstance(value, Ragged):
            # The names of row lengths count the dims from 1, as keys of records do.
            dims = [i for i, size in enumerate(value.shape, 1) if size is None]
            for dim, row_lengths in zip(dims, value.row_lengths, strict=True):
                found.append((f"{name}.d{dim}", _to_tensor(row_lengths)))
    return found


def _attribute(array: Any) -> Any:
    """Convert an array to a tensor, or to a list if its values are strings."""
    changed = _to_tensor(array)
    return changed if isinstance(changed, torch.Tensor) else changed.tolist()


def _features(store: Any, features: Features, start: str, location: str) -> dict[str, Value]:
    """The features of a store. Raises: TFGNNError."""
    found: dict[str, Value] = {}
    for name, feature in sorted(features.items()):
        shape = shape_of(feature)
        keys = [f"{start}{name}", *(f"{start}{name}.d{dim}" for dim in ragged_dims(shape))]
        for key in keys:
            if key not in store:
                raise TFGNNError(f"{location} has no {key!r}.", "give every feature of the schema.")
        values, *row_lengths = (getattr(store, key) for key in keys)
        flat = _of_strings(values, shape) if isinstance(values, list) else _to_array(values)
        if row_lengths:
            found[name] = Ragged(shape, flat, tuple(map(_to_array, row_lengths)))
        else:
            found[name] = flat
    return found


def _of_strings(values: list[Any], shape: Shape) -> NDArray[Any]:
    """Convert a list of bytes to an array. shape: of the feature."""
    last = max(ragged_dims(shape), default=0)
    # Filled item by item: `np.array` would guess the dims from nested lists.
    array = np.empty((len(values), *(size or 0 for size in shape[last:])), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def _sizes(store: Any, total: int) -> NDArray[Any]:
    """The sizes of a store's set; one component of `total` items if it has none."""
    return _to_array(store[SIZES]) if SIZES in store else np.array([total], np.int64)


def _to_tensor(array: Any) -> Any:
    """Copy an array to a tensor; return strings unchanged."""
    if array.dtype == object:
        return array
    return torch.from_numpy(np.array(array))


def _to_array(tensor: Any) -> Any:
    """Convert a tensor to a numpy array, bfloat16 to float32."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
