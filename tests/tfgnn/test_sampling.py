"""Samples of tables beside the plain reference, and the chance of each edge beside its probability."""

import itertools
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import structlog

from streamd.errors import TFGNNError
from streamd.tfgnn.beam.blocks import SampleArrivals, TableFile, bucket_of, read_file
from streamd.tfgnn.beam.steps import Plan, join_rows
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import read_records
from streamd.tfgnn.sampling.draws import (
    RANDOM_UNIFORM,
    RANDOM_WEIGHTED,
    draw_edges,
    draw_keys,
    hash_strings,
    sum_weights,
)
from streamd.tfgnn.sampling.run import plan_run, sample_tables
from streamd.tfgnn.schema.schema import is_reversed, read_schema
from tests.tfgnn import plain_sampler
from tests.tfgnn.sampled_world import OPS, World

GOLDEN = Path(__file__).parent / "golden"


def run(world, output, **options):
    """Sample a world; returns {(sample id, seed id): graph}."""
    planned = plan_run(world.path / "graph.pbtxt", world.path / "spec" / "spec.pbtxt", output, **options)
    sample_tables(planned)
    codec = Codec(read_schema(output.parent / "schema.pbtxt"))
    graphs = list(codec.read(output))
    found = {(g.context["sample_id"][0], g.context["seed_id"][0]): g for g in graphs}
    assert len(found) == len(graphs)
    return found


def same(graph, world, want):
    """Whether a graph is what the reference says, in its order."""
    nodes, edges = want
    ids = {**nodes, "author": nodes["author"]}
    papers = graph.node_sets["paper"]
    assert papers.features["#id"].tolist() == ids["paper"]
    table = world.nodes["paper"]
    assert papers.features["year"].tolist() == [table[id][0] for id in ids["paper"]]
    assert papers.features["words"].tolist() == [list(table[id][1]) for id in ids["paper"]]
    assert graph.node_sets["author"].features["#id"].tolist() == ids["author"]
    assert graph.node_sets["topic"].features["#id"].tolist() == ids["topic"]
    for name, (source, target) in world.sets.items():
        one = graph.edge_sets[name]
        features = [(p,) for p in one.features["position"].tolist()] if name == "written" else [()] * len(one.source_E)
        ours = [(ids[source][s], ids[target][t], f) for s, t, f in zip(one.source_E, one.target_E, features, strict=True)]
        assert ours == edges[name]


@pytest.mark.parametrize("aggregation", ["edge", "node"])
@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_samples_are_those_of_the_plain_reference(tmp_path, seed, is_timed, aggregation):
    world = World(tmp_path / "in", seed)
    draw = random.Random(seed)
    # Papers without a row, and nodes that nothing names, are seeds too; some come twice.
    rows = [(id, draw.randrange(22)) for id in [*world.nodes["paper"], b"p0", b"p0", b"p29", b"nobody"]]
    got = run(world, tmp_path / "out" / "s.tfrecord@3", seeds=world.seeds(rows, is_timed), aggregation=aggregation, seed=seed)
    assert len(got) == len(rows)
    counted = {}
    for id, until in sorted(rows, key=lambda row: (row[0], row[1] if is_timed else 0)):
        nth = counted[id] = counted.get(id, -1) + 1
        want = plain_sampler.sample(world.nodes, world.edges, world.sets, "paper", world.ops, id, nth=nth, until=until if is_timed else None,
                                    seed=seed, aggregation=aggregation)
        graph = got[id + (b":%d" % nth if nth else b""), id]
        same(graph, world, want)
        if is_timed:
            assert graph.context["seed_time"].tolist() == [until]


def test_rows_in_other_orders_and_shards_give_the_same_bytes(tmp_path):
    world = World(tmp_path / "in", 1)
    run(world, tmp_path / "a" / "s.tfrecord@2")
    world.write("@4", random.Random(5))
    run(world, tmp_path / "b" / "s.tfrecord@2")
    run(world, tmp_path / "c" / "s.tfrecord@7")
    for i in range(2):
        name = f"s.tfrecord-0000{i}-of-00002"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(read_records(tmp_path / "a" / "s.tfrecord@2")) == sorted(read_records(tmp_path / "c" / "s.tfrecord@7"))


