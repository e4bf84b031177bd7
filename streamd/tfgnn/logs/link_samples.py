"""Training samples of a log: for each event of an edge set, both of its endpoints before its time,
and negative targets.

A record has the neighborhoods of all of these nodes, and TF-GNN's readout: a node set `_readout`
with a row for each pair, the event's own pair first, and the feature `label`, 1 for that pair and 0
for the others. The edge sets `_readout/source` and `_readout/target` connect the nodes of a pair to
its row.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import TFGNNError
from streamd.events import Int64
from streamd.settings.sets import nearest_of
from streamd.tfgnn.logs.declared import Declared, graph_schema, reverse_names
from streamd.tfgnn.logs.log_graph import load_log_graph, numbers_of_nodes
from streamd.tfgnn.logs.log_rows import LogRows, node_counts
from streamd.tfgnn.logs.sampling_run import LogSource
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.shards import shard_paths
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes
from streamd.tfgnn.sampling.adjacency import Graph
from streamd.tfgnn.sampling.assembly import TEXT, TIME, Body, schema_of_samples, texts
from streamd.tfgnn.sampling.draws import Array, draw_indices, draw_keys, hash_strings
from streamd.tfgnn.sampling.run import Run, write_schema
from streamd.tfgnn.sampling.sampler import Sampler, Starts
from streamd.tfgnn.sampling.shard_writing import write_shards
from streamd.tfgnn.sampling.spec import READOUT, read_spec, seed_of
from streamd.tfgnn.sampling.tables_graph import Progress, needed_sets
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema, SamplingSpec
from streamd.tfgnn.schema.schema import new_feature

SOURCE, TARGET, LABEL = f"{READOUT}/source", f"{READOUT}/target", "label"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRun(Run):
    """A run that samples the endpoints of events. edge_set: of the events. negatives: maximum
    number for each event."""

    edge_set: str
    negatives: int


def plan_link_run(
    declared: Declared,
    sampling_spec: Path,
    output: Path,
    *,
    edge_set: str | None = None,
    negatives: int = 1,
    with_reverse: bool = False,
    aggregation: str = "edge",
    seed: int = 0,
    processes: int = 1,
) -> LinkRun:
    """Read a spec with a symmetric link seed, and check that it fits a log.

    edge_set: of the events; None for the only one. negatives: number drawn for each event. Raises:
    TFGNNError.
    """
    if edge_set is None and len(declared.edge_sets) > 1:
        known = ", ".join(declared.edge_sets)
        raise TFGNNError(f"The log has the edge sets {known}.", "name the one of the events.")
    name = next(iter(declared.edge_sets)) if edge_set is None else edge_set
    if name not in declared.edge_sets:
        near = nearest_of(name, declared.edge_sets)
        raise TFGNNError(f"The log has no edge set {name!r}{near}.", "name one of them.")
    schema = graph_schema(declared, declared.edge_sets if with_reverse else ())
    linked = with_readout(schema, schema.edge_sets[name])
    spec = read_spec(sampling_spec, linked, reverse_names(declared))
    _check(spec, schema, name)
    return LinkRun(
        schema=schema,
        spec=spec,
        output=output,
        aggregation=aggregation,
        seed=seed,
        processes=processes,
        edge_set=name,
        negatives=negatives,
    )


def _check(spec: SamplingSpec, schema: GraphSchema, edge_set: str) -> None:
    """Refuse a spec that does not start at both endpoints of events. Raises: TFGNNError."""
    one = schema.edge_sets[edge_set]
    if spec.HasField("seed_op"):
        raise TFGNNError(
            f"The seeds {spec.seed_op.op_name!r} of the sampling spec are nodes of "
            f"{spec.seed_op.node_set_name!r}, but samples of links begin at both endpoints of "
            "events.",
            "write a symmetric_link_seed_op.",
        )
    for op in spec.sampling_ops:
        begin = schema.edge_sets[op.edge_set_name].source
        if seed_of(spec).op_name in op.input_op_names and begin not in (one.source, one.target):
            raise TFGNNError(
                f"Operation {op.op_name!r} follows {op.edge_set_name!r} from the seeds. The source "
                f"of that edge set is {begin!r}; the endpoints of {edge_set!r} are {one.source!r} "
                f"and {one.target!r}.",
                "correct the sampling spec.",
            )


def with_readout(schema: GraphSchema, one: EdgeSet) -> GraphSchema:
    """A schema with the readout for pairs of an edge set's endpoints."""
    out = GraphSchema()
    out.CopyFrom(schema)
    label = new_feature("DT_FLOAT", description="1 for the event's own pair")
    out.node_sets[READOUT].features[LABEL].CopyFrom(label)
    for name, end in ((SOURCE, one.source), (TARGET, one.target)):
        out.edge_sets[name].MergeFrom(EdgeSet(source=end, target=READOUT))
    return out


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links:
    """S events of an edge set, with one sample each. event_S: event ids. source_S, target_S: node
    ids in the log. until_S: times in microseconds."""

    event_S: Int64
    source_S: Int64
    target_S: Int64
    until_S: Int64

    def __len__(self) -> int:
        return len(self.event_S)

    def take(self, samples: Array) -> "Links":
        """Some of the events. samples: int64, indices."""
        return Links(
            event_S=self.event_S[samples],
            source_S=self.source_S[samples],
            target_S=self.target_S[samples],
            until_S=self.until_S[samples],
        )

    def shards(self, count: int) -> list["Links"]:
        """Split into `count` consecutive parts."""
        return [self.take(part) for part in np.array_split(np.arange(len(self)), count)]


