"""Filters of the nodes in an answer."""

from dataclasses import dataclass

import numpy as np

from streamd.events import Bools, Float32, Int64, Key


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureCondition:
    """A condition on one feature of a node.

    first, end: columns of the feature in a row of node features. values: the allowed numbers, for a
    category its index among the columns; None for a range. low, high: bounds of a range, both
    inclusive.
    """

    first: int
    end: int
    values: tuple[float, ...] | None = None
    low: float = -np.inf
    high: float = np.inf

    def holds(self, feature_N: Float32) -> Bools:
        """Whether the condition holds for each value of the feature: bool[N], False for NaN."""
        if self.values is None:
            return np.asarray((feature_N >= self.low) & (feature_N <= self.high))
        values = np.unique(np.array(self.values, np.float32))
        if not len(values):
            return np.zeros(len(feature_N), np.bool_)
        at = np.searchsorted(values, feature_N).clip(max=len(values) - 1)
        return np.asarray(values[at] == feature_N)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFilter:
    """The nodes that an answer may have: those that all parts of the filter allow.

    kind: the text before the first colon of their keys, None for any. only: their keys, None for
    any. exclude: keys of nodes to leave out. where: conditions on features, all of which must hold.
    """

    kind: str | None = None
    only: tuple[Key, ...] | None = None
    exclude: tuple[Key, ...] = ()
    where: tuple[FeatureCondition, ...] = ()


ALL_NODES = NodeFilter()


@dataclass(frozen=True, slots=True)
class ValueLimit:
    """At most `most` nodes of an answer have the same value of a feature.

    first, end: columns of the feature in a row of node features.
    """

    first: int
    end: int
    most: int

    def keeps(self, feature_N: Float32) -> Bools:
        """Which nodes of a list to keep: bool[N]. feature_N: their values, the best node first; NaN
        is one value too."""
        _, value_N = np.unique(feature_N, return_inverse=True)

        # The rank of each node among those with its value.
        order = np.argsort(value_N, kind="stable")
        ordered = value_N[order]
        first_N = np.searchsorted(ordered, ordered)
        rank_N = np.empty(len(feature_N), np.int64)
        rank_N[order] = np.arange(len(feature_N)) - first_N
        return np.asarray(rank_N < self.most)


def is_in(nodes: Int64, pool: Int64) -> Bools:
    """Whether each node is in a pool: bool of the same shape. pool: int64[P], ascending."""
    if not len(pool):
        return np.zeros(nodes.shape, np.bool_)
    at = np.searchsorted(pool, nodes).clip(max=len(pool) - 1)
    return np.asarray(pool[at] == nodes)