def test_another_seed_gives_other_samples(tmp_path):
    world = World(tmp_path / "in", 1)
    a, b = (run(world, tmp_path / str(seed) / "s.tfrecord", seed=seed) for seed in range(2))
    assert a.keys() == b.keys()
    assert any(a[k].edge_sets["cites"].target_E.tolist() != b[k].edge_sets["cites"].target_E.tolist() for k in a)


def test_the_peers_old_sampler_gives_the_same_samples(tmp_path):
    """Its own output for TOP_K, with tables and seeds of its own formats."""
    run_ = plan_run(GOLDEN / "unigraph_tfrecord", GOLDEN / "topk2.pbtxt", tmp_path / "s.tfrecord@2")
    sample_tables(run_)
    expected = json.loads((GOLDEN / "v1_edge_topk2" / "expected.json").read_text())["subgraphs"]
    graphs = list(Codec(read_schema(tmp_path / "schema.pbtxt")).read(tmp_path / "s.tfrecord@2"))
    assert len(graphs) == len(expected) == 10
    for graph in graphs:
        want = expected[graph.context["sample_id"][0].decode()]
        papers, cites = graph.node_sets["paper"], graph.edge_sets["cites"]
        ids = [id.decode() for id in papers.features["#id"]]
        assert ids == want["nodes"]["paper"]["ids_in_record_order"]
        for i, id in enumerate(ids):
            ours = {name: papers.features[name][i] for name in ("emb", "score", "title", "year")}
            wanted = want["nodes"]["paper"]["by_id"][id]
            assert {k: v.tolist() if k == "emb" else v.decode() if k == "title" else v for k, v in ours.items()} == wanted
        # What the file expects is by id.
        ours = [[ids[s], ids[t], {"weight": float(w)}] for s, t, w in zip(cites.source_E, cites.target_E, cites.features["weight"], strict=True)]
        assert sorted(ours, key=str) == sorted(want["edges"].get("cites", []), key=str)


def inclusion(strategy, size, weights, draws):
    """How often each edge of a node, and each set of edges, is taken."""
    count = len(weights)
    start, weight = np.array([0, count]), np.array(weights, np.float32)
    sums = np.empty(count)
    sum_weights(start, weight, sums)
    keys = draw_keys(3, "op", hash_strings([b"s%d" % i for i in range(draws)]), np.full(draws, hash_strings([b"n"])[0]))
    out, num = np.empty(draws * size, np.int64), np.empty(draws, np.int64)
    none = np.empty(0, np.int64)
    nodes, counts = np.zeros(draws, np.int64), np.full(draws, count)
    all_taken = draw_edges(strategy, size, start, weight, sums, none, nodes, counts, keys, np.zeros(count, np.uint8), out, num)
    sets = np.split(out[:all_taken], np.cumsum(num)[:-1])
    found = {}
    for one in sets:
        assert len(set(one.tolist())) == len(one)
        key = frozenset(one.tolist())
        found[key] = found.get(key, 0) + 1
    return found


def probabilities(strategy, size, weights):
    """Of each set of edges, by enumerating all orders in which they can be drawn."""
    found = {}
    for order in itertools.permutations(range(len(weights)), size):
        p, rest = 1.0, sum(weights)
        for i in order:
            p *= weights[i] / rest
            rest -= weights[i]
        found[frozenset(order)] = found.get(frozenset(order), 0) + p
    return found