def links_of(rows: LogRows, edge_set: str, first: int) -> Links:
    """The events of an edge set from event id `first` on."""
    none = np.zeros(0, np.int64)
    parts = [(none, none, none, none), *rows.edge_parts(edge_set, first)]
    event, source, target, time = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Links(event_S=event, source_S=source, target_S=target, until_S=time)


class Negatives:
    """Draws negative targets of events. Immutable.

    The draw is uniform, with replacement, over the nodes of the target set that were in the log
    before the event's time, without the event's own target. A drawn node may have had an edge with
    the source.
    """

    def __init__(self, rows: LogRows, node_set: str, count: int, seed: int) -> None:
        """count: negatives of each event. seed: of the random draws."""
        self._rows = rows
        self._count = count
        self._seed = seed
        self._pool = rows.nodes_of(node_set)
        # The number of nodes before a time is then found by one search.
        self._edge_K, self._num_K = node_counts(rows.log, rows.cut.edge, *rows.history.places())

    def draw(self, links: Links, hash_S: Array, hash_of_target_S: Array) -> Int64:
        """Node ids in the log, int64[S, count], -1 if there was no other node."""
        # The number of pool nodes before the event's time, and the index of its own target among
        # them.
        before = np.searchsorted(
            self._edge_K, self._rows.first_events_at(links.until_S), side="right"
        )
        known_S = np.concatenate([[0], self._num_K])[before]
        count_S = np.searchsorted(self._pool, known_S)
        own_S = np.searchsorted(self._pool, links.target_S)
        has_own_S = links.target_S < known_S

        key_S = draw_keys(self._seed, READOUT, hash_S, hash_of_target_S)
        drawn = np.empty((len(links), self._count), np.int64)
        draw_indices(key_S, count_S - has_own_S, drawn)
        # Skip the own target: indices from its own on move up by one.
        moved = drawn + ((drawn >= own_S[:, None]) & has_own_S[:, None])
        return np.where(drawn < 0, -1, self._pool[moved] if len(self._pool) else -1)


