"""Schema evolution of a log: the allowed changes, and the mapping of old rows' columns to new
rows'.

Allowed are further sets, after the log's, and further features at the end of a set. Old rows have
zeros in the new columns.
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
    "set it back, or use a new data_dir; a log accepts further sets after those that it has, and "
    "further features at the end of a set."
)
"""The operator's action if a declaration differs from the log's and does not extend it."""


def check_extends(old: Schema, new: Schema) -> None:
    """Check that a log of schema `old` can continue with `new`. Raises: SchemaError, which names
    the first difference that is no extension."""
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
    """The node sets of a schema; if none is declared, the default set."""
    only = NodeSet(DEFAULT_SET, schema.node_feature_dim, schema.node_features)
    return schema.node_sets or (only,)


def edges_of(schema: Schema) -> tuple[EdgeSet, ...]:
    """The edge sets of a schema; if none is declared, the default set."""
    width, names = schema.edge_feature_dim, schema.edge_features
    only = EdgeSet(DEFAULT_SET, DEFAULT_SET, DEFAULT_SET, width, names)
    return schema.edge_sets or (only,)


def _check_sets(kind: str, old: Sequence[Set], new: Sequence[Set]) -> None:
    """Check that the new sets start with all old sets, and each set's features with its old
    features."""
    names = [one.name for one in old]
    if [one.name for one in new[: len(old)]] != names:
        raise SchemaError(
            f"The log has the {kind} sets {', '.join(names)}, the settings say "
            f"{', '.join(one.name for one in new)}.",
            TAKEN,
        )
    for before, now in zip(old, new, strict=False):
        where = f"graph.{kind}_sets.{now.name}"
        # Without names, compare the width, which must not change: a larger one is more likely a
        # mistake, which could not be undone.
        if not _have_names(before):
            same = before.feature_dim == now.feature_dim
        else:
            same = _layout(before.features) == _layout(now.features[: len(before.features)])
            same = same and (before.feature_dim == now.feature_dim or _have_names(now))
        if not same:
            # Name the setting that determines the width of an undeclared set.
            if now.name == DEFAULT_SET and not now.features:
                where = f"stream.{kind}_feature_dim, the width of {where},"
            raise SchemaError(
                f"{where} has {_words(before)} in the log, {_words(now)} in the settings.", TAKEN
            )


def _have_names(one: NodeSet | EdgeSet) -> bool:
    """Whether all features have names, or there are none."""
    return sum(f.width for f in one.features) == one.feature_dim


def _layout(features: Sequence[Feature]) -> list[tuple[str, object]]:
    """Names and kinds of features, without `missing`: the value of missing ones may change."""
    kinds = [msgspec.json.decode(f.declared) for f in features]
    for kind in kinds:
        kind.pop("missing", None)
    return [(f.name, kind) for f, kind in zip(features, kinds, strict=True)]


def _words(one: NodeSet | EdgeSet) -> str:
    if not one.features:
        return f"{one.feature_dim} numbers"
    return "the features " + ", ".join(f"{f.name}: {f.declared}" for f in one.features)


def edge_columns(old: Schema, new: Schema) -> NDArray[np.int64]:
    """The new column of each column of an old row of edge features: int64[old width]."""
    return _columns(edges_of(old), edges_of(new))


def node_columns(old: Schema, new: Schema) -> NDArray[np.int64]:
    """The new column of each column of an old row of node features: int64[old width]."""
    return _columns(nodes_of(old), nodes_of(new))


def _columns(old: Sequence[Set], new: Sequence[Set]) -> NDArray[np.int64]:
    # New sets come after the old ones, so the columns of the one-hot stay the first ones.
    one_hot = list(range(len(old))) if len(old) > 1 else []
    start = len(new) if len(new) > 1 else 0
    columns = one_hot
    for before, now in zip(old, new, strict=False):
        columns += range(start, start + before.feature_dim)
        start += now.feature_dim
    return np.array(columns, np.int64)


def widened_edges(rows: NDArray[np.float32], old: Schema, new: Schema) -> NDArray[np.float32]:
    """Convert old rows of edge features [..., old width] to the new schema: [..., new width]."""
    was_one = old.num_edge_sets == 1 < new.num_edge_sets
    return _widen_rows(rows, edge_columns(old, new), new.edge_feature_dim, was_one)


def widened_nodes(rows: NDArray[np.float32], old: Schema, new: Schema) -> NDArray[np.float32]:
    """Convert old rows of node features [..., old width] to the new schema: [..., new width]."""
    was_one = old.num_node_sets == 1 < new.num_node_sets
    return _widen_rows(rows, node_columns(old, new), new.node_feature_dim, was_one)


def _widen_rows(
    rows: NDArray[np.float32], columns: NDArray[np.int64], width: int, was_one: bool
) -> NDArray[np.float32]:
    out = np.zeros((*rows.shape[:-1], width), rows.dtype)
    out[..., columns] = rows
    # The only old set, which had no one-hot column, is the first of several now.
    if was_one:
        out[..., 0] = 1.0
    return out