@pytest.mark.parametrize(("strategy", "size", "weights"), [
    (RANDOM_UNIFORM, 2, [1, 1, 1, 1, 1]),
    (RANDOM_UNIFORM, 3, [1, 1, 1, 1]),
    (RANDOM_WEIGHTED, 1, [1, 2, 3.5]),
    (RANDOM_WEIGHTED, 2, [1, 2, 3, 4]),
    (RANDOM_WEIGHTED, 3, [0.5, 0.5, 1, 2, 4]),
    # One edge has nearly all weight, so that draws hit it again and again and the rest is summed up.
    (RANDOM_WEIGHTED, 3, [1, 2, 2000, 3]),
])
def test_each_set_of_edges_is_drawn_as_often_as_its_probability_says(strategy, size, weights):
    draws = 60_000
    got, want = inclusion(strategy, size, weights, draws), probabilities(strategy, size, weights)
    assert abs(sum(want.values()) - 1) < 1e-12 and got.keys() <= want.keys()
    # Pearson's statistic; its 99.99 % bounds for these degrees of freedom are below 2 * k + 25.
    statistic = sum((got.get(key, 0) - draws * p) ** 2 / (draws * p) for key, p in want.items())
    assert statistic < 2 * len(want) + 25


def test_edges_of_weight_0_are_never_drawn():
    assert set(inclusion(RANDOM_WEIGHTED, 3, [0, 1, 0, 2], 100)) == {frozenset({1, 3})}
    assert set(inclusion(RANDOM_WEIGHTED, 4, [0, 1, 0, 2], 100)) == {frozenset({1, 3})}
    assert set(inclusion(RANDOM_WEIGHTED, 1, [0, 0], 5)) == {frozenset()}


def refused(world, tmp_path, words, **options):
    with pytest.raises(TFGNNError, match=words):
        run(world, tmp_path / "out" / "s.tfrecord", **options)


def test_what_an_operation_goes_by_must_be_there(tmp_path):
    world = World(tmp_path / "in", 1)
    has = world.path / "has.csv"
    rows = [line.split(",") for line in has.read_text().splitlines()]
    has.write_text("\n".join(",".join(row[:2]) for row in rows))
    world.ops = [(*op[:4], "RANDOM_WEIGHTED" if op[0] == "on" else op[4]) for op in OPS]
    world.write_spec()
    refused(world, tmp_path, "'on' has the strategy RANDOM_WEIGHTED, and edge set 'has' has no #weight")
    world.ops = OPS
    world.write_spec()
    has.write_text("\n".join(",".join(row[:3]) for row in rows))
    seeds = world.seeds([(b"p0", 3)], True)
    refused(world, tmp_path, "seeds have times, and edge set 'has' has no #time", seeds=seeds)
    run(world, tmp_path / "out" / "s.tfrecord")


