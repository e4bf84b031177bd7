"""Embeddings as a table are those of a server whose memory is where the version's is."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import StreamdError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.registry import Registry
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.serving_settings import ServingSettings
from tests.builders import batch, settings
from tests.table.logs import SHOP, delete, learn_shop, shop_log, shop_schema


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A shop of which tgn has learned all windows."""
    path = tmp_path_factory.mktemp("learned")
    shop_log(path)
    learn_shop(path, "tgn")
    return path


def served(path, name, nodes):
    """Reference: as a server with the whole log answers, before its memory has advanced."""
    s = settings(path, model__name="tgn", **SHOP)
    registry = Registry.of(s)
    version = registry.load(name)
    log = LogReader.open(path)
    view = ServerGraph(ServingSettings.of(s, "serve"), log, version.manifest.model_settings())
    while view.follow(answering=False):
        pass
    loaded = LoadedVersion.restored(version, log.state.schema)
    view.live.features = type(view.live.features)(log.state.schema, log.node_sets_of)
    for node, values, event in log.feature_updates().until(version.manifest.edge):
        view.live.features.take(node, values, event)
    return np.stack([loaded.embedding_of(node, view.live) for node in nodes])


def table_of(path, *args, **values):
    with streamd.open_log(path) as snapshot:
        return snapshot.embeddings(*args, **values).read_all()


def vectors(table):
    return np.stack(table["embedding"].to_numpy())


def test_embeddings_are_those_of_a_server(learned):
    with streamd.open_log(learned) as snapshot:
        versions = snapshot.versions().read_all().to_pylist()
        champion = snapshot.moves().read_all().to_pylist()[-1]["champion"]
    found = []
    for one in versions:
        if not one["is_servable"]:
            continue
        table = table_of(learned, one["version"])
        nodes = table["node"].to_pylist()
        assert set(table["version"].to_pylist()) == {one["version"]} and len(nodes) > 20 and 5 not in nodes, "node 5 is deleted"
        # A server embeds the nodes of one request together, so the last bits differ.
        np.testing.assert_allclose(vectors(table), served(learned, one["version"], nodes), rtol=1e-5, atol=1e-6)
        found.append(vectors(table)[:20])
    assert len(found) >= 2 and np.abs(found[0] - found[-1]).max() > 0.01, "versions differ"
    assert table_of(learned).equals(table_of(learned, champion))


def test_one_node_set_and_its_keys(learned):
    whole, items = table_of(learned), table_of(learned, node_set="item")
    is_item = [one == "item" for one in whole["node_set"].to_pylist()]
    assert items.num_rows == sum(is_item) == 15 and sorted(items["key_int"].to_pylist()) == list(range(15))
    np.testing.assert_allclose(vectors(items), vectors(whole)[is_item], rtol=1e-5, atol=1e-6)
    assert table_of(learned, columns=["key", "version"]).schema.names == ["key", "version"]


def test_nodes_that_came_after_a_version_have_no_embedding_by_it(tmp_path):
    shop_log(tmp_path)
    learn_shop(tmp_path, "tgn")
    before = table_of(tmp_path)
    writer = LogWriter(tmp_path, shop_schema(tmp_path), 250)
    writer.commit(batch(writer.schema, [35], [20], [writer.watermark], ["u:new"]), Progress(), writer.watermark)
    delete(writer, [7])
    writer.close()
    after = table_of(tmp_path)
    assert after["node"].to_pylist() == [node for node in before["node"].to_pylist() if node != 7]


def test_what_has_no_embeddings_is_named(shop, learned, tmp_path):
    with streamd.open_log(shop) as snapshot:
        with pytest.raises(StreamdError, match="of model pair has no embeddings.*such as tgn"):
            snapshot.embeddings()
        with pytest.raises(VersionError, match="There is no version 'x'.*streamd models list"):
            snapshot.embeddings("x")
    with streamd.open_log(learned) as snapshot, pytest.raises(StreamdError, match="no node set 'items'.*did you mean 'item'"):
        snapshot.embeddings(node_set="items")
    shop_log(tmp_path)
    with streamd.open_log(tmp_path) as snapshot, pytest.raises(VersionError, match="There is no version yet"):
        snapshot.embeddings()


def test_the_command_writes_a_table(learned):
    def run(*options):
        done = CliRunner().invoke(app, ["embeddings", "--data-dir", str(learned), *options])
        assert done.exit_code == 0, done.output
        return done.stdout_bytes

    table = pq.read_table(io.BytesIO(run("--node-set", "item")))
    assert table.equals(table_of(learned, node_set="item"))
    version = table["version"][0].as_py()
    first = json.loads(run("--version", version, "--format", "json").splitlines()[0])
    assert first["key"] == "u:0" and first["version"] == version and len(first["embedding"]) == table.schema.field("embedding").type.list_size
