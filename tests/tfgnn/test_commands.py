"""`streamd tfgnn`: its options, as ours and as TensorFlow GNN's sampler writes them."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError, TFGNNError
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import read_records
from streamd.tfgnn.schema.schema import read_schema
from tests.builders import stream, write_log
from tests.tfgnn.sampled_world import World

GOLDEN = Path(__file__).parent / "golden"


def streamd(*words):
    done = CliRunner().invoke(app, ["tfgnn", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_options_may_be_written_as_the_peer_writes_them(tmp_path):
    tables, spec, seeds = GOLDEN / "unigraph_csv", GOLDEN / "topk2.pbtxt", GOLDEN / "unigraph_csv" / "seeds.csv"
    code, text = streamd("sample", f"--graph_schema={tables / 'graph.pbtxt'}", "--sampling_spec", spec, "--input_seeds", seeds, "--output_samples",
                         tmp_path / "a" / "s.tfrecord@2", "--edge_aggregation_method", "edge", "--data_path", tables)
    assert code == 0 and "3 samples in" in text
    code, text = streamd("sample", "--graph-schema", tables, "--sampling-spec", spec, "--seeds", seeds, "--output", tmp_path / "b" / "s@2.tfrecord")
    assert code == 0
    both = [[*read_records(tmp_path / name)] for name in ("a/s.tfrecord@2", "b/s@2.tfrecord")]
    assert both[0] == both[1] and len(both[0]) == 3
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["s-00000-of-00002.tfrecord", "s-00001-of-00002.tfrecord", "schema.pbtxt"]


def test_an_unknown_option_is_an_error_without_a_runner_to_take_it(tmp_path):
    given = ["--graph-schema", GOLDEN / "unigraph_csv", "--sampling-spec", GOLDEN / "topk2.pbtxt", "--output", tmp_path / "s.tfrecord"]
    with pytest.raises(SettingsError, match="--seedz=x is unknown: only with --runner"):
        streamd("sample", *given, "--seedz=x")
    with pytest.raises(TFGNNError, match="edge aggregation 'nodes' is unknown"):
        streamd("sample", *given, "--edge-aggregation-method", "nodes")
    with pytest.raises(TFGNNError, match="DaskRunner is refused"):
        streamd("sample", *given, "--runner", "DaskRunner")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("output", "words"), [
    ("file/s.tfrecord", "a file has its name"), ("file/deep/s.tfrecord@2", "Not a directory"), ("new/", "'[^']*new/' is a folder"),
    ("new/.", "is a folder"), ("dir", "is a folder"), ("dir/s/..", "is a folder")])
@pytest.mark.parametrize("command", ["sample", "random", "export"])
def test_an_output_that_cannot_be_a_file_is_refused_and_nothing_is_written(tmp_path, monkeypatch, command, output, words):
    (tmp_path / "file").touch()
    (tmp_path / "dir").mkdir()
    tables, spec = GOLDEN / "unigraph_csv", tmp_path / "spec.pbtxt"
    spec.write_text('symmetric_link_seed_op { op_name: "ends" }')
    write_log(tmp_path / "log", *stream(20))
    given = {"sample": ["--graph-schema", tables, "--sampling-spec", GOLDEN / "topk2.pbtxt", "--output"],
             "random": ["--graph-schema", tables, "--count", 2, "--output"], "export": ["--data-dir", tmp_path / "log", "--samples", spec]}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TFGNNError, match=words):
        streamd(command, *given[command], f"{tmp_path}/{output}")
    assert sorted(tmp_path.rglob("*")) == before


def test_tables_go_into_a_folder_that_can_be_made(tmp_path):
    (tmp_path / "file").touch()
    write_log(tmp_path / "log", *stream(20))
    with pytest.raises(TFGNNError, match="Not a directory"):
        streamd("export", tmp_path / "file" / "out", "--data-dir", tmp_path / "log")
    assert streamd("export", f"{tmp_path}/out/", "--data-dir", tmp_path / "log")[0] == 0
    assert (tmp_path / "out" / "graph.pbtxt").is_file()


def test_a_refused_run_leaves_nothing(tmp_path):
    world = World(tmp_path / "in", 1)
    spec = world.path / "spec" / "spec.pbtxt"
    with (world.path / "has.csv").open("a") as file:
        file.write("p0,t0,-1,1\n")
    for output in (tmp_path / "new" / "s.tfrecord@2", tmp_path / "s.tfrecord"):
        with pytest.raises(TFGNNError, match="its weight is -1"):
            streamd("sample", "--graph-schema", world.path, "--sampling-spec", spec, "--output", output)
    write_log(tmp_path / "log", *stream(20))
    link_spec = tmp_path / "link.pbtxt"
    link_spec.write_text('symmetric_link_seed_op { op_name: "ends" } sampling_ops { op_name: "a" input_op_names: "ends" edge_set_name: "default" '
                         'sample_size: 1 strategy: RANDOM_WEIGHTED }')
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TFGNNError, match="RANDOM_WEIGHTED"):
        streamd("export", tmp_path / "l.tfrecord", "--samples", link_spec, "--data-dir", tmp_path / "log")
    assert sorted(tmp_path.iterdir()) == before == sorted(tmp_path / name for name in ("in", "link.pbtxt", "log"))


def test_a_thousand_random_graphs_are_written(tmp_path):
    code, text = streamd("random", "--graph-schema", GOLDEN / "unigraph_csv", "--output", tmp_path / "g.tfrecord@3")
    assert code == 0 and "1,000 graphs" in text
    graphs = list(Codec(read_schema(GOLDEN / "unigraph_csv")).read(tmp_path / "g.tfrecord@3"))
    assert len(graphs) == 1000 and len({g.node_sets["paper"].num for g in graphs}) > 3


def test_tables_are_sampled_without_what_only_a_stream_needs(tmp_path):
    """Workers of Beam are installed without a Kafka client."""
    world = World(tmp_path / "in", 1)
    command = [str(w) for w in ("tfgnn", "sample", "--graph_schema", world.path, "--sampling_spec", world.path / "spec" / "spec.pbtxt",
                                "--output_samples", tmp_path / "out" / "s.tfrecord")]
    code = f"import sys; sys.modules['kafka'] = None; from streamd.cli.main import app; app({command!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
