"""The steps of the Beam pipeline that samples. Each takes the blocks of one key, and yields blocks.

Draws, order and records equal those of the other samplers: a bucket of edges is an `Adjacency`,
sampled by the same kernels, and the same `Assembler` builds the records of a shard.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamd.errors import TFGNNError
from streamd.tfgnn.beam.blocks import (
    EdgeBlock,
    EdgeQueries,
    Keyed,
    NodeBlock,
    SampleArrivals,
    SampledEdges,
    SampledNodes,
    SeedBlock,
    ShardSamples,
    bucket_of,
    compact,
    groups,
    indices_of,
    number_strings,
    of,
    pick,
)
from streamd.tfgnn.records.records import write_records
from streamd.tfgnn.records.row_names import Location
from streamd.tfgnn.records.shards import shard_paths
from streamd.tfgnn.records.tensor import join, take
from streamd.tfgnn.sampling.adjacency import (
    Adjacency,
    Graph,
    NodeTable,
    adjacency,
    node_table,
    shown_id,
)
from streamd.tfgnn.sampling.assembly import Assembler, is_latent
from streamd.tfgnn.sampling.draws import Array, draw_keys, hash_strings
from streamd.tfgnn.sampling.sampler import NONE, Found, Has, before, seed_set, walk
from streamd.tfgnn.sampling.seeds import Seeds, name_samples, shard_of
from streamd.tfgnn.sampling.spec import seed_of
from streamd.tfgnn.sampling.tables_graph import whole
from streamd.tfgnn.schema.messages import GraphSchema, SamplingOp, SamplingSpec

Missing = dict[tuple[str, bool], set[bytes]]
"""Ids of nodes without a row, by node set and by their origin: True for seeds, False for edges."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Parameters of all steps. has: the columns of each edge set. run_id: part of the names of
    scratch files."""

    schema: GraphSchema
    spec: SamplingSpec
    has: Mapping[str, Has]
    seed: int
    is_timed: bool
    buckets: int
    output: Path
    run_id: str

    @property
    def num_shards(self) -> int:
        """Number of output files."""
        return len(shard_paths(self.output))

    def node_set_of(self, op: str) -> str:
        """The node set in which an operation ends."""
        for one in self.spec.sampling_ops:
            if one.op_name == op:
                target: str = self.schema.edge_sets[one.edge_set_name].target
                return target
        return seed_set(self.spec)

    def write_missing(self, bucket: int, missing: Missing) -> None:
        """Write the nodes of a bucket without a row to a scratch file for the driver. The file's
        name has the bucket, so that a bucket that runs twice counts once."""
        found = [[*of, len(ids), shown_id(min(ids))] for of, ids in missing.items() if ids]
        if found:
            path = self.output.with_name(f".{self.run_id}.missing-{bucket}")
            scratch = path.with_name(f".{self.run_id}.{uuid.uuid4().hex}")
            scratch.write_text(json.dumps(found))
            # Renamed at the end, so that the driver never reads half a file.
            scratch.replace(path)

    def read_missing(self) -> list[tuple[str, bool, int, str]]:
        """For each node set and origin: the set's name, whether seeds name the nodes, the number of
        nodes without a row, and one of their ids."""
        counts: dict[tuple[str, bool], tuple[int, str]] = {}
        for path in sorted(self.output.parent.glob(f".{self.run_id}.missing-*")):
            for name, is_seed, count, example in json.loads(path.read_text()):
                before, first = counts.get((name, is_seed), (0, example))
                counts[name, is_seed] = before + count, first
        return [(*of, *found) for of, found in sorted(counts.items())]


def levels(spec: SamplingSpec) -> list[list[SamplingOp]]:
    """The operations by level; those of one level can run at the same time."""
    # The level of an operation is one above the highest of its inputs; that of the seed is -1.
    level = {seed_of(spec).op_name: -1}
    found: list[list[SamplingOp]] = []
    for op in spec.sampling_ops:
        level[op.op_name] = 1 + max(level[name] for name in op.input_op_names)
        found += [[]] * (level[op.op_name] + 1 - len(found))
        found[level[op.op_name]] = [*found[level[op.op_name]], op]
    return found


def no_samples(plan: Plan) -> Iterator[Keyed]:
    """Yield an empty `ShardSamples` for each shard, so that all are written."""
    for shard in range(plan.num_shards):
        yield shard, ShardSamples([], NONE)


def name_seeds(bucket: Keyed, plan: Plan) -> Iterator[Keyed]:
    """Turn seeds into samples; forward all other blocks."""
    key, blocks = bucket[0], list(bucket[1])
    yield from ((key, block) for block in blocks if not isinstance(block, SeedBlock))
    rows = of(blocks, SeedBlock)
    if not rows:
        return
    ids = [id for block in rows for id in block.ids]
    seeds = name_samples(ids, np.concatenate([block.times for block in rows]).tolist())
    # The seed of a sample is the first node that it reaches.
    handles = seeds.handles
    nodes, number = number_strings(seeds.seed_ids)
    arrived = indices_of(number, seeds.seed_ids)
    op = seed_of(plan.spec).op_name
    yield (
        key,
        SampleArrivals(op, handles, seeds.until_S, nodes, np.arange(len(handles)), arrived),
    )


def expand(bucket: Keyed, plan: Plan, ops: list[SamplingOp]) -> Iterator[Keyed]:
    """Run the operations of a level at the nodes of a bucket, with the edges of that bucket;
    forward all other blocks. Raises: TFGNNError for an invalid weight."""
    key, blocks = bucket[0], list(bucket[1])
    yield from ((key, block) for block in blocks if not isinstance(block, EdgeBlock))
    arrivals = of(blocks, SampleArrivals)
    made: dict[str, _Edges] = {}
    for op in ops:
        came = [block for block in arrivals if block.op in op.input_op_names]
        name = op.edge_set_name
        rows = [block for block in of(blocks, EdgeBlock) if block.edge_set == name]
        if not came or not rows:
            continue
        # Built once, though several operations may follow the same edges.
        if name not in made:
            made[name] = _Edges(rows, plan, name)
        edges = made[name]
        # Draw the edges at each pair of a sample and a node. The keys are hashes of ids, so that
        # the draws are those of every other sampler.
        samples, until_S, sample_R, node_R = _pairs(came, edges.source_number)
        node_hash = hash_strings(edges.sources)
        keys = draw_keys(plan.seed, op.op_name, hash_strings(samples)[sample_R], node_hash[node_R])
        taken = np.zeros(edges.adjacency.most, np.uint8)
        edge, num_R = walk(op, edges.adjacency, node_R, until_S[sample_R], keys, taken)
        sample = np.repeat(sample_R, num_R)

        # Yield the reached nodes, from which the next level continues, and the edges.
        target = edges.adjacency.target_E[edge]
        yield from _arrivals(plan, op.op_name, samples, until_S, edges.targets, sample, target)
        yield from edges.blocks_of(plan, samples, sample, edge)


class _Edges:
    """The edges of a bucket in the form for a sampler."""

    def __init__(self, rows: list[EdgeBlock], plan: Plan, name: str) -> None:
        source = [id for block in rows for id in block.source]
        target = [id for block in rows for id in block.target]
        self.name = name
        self.sources, self.source_number = number_strings(source)
        self.targets, self.target_number = number_strings(target)
        locations = [f"Edge set {name!r}"] * len(rows)
        self.adjacency = adjacency(
            indices_of(self.source_number, source),
            indices_of(self.target_number, target),
            len(self.sources),
            time_E=whole([block.time for block in rows], np.int64, "#time", locations),
            weight_E=whole([block.weight for block in rows], np.float32, "#weight", locations),
            features=join([block.features for block in rows]),
            types=plan.schema.edge_sets[name].features,
            location=lambda e: f"Edge set {name!r}, edge {e} of a bucket",
        )
        has = Has(self.adjacency.weight_E is not None, self.adjacency.time_E is not None)
        if has != plan.has[name]:
            # Another bucket has rows with the column, and this one has not.
            raise TFGNNError(
                f"Edge set {name!r}: some files have #weight or #time and some have none.",
                "write it in all of them.",
            )

    def blocks_of(
        self, plan: Plan, samples: list[bytes], sample: Array, edge: Array
    ) -> Iterator[Keyed]:
        """Yield edges of samples for their shards."""
        # Distinct samples and edges once per shard, and pairs of indices into them.
        table = self.adjacency
        shard_S = shard_of(hash_strings(samples), plan.num_shards)
        for shard, indices in groups(shard_S[sample]):
            have, sample_P = compact(sample[indices])
            edges, edge_P = compact(edge[indices])
            yield (
                shard,
                SampledEdges(
                    self.name,
                    pick(samples, have),
                    pick(self.sources, table.source_E[edges]),
                    pick(self.targets, table.target_E[edges]),
                    edges - table.start_N[table.source_E[edges]],
                    take(table.features, table.row_E[edges]),
                    sample_P,
                    edge_P,
                ),
            )


def _pairs(
    came: list[SampleArrivals], number: dict[bytes, int]
) -> tuple[list[bytes], Array, Array, Array]:
    """The samples, their times, and the distinct pairs of a sample and a node that has a number."""
    samples, sample_number = number_strings(id for block in came for id in block.samples)
    until_S = np.empty(len(samples), np.int64)
    joined = []
    for block in came:
        index_S = indices_of(sample_number, block.samples)
        until_S[index_S] = block.until_S
        node = indices_of(number, block.nodes)[block.node_P]
        known = node >= 0
        # A pair as one integer, so that `np.unique` finds the distinct ones.
        joined.append(index_S[block.sample_P][known] * max(len(number), 1) + node[known])
    pairs = np.unique(np.concatenate(joined))
    return samples, until_S, pairs // max(len(number), 1), pairs % max(len(number), 1)


def _arrivals(
    plan: Plan,
    op: str,
    samples: list[bytes],
    until_S: Array,
    nodes: list[bytes],
    sample: Array,
    node: Array,
) -> Iterator[Keyed]:
    """Yield the nodes that samples reached, for the nodes' buckets."""
    bucket_N = bucket_of(nodes, plan.buckets)
    for bucket, indices in groups(bucket_N[node]):
        have, sample_P = compact(sample[indices])
        came, node_P = compact(node[indices])
        block = SampleArrivals(
            op, pick(samples, have), until_S[have], pick(nodes, came), sample_P, node_P
        )
        yield bucket, block


