"""Runs a sampling spec on a graph: finds the nodes and edges of each sample.

The rules: an operation starts once at each distinct node of its inputs. A sample has the edges that
any of its operations took, each edge once; parallel edges count separately. Edges at or after the
sample's time do not exist for it. Nodes without a row in their set's table are removed at the end,
with their edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import structlog

from streamd.errors import TFGNNError
from streamd.tfgnn.sampling.adjacency import Adjacency, Graph
from streamd.tfgnn.sampling.draws import (
    LATEST_K,
    RANDOM_WEIGHTED,
    TOP_K,
    Array,
    count_edges,
    draw_edges,
    draw_keys,
)
from streamd.tfgnn.sampling.seeds import Seeds
from streamd.tfgnn.sampling.spec import seed_of
from streamd.tfgnn.schema.messages import GraphSchema, SamplingOp, SamplingSpec

logger: structlog.stdlib.BoundLogger = structlog.get_logger()
NONE = np.empty(0, np.int64)
AGGREGATIONS = ("edge", "node")
"""The edges of a sample: those that operations took ("edge"), or all edges between its nodes
("node")."""


Pairs = Mapping[str, tuple[Array, Array]]
"""By set: indices of samples, and numbers of nodes or edges, as pairs."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Starts:
    """The start nodes of S samples.

    nodes: each node of a sample once. until_S: int64, the sample's time; only edges before it
    exist. hash_S: uint64, hash of the sample's handle.
    """

    nodes: Pairs
    until_S: Array
    hash_S: Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """The distinct nodes and edges of the samples of some seeds."""

    seeds: Seeds
    nodes: Pairs
    edges: Pairs


def seed_set(spec: SamplingSpec) -> str:
    """The node set of the seeds. Raises: TFGNNError for link seeds."""
    seed = seed_of(spec)
    if not spec.HasField("seed_op"):
        raise TFGNNError(
            f"The seed {seed.op_name!r} is a symmetric_link_seed_op: this command samples nodes "
            "only.",
            "write a seed_op, or sample links of a log by `streamd tfgnn export --samples`.",
        )
    name: str = seed.node_set_name
    return name


@dataclass(frozen=True, slots=True)
class Has:
    """Whether the edges of a set have the optional columns."""

    weight: bool
    time: bool


def check_columns(spec: SamplingSpec, sets: Mapping[str, Has], timed_seeds: bool) -> None:
    """Refuse operations without the columns that their strategy needs, and edges without times if
    the seeds have times; warn once of TOP_K without weights. sets: by name of the edge sets to
    read. Raises: TFGNNError."""
    unweighted = []
    for op in spec.sampling_ops:
        has, edges = sets[op.edge_set_name], f"edge set {op.edge_set_name!r}"
        if op.strategy == RANDOM_WEIGHTED and not has.weight:
            raise TFGNNError(
                f"Operation {op.op_name!r} has the strategy RANDOM_WEIGHTED, and {edges} has no "
                "#weight.",
                "add the column to its table, or name a strategy without weights.",
            )
        if op.strategy == LATEST_K and not has.time:
            raise TFGNNError(
                f"Operation {op.op_name!r} has the strategy LATEST_K, and {edges} has no #time.",
                "add the column.",
            )
        if op.strategy == TOP_K and not has.weight:
            unweighted.append(op.op_name)
    for name, has in sets.items():
        if timed_seeds and not has.time:
            raise TFGNNError(
                f"The seeds have times, and edge set {name!r} has no #time.",
                "add the column to its table; edges that always existed may have an early time.",
            )
    if unweighted:
        logger.warning(
            "tfgnn_top_k_without_weights",
            operations=unweighted,
            hint="TOP_K is the strategy of an operation that names none; without a #weight all "
            "weights are equal, and the last edges in their order are taken",
        )


