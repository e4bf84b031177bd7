"""A model of another package: its module and its entry point are files of the test's own, as `pip install` leaves them."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from streamd.errors import SettingsError, VersionError
from streamd.models import Architecture, ModelPlugin, build_model, hops
from streamd.models.architectures import architecture_of, plugin_of, unused_settings
from streamd.registry import Registry
from streamd.settings.loading import load_settings
from tests.builders import HOUR, settings, stream, write_log
from tests.server.world import SCHEMA, World, ask, wait

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


def code(language):
    """The blocks of a language in the page about plug-ins."""
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS.read_text(), re.M | re.S)


def install(folder, module, text, points):
    """A package of one module, with entry points name -> object."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[streamd.models]\n" + "".join(f"{name} = {what}\n" for name, what in points.items()))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package of the documentation, on Python's path."""
    folder = tmp_path / "site"
    folder.mkdir()
    (text,), (project,) = code("python"), code("toml")
    point, = re.findall(r"^max-pool = \"(.+)\"$", project, re.M)
    install(folder, "own_models", text, {"max-pool": point, "not-a-model": "own_models:MaxPool", "gone": "own_models:NOTHING", "away": "no_module:X"})
    monkeypatch.syspath_prepend(str(folder))
    plugin_of.cache_clear()
    yield folder
    plugin_of.cache_clear()
    sys.modules.pop("own_models", None)


def test_the_documented_plugin_learns_is_stored_and_serves(tmp_path, installed):
    path = tmp_path / "data"
    write_log(path, *stream(500), SCHEMA, watermark=100 * HOUR)
    world = World(path, model__name="max-pool")
    world.train()
    champion = world.registry.load(world.registry.champion())
    assert champion.manifest.model["name"] == "max-pool"
    assert "encoder.layers.0.own.weight" in champion.weights

    # It has learned: its weights are not those that it began with.
    torch.manual_seed(0)
    begun = build_model(world.settings.model, SCHEMA, 0).encoder.layers[0].own.weight
    assert not np.allclose(begun.detach().numpy(), champion.weights["encoder.layers.0.own.weight"])

    world.start()
    wait(lambda: world.engine.status.version == champion.manifest.name)
    answer = ask(world)
    assert answer["as_of"]["version"] == champion.manifest.name and all(np.isfinite(s["score"]) for s in answer["scores"])
    vectors = [world.client.get(f"/v1/embeddings/n:{i}").json()["embedding"] for i in (20, 21)]
    assert len(vectors[0]) == world.settings.model.dim and vectors[0] != vectors[1]
    whole = world.client.post("/v1/explain", json={"src": "n:3", "dst": "n:20"}).json()
    assert whole["weights"] == "uniform" and "graph" in {g["name"] for g in whole["groups"]}
    world.stop()


def test_a_plugins_row_says_which_settings_it_uses(installed):
    chosen, _ = load_settings(None, {"model.name": "max-pool", "model.heads": 4, "model.dim": 32}, {})
    assert unused_settings(chosen.model) == ["model.heads"]
    assert [draw.fanout for draw in architecture_of(chosen.model).plan(chosen.model).hops] == [chosen.model.neighbors] * 2


@pytest.mark.parametrize(("name", "said"), [
    ("not-a-model", "is a type"), ("gone", "cannot be loaded"), ("away", "cannot be loaded: No module named 'no_module'")])
def test_a_plugin_that_does_not_fit_is_named(installed, name, said):
    chosen, _ = load_settings(None, {"model.name": name}, {})
    with pytest.raises(SettingsError, match=f"'{name}'.*{said}"):
        architecture_of(chosen.model)


def test_a_name_of_two_packages_is_refused(installed):
    other = installed / "more"
    other.mkdir()
    install(other, "more_models", "", {"max-pool": "more_models:X"})
    sys.path.insert(0, str(other))
    try:
        with pytest.raises(SettingsError, match="installed by several packages"):
            plugin_of("max-pool")
    finally:
        sys.path.remove(str(other))


def test_without_its_package_neither_settings_nor_a_version_are_taken(tmp_path, installed, monkeypatch):
    path = tmp_path / "data"
    write_log(path, *stream(300), SCHEMA, watermark=100 * HOUR)
    world = World(path, model__name="max-pool")
    world.train(1)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(installed)])
    with pytest.raises(SettingsError, match="model.name"):
        load_settings(None, {"model.name": "max-pool"}, {})
    bare = settings(path, stream__edge_feature_dim=2)
    with pytest.raises(VersionError, match="name"):
        Registry.of(bare).load(world.registry.champion()).manifest.model_settings()


def test_a_plugin_has_layers_in_torch():
    plan = hops("recent", 1)
    with pytest.raises(ValueError, match="layers in torch"):
        ModelPlugin(architecture=Architecture(plan=plan, settings=frozenset(), in_numpy=True), layer=None)