def by_sample(keyed: Keyed, plan: Plan) -> Iterator[Keyed]:
    """Key an `SampleArrivals` by the buckets of its samples instead of its nodes; forward other
    blocks."""
    block = keyed[1]
    if not isinstance(block, SampleArrivals):
        yield keyed
        return
    key_S = bucket_of(block.samples, plan.buckets)
    for key, indices in groups(key_S[block.sample_P]):
        have, sample_P = compact(block.sample_P[indices])
        came, node_P = compact(block.node_P[indices])
        samples, nodes = pick(block.samples, have), pick(block.nodes, came)
        yield key, SampleArrivals(block.op, samples, block.until_S[have], nodes, sample_P, node_P)


def query_edges(bucket: Keyed, plan: Plan, edge_sets: list[str]) -> Iterator[Keyed]:
    """Yield queries for all edges between the nodes of each sample, and the arrivals keyed by their
    nodes again."""
    nodes: dict[tuple[bytes, str], set[bytes]] = {}
    until: dict[bytes, int] = {}
    # Collect the nodes of each sample by node set. The edges that operations took are dropped: the
    # queries find them again, among all edges between the nodes.
    for block in bucket[1]:
        if not isinstance(block, SampleArrivals):
            if not isinstance(block, SampledEdges):
                yield bucket[0], block
            continue
        name = plan.node_set_of(block.op)
        until.update(zip(block.samples, block.until_S.tolist(), strict=True))
        for sample, node in zip(block.sample_P.tolist(), block.node_P.tolist(), strict=True):
            nodes.setdefault((block.samples[sample], name), set()).add(block.nodes[node])
        pairs = block.samples, block.until_S, block.nodes, block.sample_P, block.node_P
        yield from _arrivals(plan, block.op, *pairs)

    asked: dict[tuple[int, str], list[tuple[bytes, list[bytes], list[bytes]]]] = {}
    # The edges of a source are in its bucket, so send each bucket the sources that it has, and all
    # targets.
    for edge_set in edge_sets:
        one = plan.schema.edge_sets[edge_set]
        for sample in until:
            source = sorted(nodes.get((sample, one.source), ()))
            target = sorted(nodes.get((sample, one.target), ()))
            if not source or not target:
                continue
            for key, indices in groups(bucket_of(source, plan.buckets)):
                one_of = sample, pick(source, indices), target
                asked.setdefault((key, edge_set), []).append(one_of)
    for (key, edge_set), found in asked.items():
        times = np.array([until[sample] for sample, _, _ in found], np.int64)
        samples, sources, targets = (list(part) for part in zip(*found, strict=True))
        yield key, EdgeQueries(edge_set, samples, times, sources, targets)


