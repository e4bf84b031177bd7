"""The samplers of TensorFlow GNN's specs on a graph of OGBN-MAG's shape at 1/20 of its size, and a log's hub.

Apache Beam runs where the environment of `make contract CLIENTS=beam` is.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from streamd.cli.maintenance import open_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, empty_batch
from streamd.settings.loading import load_settings, schema_of
from streamd.tfgnn.logs.declared import declared_sets, graph_schema
from streamd.tfgnn.logs.link_samples import plan_link_run, sample_links
from streamd.tfgnn.logs.log_graph import load_log_graph
from streamd.tfgnn.logs.log_rows import LogRows
from streamd.tfgnn.logs.sampling_run import LogSource, plan_log_run, sample_log
from streamd.tfgnn.sampling.assembly import Assembler
from streamd.tfgnn.sampling.run import plan_run, sample_tables
from streamd.tfgnn.sampling.sampler import Sampler
from streamd.tfgnn.sampling.seeds import name_samples
from streamd.tfgnn.sampling.spec import spec_text
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema, NodeSet, SamplingSpec
from streamd.tfgnn.schema.schema import new_feature, schema_text
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table
from tests.benchmarks.measure import Row, best_seconds, pick_size

SCALE, DIM, HUB = pick_size((20, 128, 10**6), (2_000, 8, 50_000))
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
    text, number, vector = (new_feature("DT_STRING"), new_feature("DT_INT64"), new_feature("DT_FLOAT", (DIM,)))
    sets = {name: NodeSet(features={"#id": text} | ({"feat": vector, "year": number} if name == "paper" else {}),
                          metadata={"filename": f"{name}.tfrecord"}) for name in NODES}
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
        one = edge_sets[name] = EdgeSet(source=source, target=target, metadata={"filename": f"{name}.csv"})
        # Some targets have many edges, as in the original.
        ends = [texts(source[0], rng.integers(0, NODES[source] // scale, num)),
                texts(target[0], (NODES[target] // scale * rng.random(num) ** 3).astype(int))]
        write_table(one, folder / one.metadata.filename, [Rows(first=0, num=num, source=ends[0], target=ends[1])])
    edge_sets["written"] = EdgeSet(source="paper", target="author", metadata={"filename": "writes.csv", "extra": [{"key": "edge_type", "value": "reversed"}]})
    (folder / "graph.pbtxt").write_text(schema_text(GraphSchema(node_sets=sets, edge_sets=edge_sets)))
    ops = tuple({"op_name": n, "input_op_names": (i,), "edge_set_name": e, "sample_size": k, "strategy": "RANDOM_UNIFORM"} for n, i, e, k in OPS)
    spec = SamplingSpec(seed_op={"op_name": "seed", "node_set_name": "paper"}, sampling_ops=ops)
    (folder / "spec.binpb").write_text(spec_text(spec))
    return NODES["paper"] // scale, total


def by_beam(folder: Path, output: Path, *options: str) -> None:
    python = Path(f"{sys.prefix}-contract-beam/bin/python")
    flags = ["--graph_schema", folder / "graph.pbtxt", "--sampling_spec", folder / "spec.binpb", "--output_samples", output]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([python, "-m", "streamd", "tfgnn", "sample", *flags, "--runner", "DirectRunner", *options], env=environment, check=True,
                   capture_output=True)


class Begun:
    """Notes when a run begins to sample, after it has read."""

    def __init__(self) -> None:
        self.began, self.sampling = time.perf_counter(), 0.0

    def __call__(self, step: str, done: int, total: int) -> None:
        if step == "sampling" and not self.sampling:
            self.sampling = time.perf_counter()


def live(folder: Path, what: str, papers: int) -> list[Row]:
    """The same graph as a log, which has a time for each edge, and training samples of its events."""
    settings, data = folder / "settings.yaml", folder / "data"
    with settings.open("w") as file:
        subprocess.run([sys.executable, "-m", "streamd", "config", "--from-schema", folder], stdout=file, check=True)
    subprocess.run([sys.executable, "-m", "streamd", "tfgnn", "import", folder, "--first-time", "1970-01-01", "--config", settings,
                    "--data-dir", data], check=True, capture_output=True)
    log = open_log(data)
    source = LogSource(log=log, declared=declared_sets(load_settings(settings, {"data_dir": data})[0], log.state.schema))
    text = (folder / "spec.binpb").read_text().replace('"written"', '"rev_writes"')
    (folder / "live.pbtxt").write_text(text)
    (folder / "links.pbtxt").write_text(
        'symmetric_link_seed_op { op_name: "seed" }' + text[text.index("sampling_ops"):].replace("RANDOM_UNIFORM", "LATEST_K"))
    # Every paper as of a time of its own, in the second half.
    rng, times = np.random.default_rng(1), log.time_of(np.array([log.num_edges // 2, log.num_edges - 1]))
    rows = zip(range(papers), rng.integers(*times, papers).tolist(), strict=True)
    (folder / "seeds.csv").write_text("\n".join(["id,time", *(f"p{n},{time}" for n, time in rows)]))
    found = []
    for name, seeds in (("a log", None), ("a log, each paper as of its own time", folder / "seeds.csv")):
        out, begun = folder / name.replace(" ", "") / "s.tfrecord@4", Begun()
        sample_log(plan_log_run(source.declared, folder / "live.pbtxt", out, with_reverse=True, seeds=seeds), source, begun)
        size = sum(p.stat().st_size for p in out.parent.iterdir()) / 1e6
        found.append(Row(f"{name}: {what}; {size:,.0f} MB", papers / (time.perf_counter() - begun.sampling), "samples/s"))
        found.append(Row(f"{name}: reading it before", begun.sampling - begun.began, "s"))
    recent = LogSource(log=log, declared=source.declared, start_us=int(log.time_of(np.array([log.num_edges - 10_000]))[0]))
    begun = Begun()
    plan = plan_link_run(source.declared, folder / "links.pbtxt", folder / "links" / "s.tfrecord", edge_set="writes", negatives=4, with_reverse=True)
    count, _ = sample_links(plan, recent, begun)
    found.append(Row("training samples of events, 4 negatives each", count / (time.perf_counter() - begun.sampling), "samples/s"))
    return found


def live_hub(folder: Path) -> list[Row]:
    """A log with a node of 10^6 edges: read, and one sample at a time drawn and made a record."""
    sets = {"graph.node_sets": {"n": {}}, "graph.edge_sets": {"e": {"source": "n", "target": "n", "features": {"weight": "number"}}}}
    settings, rng = load_settings(None, {"data_dir": folder, **sets}, environ={})[0], np.random.default_rng(0)
    writer = LogWriter(folder, schema_of(settings), 500_000)
    nodes = num = 50_000
    for at in range(0, HUB, num):
        ids = rng.integers(1, nodes, num)
        new = tuple(range(nodes)) if at == 0 else ()
        writer.keys.update({key: key for key in new})
        rows = np.zeros((num, 1), np.float32)
        rows[:, 0] = rng.random(num)
        writer.commit(replace(empty_batch(schema_of(settings)), src_E=np.zeros(num, np.int64), dst_E=ids, time_E=at + np.arange(num), msg_ED=rows,
                              new_keys=new), Progress(), at + num)
    writer.close()
    log = open_log(folder)
    source = LogSource(log=log, declared=declared_sets(settings, log.state.schema))
    found = []
    for strategy in ("TOP_K", "RANDOM_UNIFORM", "RANDOM_WEIGHTED", "LATEST_K"):
        spec = SamplingSpec(seed_op={"op_name": "seed", "node_set_name": "n"}, sampling_ops=(
            {"op_name": "hop", "input_op_names": ("seed",), "edge_set_name": "e", "sample_size": 16, "strategy": strategy},))
        begin, schema = time.perf_counter(), graph_schema(source.declared)
        graph = load_log_graph(LogRows(log, source.declared, source.cut()), schema, (["n"], ["e"]), others={})
        sampler, assembler = Sampler(graph, schema, spec, seed=0, timed_seeds=True), Assembler(graph, schema, "n", True)
        made = name_samples([b"0"], [HUB // 2])

        def draw(sampler=sampler, assembler=assembler, made=made):
            return list(assembler.records(sampler.sample(made)))

        assert draw()
        if strategy == "TOP_K":
            found.append(Row("a log of 10^6 edges at a node: read and sorted", time.perf_counter() - begin, "s"))
        found.append(Row(f"16 of its edges as of its middle, {strategy}, as a record", best_seconds(draw) * 1e3, "ms"))
    return found


def run() -> list[Row]:
    found = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        found += live_hub(Path(name) / "log")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        papers, edges = make(folder)
        what = f"{papers:,} papers, {edges:,} edges, 6 operations, every paper a seed"
        out = folder / "memory" / "s.tfrecord@4"
        begun = Begun()
        sample_tables(plan_run(folder / "graph.pbtxt", folder / "spec.binpb", out), begun)
        seconds = time.perf_counter() - begun.sampling
        size = sum(p.stat().st_size for p in out.parent.iterdir()) / 1e6
        found.append(Row(f"in memory: {what}; {size:,.0f} MB", papers / seconds, "samples/s"))
        found.append(Row("in memory: reading the tables before", begun.sampling - begun.began, "s"))
        begun = Begun()
        sample_tables(plan_run(folder / "graph.pbtxt", folder / "spec.binpb", folder / "both" / "s.tfrecord@4", processes=2), begun)
        found.append(Row("in memory, two processes", papers / (time.perf_counter() - begun.sampling), "samples/s"))
        found += live(folder, what, papers)
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
