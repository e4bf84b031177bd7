"""A training step on a device waits for nothing: shown without a GPU on torch's fake tensors, which hold no values, so that any
value the host would have to wait for is an error."""

import dataclasses

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, empty_batch
from streamd.gpu import copies
from streamd.models import Memory
from streamd.models.architectures import ARCHITECTURES
from streamd.settings.loading import GpuSettings
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.static import StaticTraining
from streamd.windows import next_window
from tests.builders import (
    HOUR,
    SETS,
    declared,
    learning,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)

DEVICE = torch.device("cpu:1")
"""To the fakes another device than "cpu"; one that this build of torch knows."""


class FakeTransfer(DeviceTransfer):
    def send(self, tensor):
        return copies.send(tensor, self.device)


class Waiting(TorchDispatchMode):
    """Notes the copies between host and device that the host waits for, and indices that it would have to copy."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [t for a in args for t in (a if isinstance(a, list | tuple) else [a]) if isinstance(t, torch.Tensor)]
        mixed = len({t.device for t in given if t.ndim}) > 1
        crosses = op is torch.ops.aten._to_copy.default and kwargs.get("device", given[0].device) != given[0].device
        if mixed or (crosses and not kwargs.get("non_blocking")):
            self.found.append(str(op))
        return op(*args, **kwargs)


def one_set(path):
    write_log(path, *stream(900), Schema(2, 0, 0), watermark=100 * HOUR)
    return settings(path, stream__edge_feature_dim=2)


def labelled_sets(path):
    """The stream of several sets; users and items have labels."""
    src, dst, time, sets = sets_stream()
    write_sets_log(path, src, dst, time, sets)
    at = np.arange(0, 900, 7)
    node = np.where(np.arange(len(at)) % 3 == 0, dst[at], src[at])
    writer = LogWriter(path, SETS, 100_000)
    writer.commit(dataclasses.replace(empty_batch(SETS), label_node_L=node, label_time_L=time[at],
                                      label_target_L=(node % 5).astype(np.float32)[:, None]), Progress(), 100 * HOUR)
    writer.close()
    return settings(path, model__labels="regression", **{k.replace(".", "__"): v for k, v in declared().items()})


@pytest.fixture(autouse=True)
def fakes_are_sent(monkeypatch):
    """A tensor of one element or none that is no fake itself would stay on the host: fakes know what it holds."""
    plain = copies.send

    def send(tensor, device):
        return plain(torch.empty(tensor.shape, dtype=tensor.dtype) if device == DEVICE else tensor, device)

    monkeypatch.setattr(copies, "send", send)


def on_device(module):
    """A module's weights and statistics on the device."""
    for part in module.modules():
        for name, tensor in list(part.named_parameters(recurse=False)):
            setattr(part, name, torch.nn.Parameter(torch.empty_like(tensor, device=DEVICE)))
        for name, tensor in list(part.named_buffers(recurse=False)):
            setattr(part, name, torch.empty_like(tensor, device=DEVICE))


@pytest.mark.parametrize("make", [one_set, labelled_sets])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_training_step_waits_for_the_device(tmp_path, name, make):
    s = make(tmp_path)
    s = s.model_copy(update={"model": s.model.model_copy(update={"name": name})})
    log = LogReader.open(tmp_path)
    learner, recorder, passes, done = Learner(learning(s), log, ReplayStore(None, 10, 0)), Recorder(learning(s), log), Learner._train_epochs, []

    def on_fakes(num_passes, window_edge, steps):
        """All steps of the last window, one of which has what each kind of step may have."""
        with FakeTensorMode(allow_non_fake_inputs=True), Waiting() as waiting:
            on_device(learner.model)
            learner.optimizer = learner.model.optimizer(0.01)
            learner.transfer = FakeTransfer(str(DEVICE), GpuSettings(cache_rows=0), log.state.schema.edge_feature_dim)
            learner._start = Memory(learner.model.new_memory().dim, log.state.schema.edge_feature_dim, window_edge, DEVICE)
            learner.on_progress = lambda number, total: done.append(number)
            # The loss is read, which the fakes refuse, when all steps of the epoch are queued.
            with pytest.raises(DataDependentOutputException, match="local_scalar_dense"):
                passes(learner, num_passes, window_edge, steps)
        assert done == list(range(1, len(steps) + 1)) and len(steps) > 1
        assert any(step.past for step in steps) and any(step.labels for step in steps) == (make is labelled_sets)
        assert not waiting.found
        raise StopIteration

    edge = 0
    for window in (next_window(log, 0, HOUR), None):
        window = window or next_window(log, edge, HOUR)
        learner.begin()
        for chunk in recorder.chunks(window):
            learner.score(chunk)
        if edge:
            learner._train_epochs = on_fakes
            with pytest.raises(StopIteration):
                learner.learn(window.first_edge)
        else:
            learner.learn(window.first_edge)
        edge = window.end_edge


def test_no_step_of_static_training_waits_for_the_device(tmp_path):
    s, done = one_set(tmp_path), []
    s = s.model_copy(update={"model": s.model.model_copy(update={"name": "sage"})})
    made = StaticTraining(learning(s), LogReader.open(tmp_path), lambda part, number, total, unit: done.append((number, total)))
    with FakeTensorMode(allow_non_fake_inputs=True), Waiting() as waiting:
        on_device(made.model)
        made._optimizer = made.model.optimizer(0.01)
        made._transfer = FakeTransfer(str(DEVICE), GpuSettings(cache_rows=0), 2)
        with pytest.raises(DataDependentOutputException, match="local_scalar_dense"):
            made._epoch(1)
    assert done == [(number, 2) for number in (1, 2)] and not waiting.found


@pytest.mark.gpu
@pytest.mark.parametrize("make", [one_set, labelled_sets])
def test_cuda_too_knows_of_no_step_that_waits(tmp_path, make, monkeypatch):
    """Where torch raises an error at each wait that it knows of; inputs are prepared apart, and may wait."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.undo()  # real tensors are sent
    s = make(tmp_path).model_copy(update={"device": "cuda"})
    log = LogReader.open(tmp_path)
    learner, recorder, done = Learner(learning(s), log, ReplayStore(None, 10, 0)), Recorder(learning(s), log), []

    def epochs(num_epochs, steps, prepare):
        ready = list(map(prepare, steps))

        def strict():
            torch.cuda.set_sync_debug_mode("error")
            try:
                yield from ready
            finally:
                torch.cuda.set_sync_debug_mode("default")
            done.append(len(ready))

        yield from (strict() for _ in range(num_epochs))

    learner.transfer.epochs = epochs
    window = next_window(log, 0, HOUR)
    for chunk in recorder.chunks(window):
        learner.score(chunk)
    learner.learn(window.first_edge)
    assert done and min(done) > 1