class LinkSampler:
    """Draws the samples of events and encodes their records. Immutable, except for a buffer of the
    sampler."""

    def __init__(self, run: LinkRun, rows: LogRows, graph: Graph) -> None:
        self._graph = graph
        self._ends = run.schema.edge_sets[run.edge_set]
        self._edge_set = run.edge_set
        self._sampler = Sampler(
            graph,
            run.schema,
            run.spec,
            seed=run.seed,
            aggregation=run.aggregation,
            timed_seeds=True,
        )
        self._negatives = Negatives(rows, self._ends.target, run.negatives, run.seed)
        self._number_N = {
            name: numbers_of_nodes(graph.node_sets[name])
            for name in (self._ends.source, self._ends.target)
        }
        self._sets = schema_of_samples(run.schema, {"sample_id": TEXT, "seed_time": TIME}, ())
        self.schema = linked_schema(run)
        self._codec = Codec(self.schema)

    def records(self, links: Links) -> Iterator[bytes]:
        """Yield the record of each event, in order."""
        # The pairs of each sample: the event's own, then those with negative targets.
        names = [b"%s:%d" % (self._edge_set.encode(), event) for event in links.event_S.tolist()]
        # Draws depend on hashes of names and ids, so they are the same in every run of this seed.
        hash_S = hash_strings(names)
        source_S = self._number_N[self._ends.source][links.source_S]
        target_S = self._number_N[self._ends.target][links.target_S]
        hash_of_target_S = self._graph.node_sets[self._ends.target].hash_N[target_S]
        wrong_SK = self._negatives.draw(links, hash_S, hash_of_target_S)
        has_SP = np.concatenate([np.ones((len(links), 1), bool), wrong_SK >= 0], axis=1)
        sample_P, rank_P = np.nonzero(has_SP)
        wrong_SK = self._number_N[self._ends.target][wrong_SK]
        target_P = np.concatenate([target_S[:, None], wrong_SK], axis=1)[has_SP]
        source_P = source_S[sample_P]

        # Sample the neighborhoods before the event's time.
        samples = np.arange(len(links))
        # Both endpoints and the negative targets start together, each node once per sample.
        starts: dict[str, list[tuple[Array, Array]]] = {}
        starts.setdefault(self._ends.source, []).append((samples, source_S))
        starts.setdefault(self._ends.target, []).append((sample_P, target_P))
        begin = {
            name: _each_once(*(np.concatenate(column) for column in zip(*pairs, strict=True)))
            for name, pairs in starts.items()
        }
        until_S = links.until_S
        nodes, edges = self._sampler.walk(Starts(nodes=begin, until_S=until_S, hash_S=hash_S))
        body = Body(self._graph, self._sets, nodes, edges, until_S, {})

        # The readout connects rows of pairs to nodes by their indices in the sample.
        source_P = body.indices[self._ends.source].of(sample_P, source_P)
        target_P = body.indices[self._ends.target].of(sample_P, target_P)
        bounds = np.searchsorted(sample_P, np.arange(len(links) + 1))
        for s, name in enumerate(names):
            pairs = slice(bounds[s], bounds[s + 1])
            sizes = np.diff(bounds[s : s + 2])
            rows = np.arange(int(sizes[0]))
            label = (rank_P[pairs] == 0).astype(np.float32)
            readout = Nodes(sizes_C=sizes, features={LABEL: label})
            to_source = Edges(sizes_C=sizes, source_E=source_P[pairs], target_E=rows)
            to_target = Edges(sizes_C=sizes, source_E=target_P[pairs], target_E=rows)
            graph = GraphTensor(
                context={"sample_id": texts([name]), "seed_time": until_S[s : s + 1]},
                node_sets={**body.nodes(s), READOUT: readout},
                edge_sets={**body.edges(s), SOURCE: to_source, TARGET: to_target},
            )
            yield self._codec.encode(graph, f"sample {name.decode()!r}")


def linked_schema(run: LinkRun) -> GraphSchema:
    """The schema of training samples: that of the sampled sets, with the readout."""
    context = {"sample_id": TEXT, "seed_time": TIME}
    of_samples = schema_of_samples(run.schema, context, (READOUT,))
    return with_readout(of_samples, run.schema.edge_sets[run.edge_set])


def _each_once(sample_N: Array, node_N: Array) -> tuple[Array, Array]:
    """The distinct pairs of a sample and a node, ascending."""
    count = int(node_N.max(initial=0)) + 1
    sample, node = np.divmod(np.unique(sample_N * count + node_N), count)
    return sample, node


def sample_links(
    run: LinkRun, source: LogSource, progress: Progress = lambda what, done, total: None
) -> tuple[int, int]:
    """Write the training samples of the events in a log's range, shard by shard in time order.
    Neighborhoods include edges before the range.

    Returns: the number of samples in all shards, and the number in shards that existed before.
    Raises: TFGNNError.
    """
    one = run.schema.edge_sets[run.edge_set]
    ends = one.source, one.target
    needed = needed_sets(run.schema, run.spec, run.aggregation, ends)
    asked = json.dumps([run.request, run.edge_set, run.negatives])
    rows, marker = source.begin(run.output, run.schema, asked)
    with marker.begin() as done:
        graph = load_log_graph(rows, run.schema, needed, others={}, progress=progress)
        sampler = LinkSampler(run, rows, graph)
        paths = shard_paths(run.output)
        links = links_of(rows, run.edge_set, source.first)
        shards = dict(zip(paths, links.shards(len(paths)), strict=True))
        counts = write_shards(shards, sampler.records, done, run.processes, progress)
        write_schema(run.output, sampler.schema)
        marker.end(counts[0])
    return counts
