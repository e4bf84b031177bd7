"""The samplers of TensorFlow GNN's specs on a graph of OGBN-MAG's shape at 1/20 of its size, and at a hub.

Apache Beam runs where the environment of `make contract CLIENTS=beam` is.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.exchange.tfgnn.adjacency import adjacency
from streamd.exchange.tfgnn.draws import ENDLESS, draw_keys, hash_strings
from streamd.exchange.tfgnn.sampled import plan_run, sample_tables
from streamd.exchange.tfgnn.sampling import walk
from streamd.exchange.tfgnn.schema import (
    TYPES,
    EdgeSet,
    Feature,
    GraphSchema,
    Metadata,
    NodeSet,
    schema_text,
)
from streamd.exchange.tfgnn.spec import SamplingOp, SamplingSpec, SeedOp, spec_text
from streamd.exchange.tfgnn.unigraph import Rows
from streamd.exchange.tfgnn.unigraph_writing import write_table
from tests.benchmarks.measure import Row, best_seconds

SCALE, DIM, HUB = 20, 128, 10**6
NODES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}
EDGES = {"cites": ("paper", "paper", 5_416_271), "writes": ("author", "paper", 7_145_660), "has_topic": ("paper", "field_of_study", 7_505_078),
         "affiliated_with": ("author", "institution", 1_043_998)}
OPS = (("cited", "seed", "cites", 8), ("authors", "cited", "written", 8), ("own", "seed", "written", 8), ("papers", "own", "writes", 8),
       ("topics", "seed", "has_topic", 8), ("places", "own", "affiliated_with", 8))
"""Two hops; each operation RANDOM_UNIFORM."""


def texts(prefix: str, numbers) -> np.ndarray:
    found = np.empty(len(numbers), object)
    found[:] = [b"%s%d" % (prefix.encode(), i) for i in numbers.tolist()]
    return found


def make(folder: Path, scale: int = SCALE) -> tuple[int, int]:
    """Write tables, schema and spec. Returns: how many papers and edges."""
    rng = np.random.default_rng(0)
    text, number, vector = (Feature(dtype=TYPES[t], shape=s) for t, s in (("DT_STRING", ()), ("DT_INT64", ()), ("DT_FLOAT", (DIM,))))
    sets = {name: NodeSet(features={"#id": text} | ({"feat": vector, "year": number} if name == "paper" else {}),
                          metadata=Metadata(filename=f"{name}.tfrecord")) for name in NODES}
    for name, one in sets.items():
        num = NODES[name] // scale
        ids = texts(name[0], np.arange(num))
        features = {"#id": ids}
        if name == "paper":
            features |= {"feat": rng.normal(size=(num, DIM)).astype(np.float32), "year": rng.integers(2010, 2020, num)}
        write_table(one, folder / one.metadata.filename, [Rows(first=0, num=num, ids=ids, features=features)])
    edge_sets, total = {}, 0
    for name, (source, target, num) in EDGES.items():
        num //= scale
        total += num
        one = edge_sets[name] = EdgeSet(source=source, target=target, metadata=Metadata(filename=f"{name}.csv"))
        # Some targets have many edges, as in the original.
        ends = [texts(source[0], rng.integers(0, NODES[source] // scale, num)),
                texts(target[0], (NODES[target] // scale * rng.random(num) ** 3).astype(int))]
        write_table(one, folder / one.metadata.filename, [Rows(first=0, num=num, source=ends[0], target=ends[1])])
    edge_sets["written"] = EdgeSet(source="paper", target="author", metadata=Metadata(filename="writes.csv", extra=(("edge_type", "reversed"),)))
    (folder / "graph.pbtxt").write_text(schema_text(GraphSchema(node_sets=sets, edge_sets=edge_sets)))
    ops = tuple(SamplingOp(op_name=n, input_op_names=(i,), edge_set_name=e, sample_size=k, strategy="RANDOM_UNIFORM") for n, i, e, k in OPS)
    spec = SamplingSpec(seed_op=SeedOp(op_name="seed", node_set_name="paper"), sampling_ops=ops)
    (folder / "spec.binpb").write_text(spec_text(spec))
    return NODES["paper"] // scale, total


def by_beam(folder: Path, output: Path, *options: str) -> None:
    python = Path(f"{sys.prefix}-contract-beam/bin/python")
    flags = ["--graph_schema", folder / "graph.pbtxt", "--sampling_spec", folder / "spec.binpb", "--output_samples", output]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([python, "-m", "streamd", "tfgnn", "sample", *flags, "--runner", "DirectRunner", *options], env=environment, check=True,
                   capture_output=True)


def hub() -> list[Row]:
    """One draw at a node of 10^6 edges, its arrays there."""
    rng = np.random.default_rng(0)
    edges = adjacency(np.zeros(HUB, np.int64), np.arange(HUB), 1, time_E=np.sort(rng.integers(0, 10**9, HUB)),
                      weight_E=rng.random(HUB).astype(np.float32), features={}, types={}, where="hub")
    taken, node, id = np.zeros(HUB, np.uint8), np.zeros(1, np.int64), hash_strings([b"n"])
    found = []
    for strategy in ("TOP_K", "RANDOM_UNIFORM", "RANDOM_WEIGHTED", "LATEST_K"):
        op = SamplingOp(op_name="op", input_op_names=("seed",), edge_set_name="e", sample_size=16, strategy=strategy)
        for what, until in (("", int(ENDLESS)), (", as of its middle", 5 * 10**8)):
            def draw(op=op, until=until):
                return walk(op, edges, node, np.array([until]), draw_keys(0, "op", id, id), taken)
            assert len(draw()[0]) == 16
            found.append(Row(f"16 of 10^6 edges, {strategy}{what}", best_seconds(draw) * 1e6, "us"))
    return found


def run() -> list[Row]:
    found = hub()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        papers, edges = make(folder)
        what = f"{papers:,} papers, {edges:,} edges, 6 operations, every paper a seed"
        out = folder / "memory" / "s.tfrecord@4"
        began, begun = time.perf_counter(), []

        def note(step, done, total):
            if step == "sampling" and not begun:
                begun.append(time.perf_counter())

        sample_tables(plan_run(folder / "graph.pbtxt", folder / "spec.binpb", out), note)
        seconds = time.perf_counter() - begun[0]
        size = sum(p.stat().st_size for p in out.parent.iterdir()) / 1e6
        found.append(Row(f"in memory: {what}; {size:,.0f} MB", papers / seconds, "samples/s"))
        found.append(Row("in memory: reading the tables before", begun[0] - began, "s"))
        if Path(f"{sys.prefix}-contract-beam/bin/python").exists():
            for label, options in (("one process", []), ("two processes", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])):
                other = folder / label / "s.tfrecord@4"
                begin = time.perf_counter()
                by_beam(folder, other, *options)
                seconds = time.perf_counter() - begin
                for path in out.parent.iterdir():
                    assert path.read_bytes() == (other.parent / path.name).read_bytes(), "the two samplers differ"
                found.append(Row(f"Apache Beam's local runner, {label}: the same bytes", papers / seconds, "samples/s"))
    return found
