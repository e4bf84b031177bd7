"""A schema that grows on a living log: which changes are taken, and where what lay in the old rows
lies in the new ones.

Taken are a further set, and further features at the end of a set. Rows from before have zeros in
the new places.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import SchemaError
from streamd.schema import DEFAULT_SET, EdgeSet, Feature, NodeSet, Schema

Set = TypeVar("Set", NodeSet, EdgeSet)
TAKEN = (
    "set it back, or use a new data_dir; a log takes further sets, behind those it has, and "
    "further features, at the end of a set."
)
"""What the operator does about a declaration that is not the log's and does not extend it."""


def check_extends(old: Schema, new: Schema) -> None:
    """Check that a log of the schema `old` can go on with `new`. Raises: SchemaError naming the
    first thing that differs in another way."""
    if old.label_dim != new.label_dim:
        raise SchemaError(
            f"The log has stream.label_dim {old.label_dim}, the settings say {new.label_dim}.",
            TAKEN,
        )
    _check_sets("node", nodes_of(old), nodes_of(new))
    _check_sets("edge", edges_of(old), edges_of(new))
    for before, now in zip(edges_of(old), edges_of(new), strict=False):
        if (before.source, before.target) != (now.source, now.target):
            raise SchemaError(
                f"graph.edge_sets.{now.name} joins {before.source} and {before.target} in the "
                f"log, {now.source} and {now.target} in the settings.",
                TAKEN,
            )


def extends(old: Schema, new: Schema) -> bool:
    """Whether `check_extends` passes."""
    try:
        check_extends(old, new)
    except SchemaError:
        return False
    return True


def nodes_of(schema: Schema) -> tuple[NodeSet, ...]:
    """The node sets of a schema, which has one where none is declared."""
    only = NodeSet(DEFAULT_SET, schema.node_feature_dim, schema.node_features)
    return schema.node_sets or (only,)


def edges_of(schema: Schema) -> tuple[EdgeSet, ...]:
    """The edge sets of a schema, which has one where none is declared."""
    width, names = schema.edge_feature_dim, schema.edge_features
    only = EdgeSet(DEFAULT_SET, DEFAULT_SET, DEFAULT_SET, width, names)
    return schema.edge_sets or (only,)


def _check_sets(kind: str, old: Sequence[Set], new: Sequence[Set]) -> None:
    """Check that all old sets stand in front and that their features do."""
    names = [one.name for one in old]
    if [one.name for one in new[: len(old)]] != names:
        raise SchemaError(
            f"The log has the {kind} sets {', '.join(names)}, the settings say "
            f"{', '.join(one.name for one in new)}.",
            TAKEN,
        )
    for before, now in zip(old, new, strict=False):
        where = f"graph.{kind}_sets.{now.name}"
        # Without names the width alone can be compared, and it does not grow: that is more likely
        # to be a mistake, which could not be taken back.
        if not _are_named(before):
            same = before.feature_dim == now.feature_dim
        else:
            same = _layout(before.features) == _layout(now.features[: len(before.features)])
            same = same and (before.feature_dim == now.feature_dim or _are_named(now))
        if not same:
            if now.name == DEFAULT_SET and not now.features:
                where = f"stream.{kind}_feature_dim, the width of {where},"
            raise SchemaError(
                f"{where} has {_words(before)} in the log, {_words(now)} in the settings.", TAKEN
            )


def _are_named(one: NodeSet | EdgeSet) -> bool:
    """Whether all features are known by name, or there are none."""
    return sum(f.width for f in one.features) == one.feature_dim


def _layout(features: Sequence[Feature]) -> list[tuple[str, object]]:
    """Names and kinds of features. What a missing value counts as may change."""
    kinds = [msgspec.json.decode(f.declared) for f in features]
    for kind in kinds:
        kind.pop("missing", None)
    return [(f.name, kind) for f, kind in zip(features, kinds, strict=True)]


def _words(one: NodeSet | EdgeSet) -> str:
    if not one.features:
        return f"{one.feature_dim} numbers"
    return "the features " + ", ".join(f"{f.name}: {f.declared}" for f in one.features)


def edge_places(old: Schema, new: Schema) -> NDArray[np.int64]:
    """Where each column of an old row of edge features lies in a new one: int64[old width]."""
    return _places(edges_of(old), edges_of(new))


def node_places(old: Schema, new: Schema) -> NDArray[np.int64]:
    """The same of rows of node features."""
    return _places(nodes_of(old), nodes_of(new))


def _places(old: Sequence[Set], new: Sequence[Set]) -> NDArray[np.int64]:
    one_hot = list(range(len(old))) if len(old) > 1 else []
    start = len(new) if len(new) > 1 else 0
    places = one_hot
    for before, now in zip(old, new, strict=False):
        places += range(start, start + before.feature_dim)
        start += now.feature_dim
    return np.array(places, np.int64)


def widened_edges(rows: NDArray[np.float32], old: Schema, new: Schema) -> NDArray[np.float32]:
    """Old rows of edge features [..., width] as the new schema has them."""
    was_one = old.num_edge_sets == 1 < new.num_edge_sets
    return _widened(rows, edge_places(old, new), new.edge_feature_dim, was_one)


def widened_nodes(rows: NDArray[np.float32], old: Schema, new: Schema) -> NDArray[np.float32]:
    """The same of rows of node features."""
    was_one = old.num_node_sets == 1 < new.num_node_sets
    return _widened(rows, node_places(old, new), new.node_feature_dim, was_one)


def _widened(
    rows: NDArray[np.float32], places: NDArray[np.int64], width: int, was_one: bool
) -> NDArray[np.float32]:
    out = np.zeros((*rows.shape[:-1], width), rows.dtype)
    out[..., places] = rows
    # The only set there was is the first: it needed no place that says so.
    if was_one:
        out[..., 0] = 1.0
    return out
