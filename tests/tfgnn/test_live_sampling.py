"""Samples of a log beside the plain reference, and beside those of the tables of the same log."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from streamd.clock import SystemClock
from streamd.errors import SettingsError, TFGNNError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.exchange.load import open_loader
from streamd.exchange.produce import Outgoing
from streamd.settings.loading import schema_of
from streamd.tfgnn.logs.declared import declared_sets
from streamd.tfgnn.logs.log_rows import LogCut, LogRows
from streamd.tfgnn.logs.sampling_run import LogSource, plan_log_run, sample_log
from streamd.tfgnn.logs.table_export import TableOptions, export_tables
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import read_records
from streamd.tfgnn.sampling.run import plan_run, sample_tables
from streamd.tfgnn.sampling.seeds import name_samples
from streamd.tfgnn.sampling.shard_writing import write_shards
from streamd.tfgnn.schema.schema import read_schema
from tests.builders import compact, settings
from tests.tfgnn import plain_sampler
from tests.tfgnn.live_world import BEGIN, OPS, SETS, LiveWorld, spelled
from tests.tfgnn.test_tables import streamd, write


def graphs_of(output):
    graphs = list(Codec(read_schema(output.parent / "schema.pbtxt")).read(output))
    found = {(g.context["sample_id"][0], g.context["seed_id"][0]): g for g in graphs}
    assert len(found) == len(graphs)
    return found


def files(folder):
    """The bytes of the files of a run; nothing else may be left."""
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def append(world, events):
    """Write further events, as a daemon does."""
    with open_loader(world.settings, SystemClock(), "events") as loader:
        loader.rows(Outgoing(b"", json.dumps(e).encode(), e.get("time"), n) for n, e in enumerate(events, 10**6))


def later(world):
    """Events after those of a world: also of nodes that it does not have, and of its last moment."""
    yield {"type": "node", "node_set": "user", "id": "u1", "features": {"age": 99, "country": "de"}}
    yield {"edge_set": "views", "src": "new", "dst": "i1", "time": world.time, "features": {"weight": 9, "agent": "a"}}
    for i in range(200):
        yield {"edge_set": "views", "src": "u1", "dst": "i2", "time": world.time + i, "features": {"weight": 9, "agent": "a"}}


@pytest.mark.parametrize("aggregation", ["edge", "node"])
@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_samples_are_those_of_the_plain_reference(tmp_path, seed, is_timed, aggregation):
    world = LiveWorld(tmp_path / "in", seed)
    draw = random.Random(seed)
    # Before all, at and behind times of events, after all; a deleted node and one that was never there; some twice.
    times = [0, BEGIN, *draw.sample(world.times(), 8), world.time, world.time + 1, 2**62]
    times += [t + 1 for t in times[2:6]]
    ids = [b"u0", b"u0", b"u0", b"u1", b"u2", b"u3", b"7", b"8", b"nobody", *(b"u%d" % i for i in range(9))]
    rows = [(id, draw.choice(times)) for id in ids] + [(b"u0", t) for t in times]
    world.run(tmp_path / "out" / "s.tfrecord@3", seeds=world.seeds(rows, is_timed), aggregation=aggregation, seed=seed)
    got = graphs_of(tmp_path / "out" / "s.tfrecord@3")
    assert len(got) == len(rows)
    counted, changed = {}, set()
    for id, until in sorted(rows, key=lambda row: (row[0], row[1] if is_timed else 0)):
        nth = counted[id] = counted.get(id, -1) + 1
        until = until if is_timed else None
        nodes, edges = world.plain(until)
        want = plain_sampler.sample(nodes, edges, SETS, "user", OPS, id, nth=nth, until=until, seed=seed, aggregation=aggregation)
        graph = got[id + (b":%d" % nth if nth else b""), id]
        assert spelled(graph) == ({n: [(i, nodes[n][i]) for i in found] for n, found in want[0].items()}, want[1])
        changed.add(nodes["user"].get(id))
        if is_timed:
            assert graph.context["seed_time"].tolist() == [until]
    # Features did change in between, and samples were not all empty.
    assert not is_timed or len(changed) > 8


def tables_of(world, folder, until=None):
    source = world.source(end_us=until)
    export_tables(LogRows(source.log, source.declared, source.cut()), folder, TableOptions(with_reverse=True, shards=2))
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_a_log_and_its_tables_give_the_same_bytes(tmp_path, seed):
    world = LiveWorld(tmp_path / "in", seed)
    draw = random.Random(seed)
    for until in (None, draw.choice(world.times()[30:]), BEGIN):
        tables = tables_of(world, tmp_path / f"tables {until}", until)
        # Every node, some nodes, and nodes as of the time that the tables are of.
        some = world.seeds([(b"u1", 0), (b"nobody", 0), (b"8", 0)], False)
        of_time = world.seeds([(id, until) for id in (b"u0", b"u1", b"u1", b"nobody")], True, "timed.csv")
        for name, seeds, end in (("every", None, until), ("some", some, until), ("timed", of_time, until if until == BEGIN else None))[: 2 + (until is not None)]:
            a, b = (tmp_path / f"{name} {until} {which}" / "s.tfrecord@2" for which in "ab")
            source = world.source(end_us=end)
            sample_log(plan_log_run(source.declared, world.spec, a, with_reverse=True, seeds=seeds, seed=seed), source)
            sample_tables(plan_run(tables, world.spec, b, seeds=seeds, seed=seed))
            assert files(a.parent) == files(b.parent)
            assert len(list(read_records(a))) == (len(world.plain(until)[0]["user"]) if seeds is None and until is None else len(list(read_records(b))))


def test_processes_change_nothing(tmp_path):
    world = LiveWorld(tmp_path / "in", 1)
    seeds = world.seeds([(f"u{i % 9}".encode(), BEGIN + i) for i in range(2000)], True)
    for processes in (1, 2, 5):
        world.run(tmp_path / str(processes) / "s.tfrecord@2", seeds=seeds, processes=processes)
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "5")
    tables = tables_of(world, tmp_path / "tables")
    for processes in (1, 3):
        sample_tables(plan_run(tables, world.spec, tmp_path / f"t{processes}" / "s.tfrecord@2", seeds=seeds, processes=processes))
    assert files(tmp_path / "t1") == files(tmp_path / "t3")


class Stop(Exception):
    pass


def stopped(world, output, **options):
    """Run until a shard of four is there."""
    def stop(what, done, total):
        if what == "sampling" and done > total / 3:
            raise Stop

    with pytest.raises(Stop):
        world.run(output, stop, **options)
    assert 0 < len([p for p in output.parent.iterdir() if not p.name.startswith(".")]) < 4


def test_a_stopped_run_goes_on_with_the_log_as_it_was(tmp_path):
    world = LiveWorld(tmp_path / "in", 1)
    world.run(tmp_path / "whole" / "s.tfrecord@4")
    out = tmp_path / "out" / "s.tfrecord@4"
    stopped(world, out)
    append(world, later(world))
    with pytest.raises(TFGNNError, match="from another run"):
        world.run(out, seed=5)
    total, kept = world.run(out)
    assert 0 < kept < total and files(out.parent) == files(tmp_path / "whole")
    # A run that begins now sees what came.
    assert world.run(tmp_path / "now" / "s.tfrecord@4")[0] == total + 1
    with pytest.raises(TFGNNError, match="or a finished one"):
        world.run(out)


def test_deletes_that_came_meanwhile_end_a_stopped_run(tmp_path):
    world = LiveWorld(tmp_path / "in", 1)
    out = tmp_path / "out" / "s.tfrecord@4"
    stopped(world, out)
    append(world, [{"type": "delete", "node_set": "user", "node": "u1"}])
    with pytest.raises(TFGNNError, match="1 more deletes than when the run began.*remove its shards"):
        world.run(out)
    # Without shards it begins anew.
    for path in out.parent.glob("s.*"):
        path.unlink()
    world.run(out)
    assert (b"u1", b"u1") not in graphs_of(out)


def test_events_that_retention_dropped_meanwhile_end_a_stopped_run(tmp_path):
    world = LiveWorld(tmp_path / "in", 1)
    out = tmp_path / "out" / "s.tfrecord@4"
    stopped(world, out)
    writer = LogWriter(world.settings.data_dir, schema_of(world.settings), world.settings.ingest.segment_edges)
    writer.drop_before(90)
    writer.close()
    with pytest.raises(TFGNNError, match="90 more events dropped by retention"):
        world.run(out)
    # What is left is sampled; of features from before, nobody knows since when they were in force.
    oldest = int(LogReader.open(world.settings.data_dir).time_of(np.array([90]))[0])
    seeds = world.seeds([(b"u0", t) for t in (oldest, oldest + 1, world.time + 1)], True)
    world.run(tmp_path / "left" / "s.tfrecord", seeds=seeds)
    graphs = graphs_of(tmp_path / "left" / "s.tfrecord")
    ages = [graphs[id, b"u0"].node_sets["user"].features["age"][0] for id in (b"u0", b"u0:1", b"u0:2")]
    before = [graphs[id, b"u0"].node_sets["item"].num for id in (b"u0", b"u0:2")]
    assert ages[0] == 0 and ages[1] == world.plain(oldest + 1)[0]["user"][b"u0"][0] > 0 and before[0] == 0 < before[1]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_goes_on_to_the_same_files_while_the_log_grows(tmp_path, processes):
    world = LiveWorld(tmp_path / "in", 2)
    seeds = world.seeds([(f"u{i % 9}".encode(), BEGIN + i) for i in range(6000)], True)
    whole, out = tmp_path / "whole" / "s.tfrecord@60", tmp_path / "out" / "s.tfrecord@60"
    world.run(whole, seeds=seeds)
    command = [sys.executable, "-m", "streamd", "tfgnn", "sample", "--sampling-spec", world.spec, "--seeds", seeds, "--output", out,
               "--reversed", "--config", tmp_path / "in" / "shop.yaml", "--data-dir", world.settings.data_dir, "--processes", str(processes)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.parent.glob("s.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    there = {path: path.stat().st_mtime_ns for path in out.parent.glob("s.*")}
    assert 0 < len(there) < 60
    append(world, later(world))
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "6,000 samples in" in done.stdout and "of them written before" in done.stdout and "sampling: 100 %" in done.stderr
    assert all(path.stat().st_mtime_ns == at for path, at in there.items())
    assert files(whole.parent) == files(out.parent)


def test_a_log_of_one_set_is_sampled(tmp_path):
    made = settings(tmp_path / "log", stream__edge_feature_dim=2, stream__node_feature_dim=3)
    rows = [("a", "b", 10), ("a", "c", 20), ("b", "c", 20), ("c", "a", 30)]
    events = [{"src": s, "dst": t, "time": at, "features": [at, 1]} for s, t, at in rows]
    events.insert(2, {"type": "node", "id": "a", "features": [1, 2, 3]})
    log = write(made, events)
    (tmp_path / "spec.pbtxt").write_text(
        'seed_op { op_name: "seed" node_set_name: "default" }'
        'sampling_ops { op_name: "hop" input_op_names: "seed" edge_set_name: "default" sample_size: 5 strategy: RANDOM_UNIFORM }')
    (tmp_path / "seeds.csv").write_text("id,time\na,20\na,21\na,31\n")
    source = LogSource(log=log, declared=declared_sets(made, log.state.schema))
    sample_log(plan_log_run(source.declared, tmp_path / "spec.pbtxt", tmp_path / "out" / "s.tfrecord", seeds=tmp_path / "seeds.csv"), source)
    graphs = graphs_of(tmp_path / "out" / "s.tfrecord")
    found = [(g.node_sets["default"].features["#id"].tolist(), g.node_sets["default"].features["features"].tolist()[0],
              g.edge_sets["default"].features["features"].tolist()) for g in graphs.values()]
    # The update came behind the edges of times 10 and 20.
    assert found == [([b"a", b"b"], [0, 0, 0], [[10, 1]]), ([b"a", b"b", b"c"], [1, 2, 3], [[10, 1], [20, 1]]),
                     ([b"a", b"b", b"c"], [1, 2, 3], [[10, 1], [20, 1]])]


def test_a_strategy_by_weight_needs_one(tmp_path):
    world = LiveWorld(tmp_path / "in", 1)
    world.write_spec([("x", ("seed",), "follows", 2, "RANDOM_WEIGHTED")])
    with pytest.raises(TFGNNError, match="'x' has the strategy RANDOM_WEIGHTED.*'follows' has no #weight"):
        world.run(tmp_path / "out" / "s.tfrecord")
    world.write_spec([("x", ("seed",), "rev_follows", 2, "LATEST_K")])
    missing = "'rev_follows' is not in the schema; there are follows, views; did you mean 'follows'.*give --reversed, and name 'rev_follows'"
    with pytest.raises(TFGNNError, match=missing):
        world.run(tmp_path / "out" / "s.tfrecord", with_reverse=False)
    world.write_spec([("x", ("seed",), "views", 2, "LATEST_K"), ("y", ("x",), "views", 2, "LATEST_K")])
    for with_reverse, advice in ((False, "give --reversed, and name 'rev_views', which is the reverse of 'views'"), (True, "name 'rev_views', the reverse")):
        with pytest.raises(TFGNNError, match=f"gives nodes of 'item', and its edge set 'views' begins at 'user'.*{advice}"):
            world.run(tmp_path / "out" / "s.tfrecord", with_reverse=with_reverse)
    append(world, [{"edge_set": "views", "src": "u1", "dst": "i1", "time": world.time, "features": {"weight": -1, "agent": "a"}}])
    world.write_spec()
    with pytest.raises(TFGNNError, match="Edge set 'rev_views', event [0-9]+: its weight is -1"):
        world.run(tmp_path / "out" / "s.tfrecord")


def test_compaction_changes_no_sample(tmp_path):
    """Rows that it overwrites point to a node whose id is newer than all others then."""
    world = LiveWorld(tmp_path / "in", 1)
    middle = world.times()[3]
    cut = world.source(end_us=middle).cut()
    assert cut.num_known < cut.num_nodes
    for name, end in (("a", None), ("am", middle)):
        source = world.source(end_us=end)
        sample_log(plan_log_run(source.declared, world.spec, tmp_path / name / "s.tfrecord", with_reverse=True), source)
    writer = LogWriter(world.settings.data_dir, schema_of(world.settings), world.settings.ingest.segment_edges)
    done = compact(writer)
    writer.close()
    assert done.edges > 0
    assert world.source(end_us=middle).cut().num_known == cut.num_known
    for name, end in (("b", None), ("bm", middle)):
        source = world.source(end_us=end)
        sample_log(plan_log_run(source.declared, world.spec, tmp_path / name / "s.tfrecord", with_reverse=True), source)
    assert files(tmp_path / "a") == files(tmp_path / "b") and files(tmp_path / "am") == files(tmp_path / "bm")


def test_another_log_in_the_place_of_a_runs_log_is_refused(tmp_path):
    world, other = LiveWorld(tmp_path / "in", 1), LiveWorld(tmp_path / "other", 1, num=100)
    cut = LogCut.of(world.log, world.log.num_edges)
    with pytest.raises(TFGNNError, match="is not the one that the run began with"):
        cut.check(other.log)
    cut.check(world.log)


def test_options_of_tables_and_of_a_log_do_not_mix(tmp_path):
    world = LiveWorld(tmp_path / "in", 1, num=60)
    given = ["tfgnn", "sample", "--sampling-spec", world.spec, "--output", tmp_path / "out" / "s.tfrecord"]
    with pytest.raises(SettingsError, match="--runner needs --graph-schema"):
        streamd(*given, "--runner", "DirectRunner", "--data-dir", world.settings.data_dir)
    with pytest.raises(SettingsError, match="--reversed is for a log, not for --graph-schema"):
        streamd(*given, "--graph-schema", tmp_path, "--reversed")
    end = str(np.datetime64(world.times()[-1], "us"))
    text = streamd(*given, "--data-dir", world.settings.data_dir, "--reversed", "--end", end, "--processes", 2)
    assert "samples in" in text
    want = {id for id in world.source(end_us=world.times()[-1]).log.keys if id is not None}
    assert 0 < len(graphs_of(tmp_path / "out" / "s.tfrecord")) <= len(want)


@pytest.mark.parametrize("end", ["killed", "refused"])
def test_a_process_that_ends_early_ends_the_run(tmp_path, end):
    def draw(samples):
        if len(samples.seed_ids) and samples.seed_ids[0] == b"n7":
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise TFGNNError("The node n7 is not well.", "mend it.")
        yield from samples.seed_ids

    parts = name_samples([b"n%d" % i for i in range(20)], [0] * 20).shards(9)
    shards = {tmp_path / str(i): part for i, part in enumerate(parts)}
    first = next(i for i, part in enumerate(parts) if b"n7" in part.seed_ids)
    parts[first] = shards[tmp_path / str(first)] = name_samples([b"n7"], [0])
    with pytest.raises(TFGNNError, match={"killed": "process that draws samples ended early", "refused": "The node n7 is not well.*mend it"}[end]):
        write_shards(shards, draw, set(), 2)
    assert not (tmp_path / str(first)).exists()
    assert write_shards({p: s for p, s in shards.items() if p.name != str(first)}, draw, {p for p in shards if p.exists()}, 3)[0] > 0
    assert {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")} == {str(i) for i in range(9) if i != first}