def between(bucket: Keyed, plan: Plan) -> Iterator[Keyed]:
    """Answer the queries for edges between the nodes of samples; forward other blocks."""
    key, blocks = bucket[0], list(bucket[1])
    asked: dict[str, list[EdgeQueries]] = {}
    for block in blocks:
        if isinstance(block, EdgeQueries):
            asked.setdefault(block.edge_set, []).append(block)
        elif not isinstance(block, EdgeBlock):
            yield key, block
    for name, queries in asked.items():
        rows = [block for block in of(blocks, EdgeBlock) if block.edge_set == name]
        if not rows:
            continue
        edges = _Edges(rows, plan, name)
        for block in queries:
            for s, sample in enumerate(block.samples):
                # All edges of the sources before the sample's time, then only those to its nodes.
                source = indices_of(edges.source_number, block.sources[s])
                source = source[source >= 0]
                num_R = before(edges.adjacency, source, np.full(len(source), block.until_S[s]))
                first = np.repeat(edges.adjacency.start_N[source], num_R)
                skipped = np.repeat(np.cumsum(num_R) - num_R, num_R)
                edge = first + np.arange(len(first)) - skipped
                targets = indices_of(edges.target_number, block.targets[s])
                edge = edge[np.isin(edges.adjacency.target_E[edge], targets)]
                yield from edges.blocks_of(plan, [sample], np.zeros(len(edge), np.int64), edge)


