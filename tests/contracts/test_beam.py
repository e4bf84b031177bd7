"""Sampling by Apache Beam's runners, from an environment of its own: `make contract`."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamd.demo.broker import free_port
from streamd.tfgnn.sampling.run import plan_run, sample_tables
from tests.tfgnn.sampled_world import World

pytestmark = pytest.mark.contract
BIN = Path(f"{sys.prefix}-contract-beam/bin")
ROOT = Path(__file__).parents[2]
TWO_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def environment():
    """Workers start a bare `python`, which must be that of the environment."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ['PATH']}"}


def sample_by_beam(world, output, options, asked=()):
    """Run the command, with the options of the peer's own sampler."""
    flags = ["--graph_schema", world.path, "--sampling_spec", world.path / "spec" / "spec.pbtxt", "--output_samples", output]
    names = {"seeds": "--input_seeds", "aggregation": "--edge_aggregation_method"}
    flags += [word for name in asked for word in (names[name], asked[name])]
    command = [BIN / "python", "-m", "streamd", "tfgnn", "sample", *flags, *options]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)


def sample_twice(path, world, options, **asked):
    """Sample in memory and by Beam; every file must be the same."""
    in_memory, by_beam = path / "memory" / "s.tfrecord@3", path / "beam" / "s.tfrecord@3"
    sample_tables(plan_run(world.path, world.path / "spec" / "spec.pbtxt", in_memory, **asked))
    done = sample_by_beam(world, by_beam, options, asked)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {file.name for file in in_memory.parent.iterdir()}
    assert names == {file.name for file in by_beam.parent.iterdir()}
    for name in names:
        assert (in_memory.parent / name).read_bytes() == (by_beam.parent / name).read_bytes(), name


def seeds_of(world):
    draw = random.Random(2)
    return [(id, draw.randrange(22)) for id in [*world.nodes["paper"], b"p0", b"p0", b"p29", b"nobody"]]


def test_a_hundred_edges_give_the_same_files_beam(tmp_path):
    world = World(tmp_path / "in", 3, num=10, num_edges=100)
    sample_twice(tmp_path, world, ["--runner", "DirectRunner"])


@pytest.mark.parametrize("options", [[], TWO_PROCESSES], ids=["one process", "two processes"])
@pytest.mark.parametrize("aggregation", ["edge", "node"])
def test_samples_as_of_a_time_from_shards_are_the_same_beam(tmp_path, aggregation, options):
    world = World(tmp_path / "in", 1, shards="@3")
    seeds = world.seeds(seeds_of(world), True)
    sample_twice(tmp_path, world, ["--runner", "DirectRunner", *options], seeds=seeds, aggregation=aggregation)


def test_a_job_service_with_a_pool_of_workers_gives_the_same_beam(tmp_path):
    """The protocol that Flink, Spark and Dataflow speak: a job service, and harnesses elsewhere."""
    world = World(tmp_path / "in", 1, shards="@2")
    job_port, pool_port = free_port(), free_port()
    modules = [["apache_beam.runners.portability.local_job_service_main", "--port", str(job_port)],
               ["apache_beam.runners.worker.worker_pool_main", f"--service_port={pool_port}"]]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([BIN / "python", "-m", *module], env=environment(), **quiet) for module in modules]
    try:
        time.sleep(5)
        sample_twice(tmp_path, world, [
            "--runner", "PortableRunner", f"--job_endpoint=localhost:{job_port}", "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{pool_port}"])
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)


def test_a_table_that_lies_ends_the_run_with_its_name_beam(tmp_path):
    world = World(tmp_path / "in", 1)
    with (world.path / "author.csv").open("a") as file:
        file.write("a3\n")
    done = sample_by_beam(world, tmp_path / "beam" / "s.tfrecord", ["--runner", "DirectRunner"])
    assert done.returncode and "node set 'author' has the id 'a3' twice" in done.stderr
    assert not list((tmp_path / "beam").glob("s.*"))


def test_a_pipeline_of_ones_own_reads_tables_and_context_beam(tmp_path):
    world = World(tmp_path / "in", 1, shards="@2")
    graph = world.path / "graph.pbtxt"
    graph.write_text(graph.read_text() + """context { features { key: "name" value { dtype: DT_STRING } } metadata { filename: "context.csv" } }""")
    (world.path / "context.csv").write_text("name\nwhole\n")
    command = [BIN / "python", ROOT / "tests" / "contracts" / "clients" / "ask_beam.py", world.path, tmp_path]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    read = {path.name.removesuffix(".json"): json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert read.keys() == {"context", "nodes.paper", "nodes.author", "edges.cites", "edges.written", "edges.has"}
    assert read["context"] == [{"name": "whole"}]
    papers = {id: (features["year"], tuple(features["words"])) for id, features in read["nodes.paper"]}
    assert papers == {id.decode(): (year, tuple(w.decode() for w in words)) for id, (year, words) in world.nodes["paper"].items()}
    edges = sorted((s, t, f["#time"], f["#weight"], (f["position"],)) for s, t, f in read["edges.written"])
    assert edges == sorted((s.decode(), t.decode(), *rest) for s, t, *rest in world.edges["written"])