class Sampler:
    """Runs a spec on a graph. Immutable, except for a buffer: use one sampler per thread.

    seed: of the random draws. aggregation: one of AGGREGATIONS. Raises: TFGNNError if the graph
    lacks a column that the spec needs.
    """

    def __init__(
        self,
        graph: Graph,
        schema: GraphSchema,
        spec: SamplingSpec,
        *,
        seed: int,
        aggregation: str = "edge",
        timed_seeds: bool = False,
    ) -> None:
        self._graph = graph
        self._schema = schema
        self._spec = spec
        self._seed = seed
        self._aggregation = aggregation
        sets = {
            name: Has(edges.weight_E is not None, edges.time_E is not None)
            for name, edges in graph.edge_sets.items()
        }
        check_columns(spec, sets, timed_seeds)
        for op in spec.sampling_ops:
            # Sort and sum now, so that processes forked later share the result.
            if op.strategy in (TOP_K, RANDOM_WEIGHTED) and sets[op.edge_set_name].weight:
                edges = graph.edge_sets[op.edge_set_name]
                getattr(edges, "top_E" if op.strategy == TOP_K else "sum_E")
        # The buffer that draws need: a byte for each edge of the node with the most edges.
        most = max((edges.most for edges in graph.edge_sets.values()), default=0)
        self._taken = np.zeros(most, np.uint8)

    def sample(self, seeds: Seeds) -> Found:
        """The nodes and edges of the samples of some seeds."""
        start = seed_set(self._spec)
        number = self._graph.node_sets[start].number
        node_S = np.array([number[id] for id in seeds.seed_ids], np.int64)
        begin = {start: (np.arange(len(node_S)), node_S)}
        starts = Starts(nodes=begin, until_S=seeds.until_S, hash_S=seeds.hash_S)
        nodes, edges = self.walk(starts)
        return Found(seeds=seeds, nodes=nodes, edges=edges)

    def walk(self, starts: Starts) -> tuple[Pairs, Pairs]:
        """The distinct nodes and edges of some samples."""
        hash_S, until_S = starts.hash_S, starts.until_S
        # The nodes in which each operation ended, by their set: inputs of later operations.
        ends = {seed_of(self._spec).op_name: dict(starts.nodes)}
        visited: dict[str, list[tuple[Array, Array]]] = {
            name: [pairs] for name, pairs in starts.nodes.items()
        }
        walked: dict[str, list[tuple[Array, Array]]] = {}
        for op in self._spec.sampling_ops:
            one = self._schema.edge_sets[op.edge_set_name]
            edges = self._graph.edge_sets[op.edge_set_name]
            # Link seeds have two node sets; the operation starts at those of its edges' source set.
            inputs = [ends[name][one.source] for name in op.input_op_names]
            sample_R, node_R = self._unique(one.source, inputs)
            # Keys are hashes of ids: numbers of nodes depend on the loaded sets.
            hash_R = self._graph.node_sets[one.source].hash_N[node_R]
            key_R = draw_keys(self._seed, op.op_name, hash_S[sample_R], hash_R)
            edge, num_R = walk(op, edges, node_R, until_S[sample_R], key_R, self._taken)
            sample = np.repeat(sample_R, num_R)
            walked.setdefault(op.edge_set_name, []).append((sample, edge))
            pairs = sample, edges.target_E[edge]
            ends[op.op_name] = {one.target: pairs}
            visited.setdefault(one.target, []).append(pairs)

        # Remove nodes without a row only now: operations continue through them.
        nodes = {name: self._unique(name, found) for name, found in visited.items()}
        nodes = {name: self._with_rows(name, *found) for name, found in nodes.items()}
        between = self._between if self._aggregation == "node" else self._of_walk
        return nodes, between(nodes, walked, until_S)

    def _unique(self, node_set: str, found: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        """The distinct pairs of a sample and a node, ascending."""
        return _split(
            np.unique(np.concatenate([self._join_pairs(node_set, *pair) for pair in found])),
            len(self._graph.node_sets[node_set].ids),
        )

    def _join_pairs(self, node_set: str, sample: Array, node: Array) -> Array:
        """Pairs of a sample and a node as one integer each, with the same order."""
        joined: Array = sample * len(self._graph.node_sets[node_set].ids) + node
        return joined

    def _with_rows(self, node_set: str, sample_N: Array, node_N: Array) -> tuple[Array, Array]:
        """The nodes with a row in their set's table."""
        if node_set in self._graph.latent:
            return sample_N, node_N
        has_row = self._graph.node_sets[node_set].row_N[node_N] >= 0
        return sample_N[has_row], node_N[has_row]

    def _of_walk(
        self,
        nodes: Pairs,
        walked: Mapping[str, list[tuple[Array, Array]]],
        until_S: Array,
    ) -> dict[str, tuple[Array, Array]]:
        """The edges that operations took, without those of removed nodes."""
        found = {}
        for name, pairs in walked.items():
            edges = self._graph.edge_sets[name]
            count = len(edges.target_E)
            # Each edge once, although several operations may have taken it.
            joined = np.unique(np.concatenate([s * count + e for s, e in pairs]))
            sample_E, edge_E = _split(joined, count)
            one = self._schema.edge_sets[name]
            keep = self._is_in(nodes, one.source, sample_E, edges.source_E[edge_E])
            keep &= self._is_in(nodes, one.target, sample_E, edges.target_E[edge_E])
            found[name] = sample_E[keep], edge_E[keep]
        return found

    def _between(
        self,
        nodes: Pairs,
        walked: Mapping[str, list[tuple[Array, Array]]],
        until_S: Array,
    ) -> dict[str, tuple[Array, Array]]:
        """All edges of all sets between the nodes of a sample, before its time."""
        found = {}
        for name, edges in self._graph.edge_sets.items():
            one = self._schema.edge_sets[name]
            sample_R, node_R = nodes.get(one.source, (NONE, NONE))
            num_R = before(edges, node_R, until_S[sample_R])
            sample_E = np.repeat(sample_R, num_R)
            # A node's edges are in time order, so those before the sample's time are the first
            # `num_R`.
            first = np.repeat(edges.start_N[node_R], num_R)
            edge_E = first + np.arange(len(first)) - np.repeat(np.cumsum(num_R) - num_R, num_R)
            keep = self._is_in(nodes, one.target, sample_E, edges.target_E[edge_E])
            found[name] = sample_E[keep], edge_E[keep]
        return found

    def _is_in(
        self,
        nodes: Pairs,
        node_set: str,
        sample: Array,
        node: Array,
    ) -> Array:
        """Whether each sample has a given node."""
        if node_set not in nodes or not len(nodes[node_set][0]):
            return np.zeros(len(sample), bool)
        # The pairs of `nodes` are ascending, so a binary search finds each.
        have = self._join_pairs(node_set, *nodes[node_set])
        want = self._join_pairs(node_set, sample, node)
        location = np.minimum(np.searchsorted(have, want), len(have) - 1)
        found: Array = have[location] == want
        return found


def _split(joined: Array, count: int) -> tuple[Array, Array]:
    """Split the integers of `_join_pairs` into pairs. count: number of values of the second
    part."""
    return joined // max(count, 1), joined % max(count, 1)


def before(edges: Adjacency, node_R: Array, until_R: Array) -> Array:
    """The number of edges of each node before a time, int64[R]."""
    num_R = np.empty(len(node_R), np.int64)
    count_edges(
        edges.start_N, NONE if edges.time_E is None else edges.time_E, node_R, until_R, num_R
    )
    return num_R


NO_FLOATS, NO_SUMS = np.empty(0, np.float32), np.empty(0)


def walk(
    op: SamplingOp,
    edges: Adjacency,
    node_R: Array,
    until_R: Array,
    key_R: Array,
    taken: Array,
) -> tuple[Array, Array]:
    """The edges that an operation takes at R nodes, one node after the other, and their number at
    each. key_R: of `draw_keys`. taken: as in `draw_edges`."""
    strategy: int = op.strategy
    count_R = before(edges, node_R, until_R)
    # Arrays that the strategy does not use are empty.
    weights, sums, top = NO_FLOATS, NO_SUMS, NONE
    if strategy == TOP_K and edges.weight_E is None:
        # With equal weights, TOP_K takes the last edges in order.
        strategy = LATEST_K
    elif strategy == LATEST_K:
        assert edges.time_E is not None
    if strategy == RANDOM_WEIGHTED:
        assert edges.weight_E is not None
        weights, sums = edges.weight_E, edges.sum_E
    elif strategy == TOP_K:
        top = edges.top_E
    out = np.empty(int(np.minimum(count_R, op.sample_size).sum()), np.int64)
    num_R = np.empty(len(node_R), np.int64)
    of_edges = (edges.start_N, weights, sums, top)
    of_draws = (node_R, count_R, key_R, taken)
    num = draw_edges(strategy, op.sample_size, *of_edges, *of_draws, out, num_R)
    return out[:num], num_R
