"""Every tensor that models and memory make is on the model's device: shown without a GPU by torch's fake tensors, which hold no
values and refuse to mix devices as real ones do."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.models import Memory, link_loss
from streamd.models.architectures import ARCHITECTURES
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.builders import HOUR, learning, settings, stream, write_log

SCHEMA = Schema(2, 0, 0)
DEVICE = "cpu:1"
"""To the fakes another device than "cpu"; one that this build of torch knows."""


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    write_log(path, *stream(600), SCHEMA, watermark=100 * HOUR)
    return LogReader.open(path)


@pytest.fixture
def fake():
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def on_gpu(module):
    for part in module.modules():
        for name, tensor in list(part.named_parameters(recurse=False)):
            setattr(part, name, torch.nn.Parameter(send(tensor)))
        for name, tensor in list(part.named_buffers(recurse=False)):
            setattr(part, name, send(tensor))
    return module


def send(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)


def recorded(log, **values):
    s = settings(log.data_dir, stream__edge_feature_dim=2, model__snapshot_seconds=3600, **values)
    learner, recorder = Learner(learning(s), log, ReplayStore(None, 1, 0)), Recorder(learning(s), log)
    first = next_window(log, 0, HOUR)
    for _ in recorder.chunks(first):
        pass
    return learner, next(c for c in recorder.chunks(next_window(log, first.end_edge, HOUR)) if c.score is not None)


def test_the_fake_does_refuse_to_mix_devices(fake):
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(3, device=DEVICE) + torch.zeros(3)
    with pytest.raises(RuntimeError, match="device"):
        torch.nn.functional.embedding(torch.zeros(2, dtype=torch.int64), torch.zeros(3, 4, device=DEVICE))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_on_a_gpu_makes_no_tensor_elsewhere(log, name, training):
    learner, chunk = recorded(log, model__name=name, model__id_rows=32, model__labels="regression")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = on_gpu(learner.model)
        inputs = chunk.learn.to(send, lambda hop: send(hop.edge_UKD))
        memory = Memory(model.settings.dim if model.has_memory else 0, 2, chunk.edges.first_edge, DEVICE)
        updated = model.updated(memory)
        logits = model(inputs, memory.gather(inputs.node_M, updated), 7 if training else None)
        loss = link_loss(logits, inputs.weight_E)
        assert str(logits.device) == DEVICE == str(loss.device)
        optimizer = model.optimizer(0.01)
        loss.backward()
        optimizer.step()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(grads) > 5 and {str(g.device) for g in grads} == {DEVICE}


def test_memory_on_a_gpu_makes_no_tensor_elsewhere(log):
    learner, chunk = recorded(log)
    rows = chunk.edges.cut(0, 9)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = on_gpu(learner.model)
        memory = Memory(model.settings.dim, 2, rows.first_edge, DEVICE)
        for _ in range(2):
            with model.over(memory, rows) as updated:
                found = memory.gather(torch.zeros(5, dtype=torch.int64, device=DEVICE), updated)
                assert found.device == torch.device(DEVICE)
            memory.edge = rows.first_edge
        twin = memory.copy()
        # As a memory that is read: its rows are written from the host's node ids.
        stored = twin.tensors()
        again = Memory(model.settings.dim, 2, rows.first_edge, DEVICE)
        again.rows.write(np.arange(len(stored["state"])), stored["state"], stored["last_us"])
        assert {str(t.device) for m in (memory, twin) for t in m.tensors().values()} == {DEVICE}
        assert str(again.tensors()["state"].device) == DEVICE
        model.fact_stats.update(chunk.learn.facts_ECF)
        assert model.fact_stats.shift.device == torch.device(DEVICE)
