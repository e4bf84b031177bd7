"""`streamd tfgnn`: its options, as ours and as TensorFlow GNN's sampler writes them."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli import app
from streamd.errors import SettingsError, TFGNNError
from streamd.exchange.tfgnn.examples import Codec
from streamd.exchange.tfgnn.records import read_records
from streamd.exchange.tfgnn.schema import read_schema
from tests.exchange.tfgnn.sampled_world import World

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
    with pytest.raises(SettingsError, match="--seedz=x is no option without --runner"):
        streamd("sample", *given, "--seedz=x")
    with pytest.raises(TFGNNError, match="edge aggregation 'nodes' is unknown"):
        streamd("sample", *given, "--edge-aggregation-method", "nodes")
    with pytest.raises(TFGNNError, match="DaskRunner is refused"):
        streamd("sample", *given, "--runner", "DaskRunner")
    assert list(tmp_path.iterdir()) == []


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
    code = f"import sys; sys.modules['kafka'] = None; from streamd.cli import app; app({command!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
