"""The gradient of a training step over several ranks is that of one rank, shown in float64 where rounding hides nothing."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.models import link
from streamd.models.layers import time_encoding
from streamd.models.memory import pages as memory_pages
from streamd.ranks import row_exchange as rows
from streamd.schema import Schema
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.builders import HOUR, learning, settings, stream, write_log
from tests.ranks.test_learner import ONE_AT_A_TIME
from tests.ranks.threads import run


@pytest.fixture
def float64(monkeypatch):
    """Everything that is float32 elsewhere is float64."""
    arena, from_numpy = memory_pages.Arena, torch.from_numpy
    monkeypatch.setattr(memory_pages, "Arena", lambda dtype, *shape: arena(np.float64 if dtype is np.float32 else dtype, *shape))
    monkeypatch.setattr(time_encoding, "in_gaps", lambda us, gap: us.double() / gap)
    monkeypatch.setattr("streamd.models.memory.updater.in_gaps", lambda us, gap: us.double() / gap)
    monkeypatch.setattr("streamd.models.layers.encoder.in_gaps", lambda us, gap: us.double() / gap)
    monkeypatch.setattr(link, "in_float32", lambda layer, x: layer(x))
    torch.set_default_dtype(torch.float64)
    yield from_numpy
    torch.set_default_dtype(torch.float32)


def doubled(inputs):
    def of(one):
        return dataclasses.replace(one, **{
            f.name: v.double() for f in dataclasses.fields(one)
            if isinstance(v := getattr(one, f.name), torch.Tensor) and v.dtype == torch.float32})

    return dataclasses.replace(of(inputs), hops=tuple(of(hop) for hop in inputs.hops))


def gradients(path, ranks, name):
    """Gradients of the second window's first step, by parameter, after a window that memory moved over."""
    s = settings(path, model__name=name, model__memory_chunk=100, training__epochs=1)
    log = LogReader.open(path)
    with ONE_AT_A_TIME:
        learner = Learner(learning(s), log, ReplayStore.of(learning(s), ranks=ranks), ranks)
        torch.manual_seed(1)
        torch.nn.init.normal_(learner.model.head_out.weight, std=0.3)
    recorder, found = Recorder(learning(s), log, ranks), []
    first = next_window(log, 0, HOUR)
    for number, window in enumerate((first, next_window(log, first.end_edge, HOUR))):
        learner.begin()
        for chunk in recorder.chunks(window):
            edges = dataclasses.replace(chunk.edges, features_ED=chunk.edges.features_ED.astype(np.float64), _last={})
            learner.score(dataclasses.replace(chunk, edges=edges, score=doubled(chunk.score), learn=doubled(chunk.learn)))
        if number == 0:
            learner.update_statistics()
    step = learner.optimizer.step

    def watched():
        found.append({n: None if p.grad is None else p.grad.clone() for n, p in learner.model.named_parameters()})
        step()

    learner.optimizer.step = watched
    learner.learn(window.first_edge)
    return found


@pytest.fixture
def log(tmp_path):
    write_log(tmp_path, *stream(700, hours=3), Schema(2, 0, 0), watermark=10 * HOUR)
    return tmp_path


def difference(got, want):
    """The worst relative difference over all parameters, and of which."""
    worst, name = 0.0, ""
    # What cancels out leaves rounding alone: some 1e-16 of what it is the sum of.
    zero = 1e-14 * max(float(g.norm()) for g in want.values() if g is not None)
    for key, gradient in want.items():
        if gradient is None or gradient.norm() <= zero:
            assert got[key] is None or got[key].norm() <= zero, key
            continue
        assert got[key] is not None and got[key].norm(), key
        size = float((got[key] - gradient).norm() / gradient.norm())
        worst, name = max((worst, name), (size, key))
    return worst, name


@pytest.mark.parametrize(("size", "name"), [(2, "tgn"), (3, "tgn"), (4, "tgn"), (2, "tgat"), (3, "dysat")])
def test_every_parameter_gets_the_gradient_of_one_rank(log, float64, size, name):
    one, = run(1, lambda ranks: gradients(log, ranks, name))
    if name == "tgn":
        needed = ("updater.gru.weight_ih", "updater.gru.weight_hh", "updater.time.weight")
        assert all(one[0][n].norm() > 0 for n in needed), "the memory learns"
    for part in run(size, lambda ranks: gradients(log, ranks, name)):
        worst, where = difference(part[0], one[0])
        assert worst <= 1e-5, where


def test_a_detached_exchange_is_found(log, float64, monkeypatch):
    answer = rows.Route.rows
    monkeypatch.setattr(rows.Route, "rows", lambda self, of: answer(self, lambda node: of(node).detach()))
    one, = run(1, lambda ranks: gradients(log, ranks, "tgn"))
    with pytest.raises(AssertionError):
        worst, _ = difference(run(2, lambda ranks: gradients(log, ranks, "tgn"))[0][0], one[0])
        assert worst <= 1e-5
