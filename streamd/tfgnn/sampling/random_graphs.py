"""Generates random graphs of a schema, to try a model before there is data."""

from collections.abc import Iterator, Mapping

import numpy as np

from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, Ragged, Value
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.schema.messages import Feature, GraphSchema
from streamd.tfgnn.schema.schema import (
    DataType,
    Features,
    check_schema,
    dtype_of,
    ragged_dims,
    shape_of,
)

NODES, EDGES, ROWS = (2, 8), (2, 16), (0, 4)
"""Minimum and maximum number of nodes of a set and of edges of a set, and length of a ragged
row."""
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", "S1")
MAX_NUMBER = 100
"""Integers are below it, so that every dtype can hold them."""


def random_graphs(
    schema: GraphSchema,
    count: int,
    *,
    seed: int = 0,
    components: int = 1,
    values: Mapping[str, list[object]] | None = None,
) -> Iterator[GraphTensor]:
    """Yield random graphs of a schema.

    values: feature, such as `context/label`, `nodes/paper.year` or `edges/cites.how` -> the values
    to draw from. Equal seeds give equal graphs. Raises: TFGNNError if the schema is inconsistent.
    """
    check_schema(schema)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield _graph(schema, rng, components, values or {})


def _graph(
    schema: GraphSchema,
    rng: np.random.Generator,
    components: int,
    values: Mapping[str, list[object]],
) -> GraphTensor:
    """One graph."""

    def features(of: Features, start: str, num: int) -> dict[str, Value]:
        return {
            name: _value(rng, feature, num, values.get(f"{start}{name}"))
            for name, feature in sorted(of.items())
        }

    # Sorted: maps of a message have no order, and draws depend on it.
    nodes = {}
    for name, one in sorted(schema.node_sets.items()):
        sizes_C = rng.integers(NODES[0], NODES[1] + 1, components)
        of_set = features(one.features, f"nodes/{name}.", int(sizes_C.sum()))
        nodes[name] = Nodes(sizes_C=sizes_C, features=of_set)
    edges = {}
    for name, edge_set in sorted(schema.edge_sets.items()):
        sizes_C = rng.integers(EDGES[0], EDGES[1] + 1, components)
        edges[name] = Edges(
            sizes_C=sizes_C,
            # Both endpoints of an edge are in its component.
            source_E=_ends(rng, sizes_C, nodes[edge_set.source].sizes_C),
            target_E=_ends(rng, sizes_C, nodes[edge_set.target].sizes_C),
            features=features(edge_set.features, f"edges/{name}.", int(sizes_C.sum())),
        )
    return GraphTensor(
        context=features(schema.context.features, "context/", components),
        node_sets=nodes,
        edge_sets=edges,
    )


def _ends(rng: np.random.Generator, sizes_C: Array, nodes_C: Array) -> Array:
    """A random node of its component for each edge, int64."""
    first = np.repeat(np.cumsum(nodes_C) - nodes_C, sizes_C)
    ends: Array = first + rng.integers(0, np.repeat(nodes_C, sizes_C))
    return ends


def _value(
    rng: np.random.Generator, feature: Feature, num: int, choices: list[object] | None
) -> Value:
    """Values of a feature for some items."""
    of_item, dtype = shape_of(feature), dtype_of(feature)
    last = max(ragged_dims(of_item), default=0)
    rows, lengths = num, []
    for size in of_item[:last]:
        if size is None:
            lengths.append(rng.integers(ROWS[0], ROWS[1] + 1, rows))
            rows = int(lengths[-1].sum())
        else:
            rows *= size
    shape = (rows, *[size or 0 for size in of_item[last:]])
    flat = _flat(rng, dtype, int(np.prod(shape)), choices).reshape(shape)
    return Ragged(of_item, flat, tuple(lengths)) if last else flat


def _flat(
    rng: np.random.Generator, dtype: DataType, num: int, choices: list[object] | None
) -> Array:
    """Values of a dtype."""
    if choices is not None:
        found = np.empty(num, dtype.numpy)
        found[:] = [choices[i] for i in rng.integers(0, len(choices), num).tolist()]
        return found
    if dtype.wire == "bytes":
        found = np.empty(num, object)
        letters = LETTERS[rng.integers(0, len(LETTERS), (num, 8))]
        found[:] = [b"".join(row) for row in letters.tolist()]
        return found
    if dtype.wire == "float":
        # Rounded to float32, as in a record.
        return rng.normal(size=num).astype(np.float32).astype(dtype.numpy)
    return rng.integers(0, MAX_NUMBER, num).astype(dtype.numpy)
