"""What holds of the pipeline's steps without a runner; `tests/contracts/test_beam.py` runs it on Beam's."""

import dataclasses
import importlib.util
from collections import Counter

import numpy as np
import pytest

from streamd.errors import TFGNNError
from streamd.tfgnn.beam.blocks import (
    SampledEdges,
    SeedBlock,
    ShardSamples,
    TableFile,
    read_file,
)
from streamd.tfgnn.beam.pipeline import sample_with_beam
from streamd.tfgnn.beam.steps import (
    Plan,
    expand,
    levels,
    name_seeds,
    no_samples,
    write_shard,
)
from streamd.tfgnn.records.records import read_records, write_records
from streamd.tfgnn.records.shards import shard_paths
from streamd.tfgnn.sampling.draws import ENDLESS
from streamd.tfgnn.sampling.run import Marker, plan_run
from streamd.tfgnn.sampling.sampler import Has
from streamd.tfgnn.sampling.seeds import name_samples
from tests.tfgnn.sampled_world import World

HAS = dict.fromkeys(("cites", "written", "has"), Has(True, True))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "in", 1)


def planned(world, tmp_path):
    return plan_run(world.path, world.path / "spec" / "spec.pbtxt", tmp_path / "out" / "s.tfrecord@2")


@pytest.mark.parametrize("runner", ["DaskRunner", "daskrunner", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_a_runner_that_loses_branches_is_refused_by_name(world, tmp_path, runner):
    with pytest.raises(TFGNNError, match=f"{runner} is refused: it runs one branch"):
        sample_with_beam(planned(world, tmp_path), runner, [])


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="Apache Beam is there")
def test_without_beam_the_error_says_what_to_install(world, tmp_path):
    with pytest.raises(TFGNNError, match=r"streamd-gnn\[beam\]"):
        sample_with_beam(planned(world, tmp_path), "DirectRunner", [])


def test_each_row_goes_to_the_one_bucket_of_its_source(world):
    one = world.schema.edge_sets["cites"]
    bucket_of, rows = {}, Counter()
    for bucket, block in read_file(TableFile("edges", "cites", world.path / one.metadata.filename, one), 5):
        assert 0 <= bucket < 5
        for i, (source, target) in enumerate(zip(block.source, block.target, strict=True)):
            assert bucket_of.setdefault(source, bucket) == bucket
            rows[source, target, int(block.time[i]), float(block.weight[i])] += 1
    assert rows == Counter(edge[:4] for edge in world.edges["cites"]) and len(set(bucket_of.values())) > 1


def test_operations_run_at_the_level_behind_their_last_input(world):
    assert [[op.op_name for op in ops] for ops in levels(world.spec)] == [["hop"], ["hop 2"], ["by", "on"]]


def shard_plan(world, tmp_path):
    (tmp_path / "out").mkdir()
    return Plan(schema=world.schema, spec=world.spec, has=HAS, seed=0, is_timed=False, buckets=8, output=tmp_path / "out" / "s.tfrecord@2", run_id="run")


def test_a_shard_that_is_written_twice_is_there_once(world, tmp_path):
    """As where a worker was lost behind its last step: its rows come again."""
    plan = shard_plan(world, tmp_path)
    seeds = name_samples([b"p0", b"p1"], [int(ENDLESS)] * 2)
    blocks = [ShardSamples(seeds.handles, seeds.until_S), ShardSamples([], np.empty(0, np.int64))]
    assert [*write_shard((1, blocks), plan), *write_shard((1, blocks), plan)] == [2, 2]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["s.tfrecord-00001-of-00002"]
    assert len(list(read_records(shard_paths(plan.output)[1]))) == 2


def test_a_bucket_without_weights_is_refused_where_the_table_has_some(world, tmp_path):
    """As where the files of a table differ: no other bucket can see it."""
    plan = dataclasses.replace(shard_plan(world, tmp_path), buckets=1)
    one = world.schema.edge_sets["has"]
    (_, edges), = read_file(TableFile("edges", "has", world.path / "has.csv", one), 1)
    _, seeds = next(name_seeds((0, [SeedBlock([b"p0"], np.full(1, ENDLESS))]), plan))
    op = plan.spec.sampling_ops[-1]
    op.input_op_names[:] = ["seed"]
    bare = dataclasses.replace(edges, weight=None)
    with pytest.raises(TFGNNError, match="Edge set 'has': some files have #weight or #time"):
        list(expand((0, [seeds, bare]), plan, [op]))
    without = dataclasses.replace(plan, has={"has": Has(False, True)})
    walked = [b for _, b in expand((0, [seeds, bare]), without, [op]) if isinstance(b, SampledEdges)]
    assert sum(len(b.edge_P) for b in walked) == op.sample_size, "TOP_K without weights takes some"
    with pytest.raises(TFGNNError, match="Edge set 'has': there is no #weight, and other files"):
        list(expand((0, [seeds, bare, edges]), plan, [op]))


def test_a_shard_without_samples_is_written_too(world, tmp_path):
    plan = shard_plan(world, tmp_path)
    for shard, block in no_samples(plan):
        list(write_shard((shard, [block]), plan))
    assert [p.read_bytes() for p in shard_paths(plan.output)] == [b"", b""]


def test_a_run_that_lost_a_record_fails(world, tmp_path):
    run = planned(world, tmp_path)
    marker = Marker(run.output, run.state())
    with pytest.raises(TFGNNError, match="has 2 records for 3 seeds"), marker.begin() as done:
        assert done == set()
        write_records(run.output, [b"a", b"b"])
        marker.end(3)
    marker.end(2)
