"""Samples of mutated tables and specs: a named error, or what the plain reference says."""

import random
from pathlib import Path

from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.sampling.assembly import Assembler
from streamd.tfgnn.sampling.draws import ENDLESS
from streamd.tfgnn.sampling.sampler import AGGREGATIONS, Sampler, seed_set
from streamd.tfgnn.sampling.seeds import name_samples
from streamd.tfgnn.sampling.spec import parse_spec
from streamd.tfgnn.sampling.tables_graph import load_graph
from streamd.tfgnn.schema.schema import read_schema
from streamd.tfgnn.tables.reading import read_table
from tests.tfgnn import plain_sampler

GOLDEN = Path(__file__).parent / "golden" / "unigraph_csv"
SCHEMA = read_schema(GOLDEN / "graph.pbtxt")
ENDS = ["p0,p1,.5,3", "p0,p2,.9,1", "p0,p3,.1,2", "p0,p4,.7,9", "p0,p1,.5,3", "p0,p1,.5,4", "p1,p0,0,2", "p1,p2,2,2", "p2,p3,1,5", "p3,p9,1,5", "p4,nobody,3,1",
        "p9,p0,1,0"]
EDGES = ["\n".join(["source,target,weight,time", *ENDS]).encode() + b"\n"]
STRATEGIES = ("TOP_K", "RANDOM_UNIFORM", "RANDOM_WEIGHTED", "LATEST_K")
SPECS = [f"""seed_op {{ op_name: "seed" node_set_name: "paper" }}
  sampling_ops {{ op_name: "a" input_op_names: "seed" edge_set_name: "cites" sample_size: 2 strategy: {one} }}
  sampling_ops {{ op_name: "b" input_op_names: ["seed", "a"] edge_set_name: "cites" sample_size: 1 strategy: {two} }}
  sampling_ops {{ op_name: "c" input_op_names: "b" edge_set_name: "written" sample_size: 3 strategy: RANDOM_UNIFORM }}""".encode()
         for one, two in (("TOP_K", "RANDOM_UNIFORM"), ("RANDOM_WEIGHTED", "LATEST_K"))]
IDS = ["p0", "p1", "p2", "p3", "p4", "p5", "gone"]
WEIGHTS = ["0", "-0.0", "1", "1", ".5", "3e38", "1e-45", "1e-300", "7"]
TIMES = ["0", "1", "3", "7", "-1", str(2**63 - 1), str(-(2**63))]


def edges_at_random(rng: random.Random) -> bytes:
    """A table that can mostly be read, though what it says is seldom usual."""
    rows = [[rng.choice(IDS[:3]), rng.choice(IDS), rng.choice(WEIGHTS), rng.choice(TIMES)] for _ in range(rng.choice((0, 1, 5, 40)))]
    if rows and rng.random() < 0.1:
        rng.choice(rows)[rng.randrange(2, 4)] = rng.choice(("nan", "inf", "-1e-30", "", "1.5", "x", str(2**63)))
    return "\n".join(["source,target,weight,time", *map(",".join, rows)]).encode() + b"\n"


def spec_at_random(rng: random.Random) -> bytes:
    """A spec of operations that go on from one another."""
    ops = []
    for i in range(rng.randrange(5)):
        inputs = {"seed", *(f"o{j}" for j in range(i) if rng.random() < 0.6)} if rng.random() < 0.8 else {f"o{max(i - 1, 0)}"} if i else {"seed"}
        edges = rng.choice(("cites",) * 9 + ("written",))
        strategy = rng.choice(("TOP_K", "RANDOM_UNIFORM", "RANDOM_WEIGHTED", "LATEST_K"))
        size = rng.choice((1, 2, 3, 50, 2**31 - 1))
        ops.append(f'sampling_ops {{ op_name: "o{i}" input_op_names: {sorted(inputs)} edge_set_name: "{edges}" sample_size: {size} strategy: {strategy} }}')
    return ('seed_op { op_name: "seed" node_set_name: "paper" }' + " ".join(ops)).encode()


def check(edges: Path, spec_data: bytes, rng: random.Random) -> str | None:
    """Sample the golden graph with other edges. Returns: what is wrong. Raises: TFGNNError."""
    schema = SCHEMA
    spec = parse_spec(spec_data, schema)
    tables = {}

    def read(name, one):
        tables[name] = list(read_table(one, edges if name == "cites" else GOLDEN / one.metadata.filename))
        return tables[name]

    aggregation, timed = rng.choice(AGGREGATIONS), rng.random() < 0.3
    seeds = name_samples([b"p0", b"p1", b"p0", b"gone"], [rng.randrange(8) if timed else int(ENDLESS) for _ in range(4)])
    graph = load_graph(schema, spec, read, seed_ids=seeds.seed_ids, aggregation=aggregation)
    sampler = Sampler(graph, schema, spec, seed=3, aggregation=aggregation, timed_seeds=timed)
    assembler = Assembler(graph, schema, seed_set(spec), timed)
    records = list(assembler.records(sampler.sample(seeds)))

    # As the reference takes it: only sets that were looked at.
    assert spec.HasField("seed_op")
    nodes = {name: {id for rows in tables[name] for id in rows.ids.tolist()} for name in graph.node_sets}
    plain = {name: [edge for rows in tables[name] for edge in plain_edges(rows)] for name in graph.edge_sets}
    sets = {name: (schema.edge_sets[name].source, schema.edge_sets[name].target) for name in plain}
    ops = [(op.op_name, [("seed" if i == spec.seed_op.op_name else i) for i in op.input_op_names], op.edge_set_name, op.sample_size, STRATEGIES[op.strategy])
           for op in spec.sampling_ops]
    if "seed" in {op[0] for op in ops}:
        return None
    codec = Codec(assembler.schema)
    for i, record in enumerate(records):
        one = codec.decode(record)
        until = int(seeds.until_S[i]) if timed else None
        kept, found = plain_sampler.sample(nodes, plain, sets, spec.seed_op.node_set_name, ops, seeds.seed_ids[i], nth=int(seeds.nth_S[i]),
                                           until=until, seed=3, aggregation=aggregation)
        for name, ids in kept.items():
            if one.node_sets[name].num != len(ids):
                return f"{one.node_sets[name].num} nodes of {name}, not {len(ids)}"
        for name, (source, target) in sets.items():
            edges_of = one.edge_sets[name]
            ours = [(kept[source][s], kept[target][t]) for s, t in zip(edges_of.source_E, edges_of.target_E, strict=True)]
            if ours != [edge[:2] for edge in found[name]]:
                return f"edges of {name} are {ours}, not {found[name]}"
    return None


def plain_edges(rows):
    """The edges of some rows; of parallel ones that differ in features alone any may be taken first."""
    times = [None] * rows.num if rows.time is None else rows.time.tolist()
    weights = [None] * rows.num if rows.weight is None else rows.weight.tolist()
    return [(s, t, time, weight, ()) for s, t, time, weight in zip(rows.source.tolist(), rows.target.tolist(), times, weights, strict=True)]