def join_rows(bucket: Keyed, plan: Plan) -> Iterator[Keyed]:
    """Join the nodes that samples reached with their rows, and key them by the shards of the
    samples. Raises: TFGNNError for an id that occurs twice in a table."""
    key, blocks = bucket[0], list(bucket[1])
    came: dict[str, list[SampleArrivals]] = {}
    missing: Missing = {}
    for block in blocks:
        if isinstance(block, SampleArrivals):
            came.setdefault(plan.node_set_of(block.op), []).append(block)
            # Each sample arrives once by the seed operation: announce it to its shard there.
            if block.op == seed_of(plan.spec).op_name:
                shard_S = shard_of(hash_strings(block.samples), plan.num_shards)
                for shard, indices in groups(shard_S):
                    yield shard, ShardSamples(pick(block.samples, indices), block.until_S[indices])
        elif not isinstance(block, NodeBlock):
            yield key, block
    for name, node_set in sorted(plan.schema.node_sets.items()):
        rows = [block for block in of(blocks, NodeBlock) if block.node_set == name]
        arrivals = came.get(name, [])
        ids = [id for block in rows for id in block.ids]
        # A latent node set has no table, so the reached nodes are its rows.
        others = {id for block in arrivals for id in block.nodes} if is_latent(node_set) else set()
        table = node_table(
            ids, others, join([block.features for block in rows]), _row_locations(rows)
        )
        if not arrivals:
            continue
        # Nodes without a row are in no sample; the driver warns of them at the end.
        for block in arrivals:
            is_seed = block.op == seed_of(plan.spec).op_name
            missing.setdefault((name, is_seed), set()).update(
                set(block.nodes) - table.number.keys()
            )
        # Send the rows of the reached nodes to the shards of their samples.
        samples, _, sample, node = _pairs(arrivals, dict(table.number))
        shard_S = shard_of(hash_strings(samples), plan.num_shards)
        for shard, indices in groups(shard_S[sample]):
            have, sample_P = compact(sample[indices])
            nodes, node_P = compact(node[indices])
            features = {} if is_latent(node_set) else take(table.features, table.row_N[nodes])
            held = pick(samples, have), pick(table.ids, nodes), features
            yield shard, SampledNodes(name, *held, sample_P, node_P)
    plan.write_missing(key, missing)


def _row_locations(rows: list[NodeBlock]) -> Location:
    """A function that names a row of concatenated blocks in errors."""
    parts = [(block.file, block.row_R.tolist()) for block in rows]
    return lambda at: [file(row) for file, numbers in parts for row in numbers][at]


