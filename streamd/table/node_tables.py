"""The tables of nodes, with the features in force, and of labels."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.exchange.export import features_before
from streamd.table.arrow_columns import (
    FEATURES,
    TIME,
    NamedFeature,
    array_over,
    fixed_lists,
    named_features,
)
from streamd.table.keys import NodeKeys
from streamd.table.set_rows import BATCH_ROWS, visible

NODES = pa.schema(
    [
        ("node", pa.int64()),
        ("node_set", pa.string()),
        ("key", pa.string()),
        ("key_int", pa.int64()),
        ("is_deleted", pa.bool_()),
        ("deleted_before_event", pa.int64()),
    ]
)
"""The columns that nodes of every set have."""


class LogNodes:
    """The nodes of a log, or of one node set, by id: also deleted ones, which have no key and no
    features.

    Immutable; several threads may read it.
    """

    def __init__(self, log: LogReader, keys: NodeKeys, node_set: int | None = None) -> None:
        """node_set: number of the set; None for all."""
        self._log = log
        self._keys = keys
        self._number = node_set
        schema = log.state.schema
        self._set_names = pa.array(schema.node_set_names)
        # Features of all sets are a list of the columns of all, in a log of several.
        declared = schema.node_features
        self._columns = slice(0, schema.node_feature_dim)
        if node_set is not None:
            self._columns = schema.node_columns(node_set)
            declared = schema.node_sets[node_set].features if schema.node_sets else declared
        elif schema.num_node_sets > 1:
            declared = ()
        self._named: dict[str, NamedFeature] = {
            one.column: one for one in named_features(declared, (*NODES.names, FEATURES))
        }

        # The position of each delete among the events; -1 for a node that is not deleted.
        deletes = log.deletions.of_nodes
        self._deleted_N = np.full(log.num_nodes, -1, np.int64)
        self._deleted_N[deletes.node] = deletes.edge

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema of all columns."""
        dim = self._columns.stop - self._columns.start
        lists = [pa.field(FEATURES, pa.list_(pa.float32(), dim))] if dim else []
        return pa.schema(
            [*NODES, *lists, *(pa.field(name, one.type) for name, one in self._named.items())]
        )

    @property
    def default_columns(self) -> Sequence[str]:
        """All but the single features."""
        return [name for name in self.schema.names if name not in self._named]

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name), BATCH_ROWS nodes at a time."""
        log = self._log
        # Features in force, of all nodes, only if a column needs them.
        features = known = None
        if set(columns) & {FEATURES, *self._named}:
            features, known = features_before(log, log.num_edges)
        for first in range(0, log.num_nodes, BATCH_ROWS):
            nodes = np.arange(first, min(first + BATCH_ROWS, log.num_nodes))
            sets = log.node_sets_of(nodes)
            # Compacted rows point to a node that never was one: it is gone, but not deleted.
            kept = ~log.deletions.is_gone(nodes) | (self._deleted_N[nodes] >= 0)
            if self._number is not None:
                kept &= sets == self._number
            nodes, sets = nodes[kept], sets[kept]
            own = features[nodes, self._columns] if features is not None else None
            has = known[nodes] & (self._deleted_N[nodes] < 0) if known is not None else None
            yield len(nodes), {name: self._make(name, nodes, sets, own, has) for name in columns}

    def _make(
        self, name: str, nodes: Int64, sets: Int64, own: Float32 | None, has: Bools | None
    ) -> Any:
        """A column of some nodes. own, has: their features, and which nodes have some."""
        # The node and its key.
        if name == "node":
            return array_over(nodes, pa.int64())
        if name == "node_set":
            return self._set_names.take(pa.array(sets))
        if name == "key":
            return self._keys.texts(nodes)
        if name == "key_int":
            return self._keys.integers(nodes)
        # Its delete.
        deleted = self._deleted_N[nodes]
        if name == "is_deleted":
            return pa.array(deleted >= 0)
        if name == "deleted_before_event":
            return pa.array(deleted, mask=deleted < 0)

        # Features: null for a node without any.
        assert own is not None and has is not None
        made = fixed_lists(own) if name == FEATURES else self._named[name].decode(own)
        return made.take(pa.array(np.arange(len(has)), mask=~has))


class Labels:
    """The labels of nodes in the order of the log, without those of deleted nodes.

    Immutable; several threads may read it.
    """

    def __init__(self, log: LogReader, keys: NodeKeys) -> None:
        self._log = log
        self._keys = keys
        self._set_names = pa.array(log.state.schema.node_set_names)
        dim = log.state.schema.label_dim
        self.schema = pa.schema(
            [
                ("node", pa.int64()),
                ("time", TIME),
                *([("target", pa.list_(pa.float32(), dim))] if dim else []),
                ("node_set", pa.string()),
                ("key", pa.string()),
                ("key_int", pa.int64()),
            ]
        )
        self.default_columns = self.schema.names[: 3 if dim else 2]

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name) of the labels with times in [since_us,
        until_us). `node`, `time` and `target` are read without a copy."""
        for state, files in self._log.segments():
            if not state.num_labels:
                continue
            node, time, target = files.label_columns(state.num_labels)
            # Label times ascend within a segment.
            a, b = np.searchsorted(time, [since_us, until_us]).tolist()
            for first in range(a, b, BATCH_ROWS):
                part = slice(first, min(first + BATCH_ROWS, b))
                at, when, value = node[part], time[part], target[part]
                for rows in visible(self._log.deletions.is_gone(at)):
                    own = at[rows], when[rows], value[rows]
                    yield len(own[0]), {name: self._make(name, *own) for name in columns}

    def _make(self, name: str, node: Int64, time: Int64, target: Float32) -> Any:
        if name == "node":
            return array_over(node, pa.int64())
        if name == "time":
            return array_over(time, TIME)
        if name == "target":
            return fixed_lists(target)
        if name == "node_set":
            return self._set_names.take(pa.array(self._log.node_sets_of(node)))
        return self._keys.texts(node) if name == "key" else self._keys.integers(node)
