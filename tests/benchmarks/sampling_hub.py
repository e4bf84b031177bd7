"""What a node of 10^6 edges costs the sampler of TensorFlow GNN's specs: a usual draw, and the worst ones.

Seconds of CPU and not of a clock, as other work runs beside it.
"""

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from streamd.tfgnn.records.row_names import TableRows
from streamd.tfgnn.sampling.adjacency import adjacency
from streamd.tfgnn.sampling.draws import ENDLESS, draw_keys, hash_strings
from streamd.tfgnn.sampling.sampler import Sampler, walk
from streamd.tfgnn.sampling.seeds import name_samples
from streamd.tfgnn.sampling.shard_writing import BATCH
from streamd.tfgnn.sampling.spec import parse_spec
from streamd.tfgnn.sampling.tables_graph import load_graph
from streamd.tfgnn.schema.messages import SamplingOp
from streamd.tfgnn.schema.schema import parse_schema
from streamd.tfgnn.tables.reading import Rows
from tests.benchmarks.measure import Row, pick_size

HUB, SIZE, DRAWS = pick_size(10**6, 10_000), 16, 10
BETWEEN = pick_size(20_000, 2_000)
"""Edges of the hub whose edges to others in a sample are all looked for."""
STRATEGIES = ("TOP_K", "RANDOM_UNIFORM", "RANDOM_WEIGHTED", "LATEST_K")


def microseconds(work: Callable[[], object], times: int) -> float:
    """Least CPU time of a round, for each of `times` things that it does."""
    work()
    found = []
    for _ in range(3):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found) / times * 1e6


def draws() -> list[Row]:
    """Draws at the hub, whose arrays are there."""
    rng = np.random.default_rng(0)
    usual = rng.random(HUB)
    heavy = np.full(HUB, 1.0)
    heavy[HUB // 3] = 1e10
    few = np.zeros(HUB)
    few[:: HUB // (SIZE // 2)] = 1
    weights = {"": usual, ", one edge has nearly all weight": heavy, f", {SIZE // 2} edges have weight": few, ", weights grow with time": np.arange(HUB)}
    cases = [(s, "", until) for s in STRATEGIES for until in ("end", "middle")]
    cases += [("TOP_K", ", weights grow with time", "middle"), ("TOP_K", ", weights grow with time", "begin")]
    cases += [("RANDOM_WEIGHTED", what, "end") for what in list(weights)[1:3]]
    times = np.sort(rng.integers(0, 10**9, HUB))
    untils = {"end": int(ENDLESS), "middle": 5 * 10**8, "begin": 10**6}
    samples, node = hash_strings([b"s%d" % i for i in range(DRAWS)]), np.zeros(DRAWS, np.int64)
    taken, id = np.zeros(HUB, np.uint8), np.full(DRAWS, hash_strings([b"n"])[0])
    found = []
    for strategy, what, until in cases:
        edges = adjacency(np.zeros(HUB, np.int64), np.arange(HUB), 1, time_E=times, weight_E=weights[what].astype(np.float32), features={}, types={},
                          location=TableRows())
        op = SamplingOp(op_name="op", input_op_names=["seed"], edge_set_name="e", sample_size=SIZE, strategy=strategy)

        def draw(op=op, edges=edges, until=until):
            return walk(op, edges, node, np.full(DRAWS, untils[until]), draw_keys(0, "op", samples, id), taken)

        name = f"{SIZE} of 10^6 edges, {strategy}{what}, as of their {until}"
        found.append(Row(name, microseconds(draw, DRAWS), "us of CPU"))
    return found


def between() -> list[Row]:
    """Samples with the hub in each, with all edges between their nodes."""
    schema = parse_schema(b"""node_sets { key: "n" value { metadata { filename: "n.csv" } } }
        edge_sets { key: "e" value { source: "n" target: "n" metadata { filename: "e.csv" } } }""")
    spec = parse_spec(b"""seed_op { op_name: "seed" node_set_name: "n" } sampling_ops { op_name: "hub" input_op_names: "seed"
        edge_set_name: "e" sample_size: 8 strategy: RANDOM_UNIFORM }""", schema)
    ids = np.array([b"%07d" % i for i in range(BETWEEN + 1)], object)
    hub, others = np.full(BETWEEN, ids[0], object), ids[1:]

    def read(name, one):
        if name == "n":
            yield Rows(first=0, num=len(ids), ids=ids)
        else:
            yield Rows(first=0, num=2 * BETWEEN, source=np.concatenate([hub, others]), target=np.concatenate([others, hub]))

    sampler = Sampler(load_graph(schema, spec, read, aggregation="node"), schema, spec, seed=0, aggregation="node")
    seeds = name_samples(others[:BATCH].tolist(), [int(ENDLESS)] * BATCH)
    cost = microseconds(lambda: sampler.sample(seeds), BATCH)
    tracemalloc.start()
    sampler.sample(seeds)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    what = f"all edges between the nodes of {BATCH} samples, each with a node of {BETWEEN:,} edges"
    return [Row(f"{what}: memory an edge and sample", most / BETWEEN / BATCH, "bytes"), Row(f"{what}: each", cost / 1e3, "ms of CPU")]


def run() -> list[Row]:
    return draws() + between()