def write_shard(shard: Keyed, plan: Plan) -> Iterator[int]:
    """Write the records of a shard: to a scratch file with a unique name, synced and then renamed,
    so that a shard that runs twice is one file. Yields: the number of records."""
    number, blocks = shard[0], list(shard[1])
    # The samples of the shard, in the order of its records.
    handles, until = [], []
    for block in of(blocks, ShardSamples):
        handles += block.samples
        until += block.until_S.tolist()
    seeds = Seeds.of_handles(handles, np.array(until, np.int64)).in_order()
    location = {handle: s for s, handle in enumerate(seeds.handles)}

    # A graph of the shard's nodes and edges alone: each node and edge once, and the samples that
    # have it.
    node_sets: dict[str, NodeTable] = {}
    nodes: dict[str, tuple[Array, Array]] = {}
    for name in sorted(plan.schema.node_sets):
        held = [block for block in of(blocks, SampledNodes) if block.node_set == name]
        node_sets[name] = table = _table_of(held)
        if held:
            pairs = [(b.samples, b.ids, b.sample_P, b.node_P) for b in held]
            nodes[name] = _join_pairs(pairs, location, dict(table.number))
    if seed_set(plan.spec) not in nodes:
        nodes[seed_set(plan.spec)] = NONE, NONE
    edge_sets, edges = {}, {}
    for name, one in sorted(plan.schema.edge_sets.items()):
        sampled = [block for block in of(blocks, SampledEdges) if block.edge_set == name]
        if sampled:
            ends = node_sets[one.source], node_sets[one.target]
            edge_sets[name], edges[name] = _edges_of(sampled, location, *ends)

    # Write the records as other samplers do.
    latent = frozenset(n for n, s in plan.schema.node_sets.items() if is_latent(s))
    graph = Graph(node_sets=node_sets, edge_sets=edge_sets, latent=latent)
    assembler = Assembler(graph, plan.schema, seed_set(plan.spec), plan.is_timed)
    path = shard_paths(plan.output)[number]
    scratch = path.with_name(f".{plan.run_id}.{uuid.uuid4().hex}-{path.name}")
    count = write_records(scratch, assembler.records(Found(seeds=seeds, nodes=nodes, edges=edges)))
    scratch.replace(path)
    yield count


def _table_of(held: list[SampledNodes]) -> NodeTable:
    """The distinct nodes of a shard."""
    ids = [id for block in held for id in block.ids]
    row = {id: r for r, id in enumerate(ids)}
    known = sorted(row)
    rows = np.array([row[id] for id in known], np.int64)
    features = take(join([block.features for block in held]), rows)
    return node_table(known, set(), features, "node {} of a shard".format)


def _join_pairs(
    pairs: list[tuple[list[bytes], Any, Array, Array]],
    sample_number: dict[bytes, int],
    number: dict[Any, int],
) -> tuple[Array, Array]:
    """The distinct pairs of several blocks, ascending."""
    found = []
    for samples, things, sample_P, thing_P in pairs:
        sample = indices_of(sample_number, samples)[sample_P]
        thing = np.fromiter((number[t] for t in things), np.int64, len(things))[thing_P]
        found.append(sample * len(number) + thing)
    joined = np.unique(np.concatenate(found))
    return joined // max(len(number), 1), joined % max(len(number), 1)


def _edges_of(
    sampled: list[SampledEdges],
    sample_number: dict[bytes, int],
    sources: NodeTable,
    targets: NodeTable,
) -> tuple[Adjacency, tuple[Array, Array]]:
    """The distinct edges of a shard whose endpoints are in it, and the pairs of a sample and an
    edge."""
    # An edge is identified by its source, its index among the edges of the source, and its target.
    things = [list(zip(b.source, b.index_E.tolist(), b.target, strict=True)) for b in sampled]
    # Several samples may have taken the same edge; any of its copies will do.
    row = {edge: r for r, edge in enumerate(edge for block in things for edge in block)}
    known = sorted(edge for edge in row if edge[0] in sources.number and edge[2] in targets.number)
    number = {edge: n for n, edge in enumerate(known)}
    table = Adjacency(
        start_N=NONE,
        source_E=np.array([sources.number[source] for source, _, _ in known], np.int64),
        target_E=np.array([targets.number[target] for _, _, target in known], np.int64),
        row_E=np.array([row[edge] for edge in known], np.int64),
        time_E=None,
        weight_E=None,
        features=join([block.features for block in sampled]),
    )
    pairs = []
    for block, edges in zip(sampled, things, strict=True):
        thing = np.fromiter((number.get(e, -1) for e in edges), np.int64, len(edges))
        kept = thing[block.edge_P] >= 0
        sample = indices_of(sample_number, block.samples)[block.sample_P][kept]
        pairs.append(sample * max(len(known), 1) + thing[block.edge_P][kept])
    joined = np.unique(np.concatenate(pairs))
    return table, (joined // max(len(known), 1), joined % max(len(known), 1))
