"""Encodes samples as records: sampled nodes and edges with their features, in a fixed order."""

from collections.abc import Iterator, Mapping

import numpy as np

from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.tensor import (
    Edges,
    GraphTensor,
    Nodes,
    Ragged,
    Value,
    Values,
    no_rows,
)
from streamd.tfgnn.sampling.adjacency import Graph
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.sampling.sampler import NONE, Found, Pairs
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema, NodeSet
from streamd.tfgnn.schema.schema import Features, has_table, new_feature

ID = "#id"
TEXT, TIME = new_feature("DT_STRING"), new_feature("DT_INT64")


def sampled_schema(schema: GraphSchema, seed_set: str, timed_seeds: bool) -> GraphSchema:
    """The schema of samples: without file names of tables, with the sample's ids as its context.

    A node set without a table or without features has the feature `#id`, to identify its nodes.
    Context features of the graph belong to the whole graph, so samples do not have them.
    """
    context = {"sample_id": TEXT, "seed_id": TEXT}
    if timed_seeds:
        context["seed_time"] = TIME
    return schema_of_samples(schema, context, (seed_set,))


def schema_of_samples(
    schema: GraphSchema, context: Features, roots: tuple[str, ...]
) -> GraphSchema:
    """As `sampled_schema`, with given features of the context and given node sets of seeds
    (`roots`)."""
    out = GraphSchema(info={"graph_type": "SUBGRAPH", "root_set": roots})
    out.context.SetInParent()
    for name, feature in context.items():
        out.context.features[name].CopyFrom(feature)
    for sets, of_samples in (
        (schema.node_sets, out.node_sets),
        (schema.edge_sets, out.edge_sets),
    ):
        for name, one in sets.items():
            of_samples[name].CopyFrom(one)
            # File names and references to the context belong to the tables.
            of_samples[name].ClearField("metadata")
            of_samples[name].ClearField("context")
    for name, one in schema.node_sets.items():
        if (is_latent(one) or not one.features) and ID not in one.features:
            out.node_sets[name].features[ID].CopyFrom(TEXT)
    return out


def is_latent(one: NodeSet) -> bool:
    """Whether a node set has no table: its nodes are the endpoints of edges and the seeds."""
    return not has_table(one)


class Assembler:
    """Encodes samples as records. Immutable, so threads may share it.

    Order of a record: nodes with the seed first, then by id; edges by the indices of source and
    target, parallel edges in `edge_order`.
    """

    def __init__(self, graph: Graph, schema: GraphSchema, seed_set: str, timed: bool) -> None:
        self._graph = graph
        self._seed_set = seed_set
        self._timed = timed
        self.schema = sampled_schema(schema, seed_set, timed)
        self._codec = Codec(self.schema)

    def records(self, found: Found) -> Iterator[bytes]:
        """Yield the record of each sample, in order."""
        seeds, names = found.seeds, found.seeds.sample_ids
        # A seed without a row may be missing in the graph; -1 equals no node.
        number = self._graph.node_sets[self._seed_set].number
        seed_S = np.array([number.get(id, -1) for id in seeds.seed_ids], np.int64)
        first = {self._seed_set: seed_S}
        body = Body(self._graph, self.schema, found.nodes, found.edges, seeds.until_S, first)

        context: dict[str, Array] = {"sample_id": texts(names), "seed_id": texts(seeds.seed_ids)}
        if self._timed:
            context["seed_time"] = seeds.until_S
        for s, name in enumerate(names):
            graph = GraphTensor(
                context={name: value[s : s + 1] for name, value in context.items()},
                node_sets=body.nodes(s),
                edge_sets=body.edges(s),
            )
            yield self._codec.encode(graph, f"sample {name.decode(errors='replace')!r}")


