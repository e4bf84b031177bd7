import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.cli.maintenance import open_log, train_static
from streamd.errors import SettingsError, StreamdError
from streamd.events import Schema
from streamd.models import build_model
from streamd.models.architectures import ARCHITECTURES
from streamd.settings.loading import ModelSettings
from streamd.training.static import StaticTraining
from tests.builders import learning, settings, stream, write_log

CHANCE = np.mean(1 / np.arange(1, 102))
"""MRR of a scorer that knows nothing, among 101 candidates."""


def communities(num_edges=2000, num_groups=8, group=6, seed=0):
    """Users who choose any item of their own group:

        group 0   u0 u8 ... u40 --any of-- i48 i56 ... i88
        group 1   u1 u9 ... u41 --any of-- i49 i57 ... i89    and so on
    """
    rng = np.random.default_rng(seed)
    user = rng.integers(0, num_groups * group, num_edges)
    item = user % num_groups + num_groups * rng.integers(0, group, num_edges)
    return user, num_groups * group + item, np.arange(1, num_edges + 1)


def training(path, name, **values):
    chosen = {"model__dim": 16, "model__neighbors": 8, "training__learning_rate": 0.02} | values
    torch.set_num_threads(1)
    s = settings(path, model__name=name, **chosen)
    return StaticTraining(learning(s), open_log(path), lambda *_: None)


@pytest.fixture(scope="module")
def log_of_groups(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups")
    write_log(path, *communities(), tails=(2000,))
    return path


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.static])
def test_a_static_graph_is_learned_well_above_chance(log_of_groups, name, tmp_path):
    made = training(log_of_groups, name)
    untrained, *rest = made.run(20)
    test = made.test_best()
    assert np.isnan(untrained.loss) and rest[-1].loss < 0.7 * rest[0].loss
    assert made.best.valid["mrr"] == max(e.valid["mrr"] for e in made.epochs) > 2 * untrained.valid["mrr"]
    assert test["mrr"] > 4 * CHANCE

    # What was written is loaded by the manifest alone, and says the same.
    made.write(tmp_path / "weights", test)
    manifest = json.loads((tmp_path / "weights" / "manifest.json").read_text())
    model = build_model(ModelSettings(**manifest["model"]), Schema.restored(manifest["schema"]), seed=7)
    model.restore(load_file(tmp_path / "weights" / "model.safetensors"))
    other = training(log_of_groups, name)
    other.model.restore(model.state_dict())
    assert other.measure(other.test, "test") == manifest["scores"]["test"] == test


def test_edges_are_split_by_time_and_equal_times_stay_together(tmp_path):
    src, dst, _ = stream(400)
    write_log(tmp_path, src, dst, np.repeat(np.arange(1, 41), 10))
    made = training(tmp_path, "sage")
    assert (len(made.train), len(made.valid), len(made.test)) == (280, 60, 60)
    assert np.array_equal(np.concatenate([made.train, made.valid, made.test]), np.arange(400))

    # Ten edges have the same time: a split does not divide them.
    write_log(tmp_path / "uneven", src[:397], dst[:397], np.repeat(np.arange(1, 41), 10)[:397])
    made = training(tmp_path / "uneven", "sage")
    assert (len(made.train), len(made.valid), len(made.test)) == (270, 60, 67)


def test_neither_edges_that_validate_and_test_nor_those_of_the_step_are_sampled(log_of_groups):
    made = training(log_of_groups, "sage")
    event = made.train[:300]
    inputs = made.prepare((1, event))
    assert inputs.hops[0].mask_UK.any()
    for hop in inputs.hops:
        assert not np.isin(hop.eid_UK[hop.mask_UK].numpy(), event).any()
        assert (hop.eid_UK[hop.mask_UK].numpy() < made.valid[0]).all()


def test_two_runs_learn_the_same(log_of_groups):
    a, b = (training(log_of_groups, "gcn") for _ in range(2))
    for x, y in zip(a.run(2), b.run(2), strict=True):
        assert x.valid == y.valid and (x.loss == y.loss or x.number == 0)


def test_what_cannot_be_trained_is_refused_in_words(tmp_path, log_of_groups):
    with pytest.raises(StreamdError, match="holds no log"):
        list(train_static(settings(tmp_path / "none", model__name="sage"), 1, None, lambda *_: None))
    for name in ("tgn", "pair"):
        with pytest.raises(SettingsError, match=f"model.name is {name}, .*choose one of sage, gat, gcn"):
            list(train_static(settings(log_of_groups, model__name=name), 1, None, lambda *_: None))
    with pytest.raises(SettingsError, match="exists already"):
        list(train_static(settings(log_of_groups, model__name="sage"), 1, tmp_path, lambda *_: None))
    write_log(tmp_path / "short", *stream(2))
    with pytest.raises(StreamdError, match="2 edges cannot be split"):
        training(tmp_path / "short", "sage")


def test_the_command_says_loss_and_mrr_of_each_epoch_and_writes_the_weights(log_of_groups, tmp_path):
    chosen = ["--static", "--model", "sage", "--epochs", "2", "--data-dir", str(log_of_groups)]
    before = sorted(log_of_groups.rglob("*"))
    said = CliRunner().invoke(app, ["train", *chosen, "--out", str(tmp_path / "weights")])
    assert said.exit_code == 0, said.output
    for line in ("sage, 1,400 edges to learn", "epoch 0: untrained", "epoch 2: loss", "test MRR"):
        assert line in said.output
    assert {p.name for p in (tmp_path / "weights").iterdir()} == {"model.safetensors", "manifest.json"}
    assert sorted(log_of_groups.rglob("*")) == before, "the directory is only read"
    refused = CliRunner().invoke(app, ["train"])
    assert isinstance(refused.exception, SettingsError) and "--static" in str(refused.exception)