@pytest.mark.parametrize("is_timed", [False, True])
def test_without_weights_top_k_takes_all_as_equal_and_warns_once(tmp_path, is_timed, capsys):
    world = World(tmp_path / "in", 1)
    world.ops = [*OPS[:-1], ("on", ("seed",), "has", 2, "TOP_K"), ("too", ("hop",), "has", 1, "TOP_K")]
    world.write_spec()
    has = world.path / "has.csv"
    rows = [line.split(",") for line in has.read_text().splitlines()]
    at = rows[0].index("#weight")
    has.write_text("\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows))
    world.edges["has"] = [(s, t, time, 1.0, f) for s, t, time, _, f in world.edges["has"]]
    seeds = [(id, 9) for id in world.nodes["paper"]]
    got = run(world, tmp_path / "out" / "s.tfrecord@2", seeds=world.seeds(seeds, is_timed), processes=2)
    for id, until in seeds:
        want = plain_sampler.sample(world.nodes, world.edges, world.sets, "paper", world.ops, id, until=until if is_timed else None)
        same(got[id, id], world, want)
    told = capsys.readouterr().out
    assert told.count("tfgnn_top_k_without_weights") == 1 and "'on', 'too'" in told


def test_weights_in_some_files_of_a_table_alone_are_refused(tmp_path):
    world = World(tmp_path / "in", 1, shards="@2")
    one = world.path / "writes.csv-00001-of-00002"
    rows = [line.split(",") for line in one.read_text().splitlines()]
    at = rows[0].index("#weight")
    one.write_text("\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows))
    refused(world, tmp_path, "writes.csv-00001-of-00002 row 1: there is no #weight, and other files of the table have one")


@pytest.mark.parametrize("weight", ["-1", "nan", "inf"])
def test_a_weight_that_is_no_weight_is_refused(tmp_path, weight):
    world = World(tmp_path / "in", 1)
    with (world.path / "has.csv").open("a") as file:
        file.write(f"p0,t0,{weight},1\n")
    row = len(world.edges["has"]) + 1
    refused(world, tmp_path, rf"has.csv row {row}: its weight is {float(weight)}; weights are finite")
    # A worker of a pipeline says the same, where it reads the file.
    one = world.schema.edge_sets["has"]
    with pytest.raises(TFGNNError, match=rf"has.csv row {row}: its weight is"):
        list(read_file(TableFile("edges", "has", world.path / "has.csv", one), 8))


def test_an_id_that_a_table_has_twice_is_refused(tmp_path):
    world = World(tmp_path / "in", 1)
    with (world.path / "author.csv").open("a") as file:
        file.write("a3\n")
    lines = (world.path / "author.csv").read_text().split()
    words = rf"author.csv row {len(lines) - 1}: the id 'a3' occurs twice, first in .*author.csv row {lines.index('a3')}\."
    refused(world, tmp_path, words)
    one = world.schema.node_sets["author"]
    bucket = [block for key, block in read_file(TableFile("nodes", "author", world.path / "author.csv", one), 1)]
    plan = Plan(schema=world.schema, spec=world.spec, has={}, seed=0, is_timed=False, buckets=1, output=tmp_path / "s.tfrecord", run_id="run")
    with pytest.raises(TFGNNError, match=words):
        list(join_rows((0, bucket), plan))


def test_edges_and_seeds_without_a_row_are_counted(tmp_path):
    """p28 and p29 are in no table of papers; topics have none."""
    world = World(tmp_path / "in", 1)
    without = {b"p28", b"p29"}
    with structlog.testing.capture_logs() as logs:
        run(world, tmp_path / "out" / "s.tfrecord", seeds=world.seeds([(b"p0", 0), (b"p29", 0), (b"p29", 0), (b"nobody", 0)], False))
    said = {(log["event"], log.get("edge_set", log.get("node_set"))): log for log in logs}
    cites, has = ([bool(without & {s, *([t] if name == "cites" else [])}) for s, t, *_ in world.edges[name]] for name in ("cites", "has"))
    of = said["tfgnn_edges_omitted", "cites"]
    assert 0 < of["edges"] == sum(cites) < of["of"] == len(cites) and re.fullmatch(r".*cites.tfrecord record \d+: 'p\d+' to 'p\d+'", of["example"])
    assert said["tfgnn_edges_omitted", "has"]["edges"] == sum(has)
    seeds = said["tfgnn_seeds_without_row", "paper"]
    assert (seeds["nodes"], seeds["example"]) == (2, "'nobody'") and len(logs) == 4
    # Where all are there, nothing is said.
    world.nodes["paper"] |= dict.fromkeys(without, (1900, ()))
    world.write()
    with structlog.testing.capture_logs() as logs:
        run(world, tmp_path / "all" / "s.tfrecord")
    assert logs == []


def test_a_pipeline_counts_nodes_without_a_row_once_however_often_a_bucket_is_joined(tmp_path):
    world = World(tmp_path / "in", 1)
    plan = Plan(schema=world.schema, spec=world.spec, has={}, seed=0, is_timed=False, buckets=2, output=tmp_path / "s.tfrecord", run_id="run")
    file = TableFile("nodes", "paper", world.path / "paper.tfrecord", world.schema.node_sets["paper"])
    buckets = [[], []]
    for key, block in read_file(file, 2):
        buckets[key].append(block)
    for op, ids in (("seed", [b"p0", b"nobody"]), ("hop", [b"p1", b"p28", b"p29"])):
        for id, key in zip(ids, bucket_of(ids, 2).tolist(), strict=True):
            buckets[key].append(SampleArrivals(op, [b"0:p0"], np.array([9]), [id], np.array([0]), np.array([0])))
    (tmp_path / ".another.missing-0").write_text("[]")
    for _ in range(2):
        for key, blocks in enumerate(buckets):
            list(join_rows((key, blocks), plan))
    assert [found[:3] for found in plan.read_missing()] == [("paper", False, 2), ("paper", True, 1)]
    assert plan.read_missing()[1][3] == "'nobody'"


def test_a_stopped_run_goes_on_and_another_one_does_not(tmp_path):
    world = World(tmp_path / "in", 1)
    whole = run(world, tmp_path / "whole" / "s.tfrecord@4")
    out = tmp_path / "out" / "s.tfrecord@4"
    planned = plan_run(world.path, world.path / "spec" / "spec.pbtxt", out)

    class Stop(Exception):
        pass

    def stop(what, done, total):
        if what == "sampling" and done > total / 4:
            raise Stop

    with pytest.raises(Stop):
        sample_tables(planned, stop)
    there = [p for p in out.parent.iterdir() if not p.name.startswith(".")]
    assert 0 < len(there) < 4
    with pytest.raises(TFGNNError, match="from another run"):
        sample_tables(plan_run(world.path, world.path / "spec" / "spec.pbtxt", out, seed=9))
    times = [p.stat().st_mtime_ns for p in there]
    total, kept = sample_tables(planned)
    assert total == len(whole) and 0 < kept < total and times == [p.stat().st_mtime_ns for p in there]
    for i in range(4):
        name = f"s.tfrecord-0000{i}-of-00004"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    with pytest.raises(TFGNNError, match="or a finished one"):
        sample_tables(planned)


def test_the_schema_is_not_overwritten(tmp_path):
    world = World(tmp_path / "in", 1)
    (world.path / "graph.pbtxt").rename(world.path / "schema.pbtxt")
    with pytest.raises(TFGNNError, match="would be written over"):
        plan_run(world.path, world.path / "spec" / "spec.pbtxt", world.path / "s.tfrecord")


def test_an_empty_table_and_a_spec_without_operations_are_sampled(tmp_path):
    world = World(tmp_path / "in", 1)
    for name in ("has.csv", "writes.csv"):
        path = world.path / name
        path.write_text(path.read_text().splitlines()[0] + "\n")
    got = run(world, tmp_path / "a" / "s.tfrecord", seeds=world.seeds([(b"p0", 5)], True))
    assert got[b"p0", b"p0"].node_sets["topic"].num == got[b"p0", b"p0"].edge_sets["written"].sizes_C[0] == 0
    world.ops = []
    world.write()
    for aggregation in ("edge", "node"):
        got = run(world, tmp_path / aggregation / "s.tfrecord", aggregation=aggregation)
        assert {g.node_sets["paper"].num for g in got.values()} == {1} and len(got) == len(world.nodes["paper"])
    assert run(world, tmp_path / "none" / "s.tfrecord@2", seeds=world.seeds([], False)) == {}


def rewrite(world, change):
    graph = world.path / "graph.pbtxt"
    graph.write_text(change(graph.read_text()))


def test_sets_that_cannot_be_read_are_refused_by_name(tmp_path):
    world = World(tmp_path / "in", 1)
    whole = (world.path / "graph.pbtxt").read_text()
    rewrite(world, lambda text: text.replace('filename: "has.csv"', 'bigquery { sql: "SELECT 1" }'))
    refused(world, tmp_path, "'has' is in BigQuery")
    (world.path / "graph.pbtxt").write_text(whole.replace('filename: "has.csv"', ""))
    refused(world, tmp_path, "'has' has no table")
    (world.path / "graph.pbtxt").write_text(whole.replace('filename: "paper.tfrecord"', ""))
    refused(world, tmp_path, "'paper' has no table to take all seeds of")
    refused(world, tmp_path, "Node set 'paper' has the feature 'words' and no table", seeds=world.seeds([(b"p0", 0)], False))
    (world.path / "graph.pbtxt").write_text(whole.replace("has.csv", "hass.csv"))
    refused(world, tmp_path, "hass.csv is not a file")


def test_seeds_that_are_links_are_refused_by_name(tmp_path):
    world = World(tmp_path / "in", 1)
    rewrite(world, lambda text: text + """node_sets { key: "_readout" value {} }
        edge_sets { key: "_readout/source" value { source: "_readout" target: "paper" } }
        edge_sets { key: "_readout/target" value { source: "_readout" target: "paper" } }""")
    (world.path / "spec" / "spec.pbtxt").write_text('symmetric_link_seed_op { op_name: "links" }')
    refused(world, tmp_path, "'links' is a symmetric_link_seed_op: this command samples nodes only")


def test_the_specs_of_the_guide_run_where_its_reversed_set_is_there(tmp_path):
    """Its schema lacks the set `written` that its spec names."""
    spec = (
        'seed_op { op_name: "seed" node_set_name: "paper" }'
        'sampling_ops { op_name: "seed->paper" input_op_names: "seed" edge_set_name: "cites" sample_size: 32 strategy: RANDOM_UNIFORM }'
        'sampling_ops { op_name: "paper->author" input_op_names: [ "seed", "seed->paper" ] edge_set_name: "written" sample_size: 8'
        '  strategy: RANDOM_UNIFORM }'
        'sampling_ops { op_name: "author->paper" input_op_names: "paper->author" edge_set_name: "writes" sample_size: 16'
        '  strategy: RANDOM_UNIFORM }'
        'sampling_ops { op_name: "author->institution" input_op_names: "paper->author" edge_set_name: "affiliated_with" sample_size: 16'
        '  strategy: RANDOM_UNIFORM }')
    (tmp_path / "spec.pbtxt").write_text(spec)
    sample_tables(plan_run(GOLDEN / "unigraph_csv", tmp_path / "spec.pbtxt", tmp_path / "out" / "s.tfrecord"))
    graphs = list(Codec(read_schema(tmp_path / "out" / "schema.pbtxt")).read(tmp_path / "out" / "s.tfrecord"))
    assert len(graphs) == 10 and any(g.node_sets["institution"].num for g in graphs)
    text = (GOLDEN / "unigraph_csv" / "graph.pbtxt").read_text()
    i, j = text.index('edge_sets { key: "written"'), text.index('edge_sets { key: "affiliated_with"')
    (tmp_path / "graph.pbtxt").write_text(text[:i] + text[j:])
    # The set that is told is the one to add.
    with pytest.raises(TFGNNError, match="'paper->author': the edge set 'written' is not in the schema.* add the reverse of 'writes'") as error:
        plan_run(tmp_path / "graph.pbtxt", tmp_path / "spec.pbtxt", tmp_path / "s.tfrecord")
    added = str(error.value).partition("features: ")[2]
    (tmp_path / "graph.pbtxt").write_text(text[:i] + added + text[j:])
    made = plan_run(tmp_path / "graph.pbtxt", tmp_path / "spec.pbtxt", tmp_path / "s.tfrecord", data_path=GOLDEN / "unigraph_csv").schema
    one, want = made.edge_sets["written"], read_schema(GOLDEN / "unigraph_csv").edge_sets["written"]
    assert (one.source, one.target, one.metadata.filename) == (want.source, want.target, want.metadata.filename) and is_reversed(one)


def test_a_killed_run_goes_on_to_the_same_files(tmp_path):
    world = World(tmp_path / "in", 1, num=700, num_edges=900)
    whole, out = tmp_path / "whole" / "s.tfrecord@60", tmp_path / "out" / "s.tfrecord@60"
    sample_tables(plan_run(world.path, world.path / "spec" / "spec.pbtxt", whole))
    command = [sys.executable, "-m", "streamd", "tfgnn", "sample", "--graph_schema", world.path, "--sampling_spec",
               world.path / "spec" / "spec.pbtxt", "--output_samples", out]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.parent.glob("s.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    there = {path: path.stat().st_mtime_ns for path in out.parent.glob("s.*")}
    assert 0 < len(there) < 60
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    assert all(path.stat().st_mtime_ns == at for path, at in there.items())
    assert {p.name: p.read_bytes() for p in whole.parent.iterdir()} == {p.name: p.read_bytes() for p in out.parent.iterdir()}