class Body:
    """The nodes and edges of S samples with their features, in the order of a record. Immutable.

    indices: by node set, the index of each node in its sample.
    """

    def __init__(
        self,
        graph: Graph,
        schema: GraphSchema,
        nodes: Pairs,
        edges: Pairs,
        until_S: Array,
        first: Mapping[str, Array],
    ) -> None:
        """schema: of the samples. first: by node set, the node that comes first in each sample."""
        self._graph = graph
        self.indices: dict[str, NodeIndices] = {}
        self._nodes = {}
        samples = np.arange(len(until_S) + 1)
        for name, node_set in sorted(schema.node_sets.items()):
            sample_N, node_N = nodes.get(name, (NONE, NONE))
            if name in first:
                # The seed comes first, then the other nodes by number.
                order = np.lexsort((node_N, node_N != first[name][sample_N], sample_N))
                sample_N, node_N = sample_N[order], node_N[order]
            bounds = np.searchsorted(sample_N, samples)
            self.indices[name] = NodeIndices(sample_N, node_N, bounds)
            features = self._node_features(name, node_set, node_N, until_S[sample_N])
            self._nodes[name] = bounds, _split(features, bounds)
        self._edges = {}
        for name, edge_set in sorted(schema.edge_sets.items()):
            self._edges[name] = self._of_set(name, edge_set, edges, samples)

    def nodes(self, sample: int) -> dict[str, Nodes]:
        """The nodes of a sample."""
        return {
            name: Nodes(sizes_C=np.diff(bounds[sample : sample + 2]), features=parts[sample])
            for name, (bounds, parts) in self._nodes.items()
        }

    def edges(self, sample: int) -> dict[str, Edges]:
        """The edges of a sample."""
        return {
            name: Edges(
                sizes_C=np.diff(bounds[sample : sample + 2]),
                source_E=source[bounds[sample] : bounds[sample + 1]],
                target_E=target[bounds[sample] : bounds[sample + 1]],
                features=parts[sample],
            )
            for name, (bounds, source, target, parts) in self._edges.items()
        }

    def _node_features(self, name: str, node_set: NodeSet, node_N: Array, until_N: Array) -> Values:
        """The features of some nodes, each before a time of its own."""
        if not len(node_N):
            return no_rows(node_set.features)
        table = self._graph.node_sets[name]
        features = {}
        if ID in node_set.features:
            features[ID] = texts([table.ids[n] for n in node_N.tolist()])
        return features | dict(self._graph.node_features(name, node_N, until_N))

    def _of_set(
        self, name: str, edge_set: EdgeSet, edges: Pairs, samples: Array
    ) -> tuple[Array, Array, Array, list[Values]]:
        """The start of each sample's edges, the indices of their sources and targets, and their
        features."""
        if name not in edges:
            bounds = np.zeros(len(samples), np.int64)
            return bounds, NONE, NONE, _split(no_rows(edge_set.features), bounds)
        table = self._graph.edge_sets[name]
        sample_E, edge_E = edges[name]
        source = self.indices[edge_set.source].of(sample_E, table.source_E[edge_E])
        target = self.indices[edge_set.target].of(sample_E, table.target_E[edge_E])
        # Parallel edges stay in `edge_order`, which their numbers follow.
        order = np.lexsort((edge_E, target, source, sample_E))
        bounds = np.searchsorted(sample_E[order], samples)
        features = self._graph.edge_features(name, edge_E[order])
        return bounds, source[order], target[order], _split(features, bounds)


class NodeIndices:
    """The indices of nodes in their samples."""

    def __init__(self, sample_N: Array, node_N: Array, bounds: Array) -> None:
        self._count = int(node_N.max(initial=0)) + 1
        # One sorted array for all samples, to look up many pairs at once.
        joined = sample_N * self._count + node_N
        self._order = np.argsort(joined)
        self._joined = joined[self._order]
        self._bounds = bounds

    def of(self, sample_E: Array, node_E: Array) -> Array:
        """The index of a node in each sample, which must have it; int64."""
        at = self._order[np.searchsorted(self._joined, sample_E * self._count + node_E)]
        indices: Array = at - self._bounds[sample_E]
        return indices


def texts(values: list[bytes]) -> Array:
    """Strings as an array of bytes."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _split(features: Values, bounds: Array) -> list[Values]:
    """The features of each sample. bounds: the start of its rows, and last the end."""
    spans = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    parts: list[dict[str, Value]] = [{} for _ in spans]
    for name, value in features.items():
        if not isinstance(value, Ragged):
            for part, (a, b) in zip(parts, spans, strict=True):
                part[name] = value[a:b]
            continue
        # Cut the flat values of a ragged feature at the sums of its row lengths.
        lengths = value.row_lengths[0]
        starts = np.concatenate([[0], np.cumsum(lengths)])[bounds].tolist()
        for i, (part, (a, b)) in enumerate(zip(parts, spans, strict=True)):
            values = value.values[starts[i] : starts[i + 1]]
            part[name] = Ragged(value.shape, values, (lengths[a:b],))
    return list(parts)
