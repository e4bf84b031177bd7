import contextlib
import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.gpu.cache import FeatureCache
from streamd.settings.loading import GpuSettings
from streamd.telemetry import metrics
from streamd.training.device_transfer import DeviceTransfer, cached_edge_rows
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.builders import HOUR, learning, settings, stream, write_log

SCHEMA = Schema(2, 0, 0)


@pytest.fixture
def world(tmp_path):
    write_log(tmp_path, *stream(900), SCHEMA, watermark=100 * HOUR)
    log = LogReader.open(tmp_path)
    return settings(tmp_path, stream__edge_feature_dim=2, training__epochs=3), log


def chunks(s, log):
    recorder, edge = Recorder(learning(s), log), 0
    while (window := next_window(log, edge, HOUR)) is not None:
        yield window, list(recorder.chunks(window))
        edge = window.end_edge


def test_features_through_the_cache_are_those_that_were_recorded_and_are_sent_once(world, on):
    transfer = DeviceTransfer(on, GpuSettings(), 2)
    cache = FeatureCache(2000, 2, "lru", on)

    def misses():
        return metrics.TRAIN.get_sample_value("streamd_gpu_cache_rows_total", {"result": "miss"}) or 0

    recorded = [c.score for _, part in chunks(*world) for c in part if c.score is not None]
    for again in range(2):
        before = misses()
        for inputs in recorded:
            moved = inputs.to(transfer.send, lambda hop: cached_edge_rows(hop, cache, transfer.send))
            for a, b in zip(inputs.hops, moved.hops, strict=True):
                assert torch.equal(torch.where(a.mask_UK[..., None], a.edge_UKD, 0), b.edge_UKD.cpu())
            for name, tensor in inputs.tensors().items():
                if name.endswith("neighbor_UK"):
                    hop, to = inputs.hops[int(name.split(".")[1])], moved.tensors()[name].cpu()
                    assert torch.equal(tensor[hop.mask_UK], to[hop.mask_UK])
                    named, count = (x.flatten().bincount(minlength=len(inputs.node_M)) for x in (tensor[hop.mask_UK], to))
                    assert (count - named).max() <= -(-to.numel() // len(inputs.node_M))
                else:
                    assert name.endswith("edge_UKD") or torch.equal(tensor, moved.tensors()[name].cpu())
        asked = misses() - before
        assert asked == 0 if again else asked > 100


def test_steps_come_in_order_and_an_error_in_one_reaches_the_caller(on):
    transfer = DeviceTransfer(on, GpuSettings(), 2)
    assert list(transfer.ahead(range(20), lambda x: transfer.send(torch.full((3,), x)).sum().item())) == [3 * x for x in range(20)]
    assert list(transfer.ahead([], lambda x: x)) == []
    with pytest.raises(ZeroDivisionError):
        list(transfer.ahead([1, 0], lambda x: 1 // x))


def test_steps_are_prepared_on_one_stream_in_all_epochs_each_side_waiting_for_the_other(monkeypatch):
    done = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            done.append(f"{self.name} waits for {other.name}")

    main, made, current = Stream("main"), [], threading.local()

    @contextlib.contextmanager
    def on_stream(stream):
        current.stream = stream
        yield
        del current.stream

    def make(device):
        made.append(Stream(f"side {len(made)}"))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: getattr(current, "stream", main))
    transfer = DeviceTransfer("cuda", GpuSettings(cache_rows=0), 2)
    for _ in range(3):
        done.clear()
        assert list(transfer.ahead(range(3), lambda x: (x, torch.cuda.current_stream().name))) == [(x, "side 0") for x in range(3)]
        assert done == ["side 0 waits for main", *["main waits for side 0", "side 0 waits for main"] * 3]
    assert len(made) == 2, "the other is that of graphs"

    # What fits stays: four steps of 60 bytes on a device of 400, of which 0.6 may be taken.
    taken = itertools.count(60, 60)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(taken))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=400))
    prepared = []
    for epoch in transfer.epochs(2, range(5), lambda x: prepared.append(x) or x):
        assert list(epoch) == [0, 1, 2, 3, 4]
    assert prepared == [0, 1, 2, 3, 4, 3, 4]


@pytest.mark.gpu
@pytest.mark.parametrize("mixed", [False, True])
def test_training_on_a_gpu_and_on_a_cpu_agree(world, mixed, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    s, log = world  # the plain model, because dropout's draws are the device's own
    s = s.model_copy(update={"model": s.model.model_copy(update={"pair_facts": False})})
    parts, said = list(chunks(s, log)), {}
    for device in ("cpu", "cuda"):
        own = s.model_copy(update={"device": device, "gpu": GpuSettings(cache_rows=100, mixed_precision=mixed)})
        learner, logits = Learner(learning(own), log, ReplayStore(None, 10, 0)), []
        for window, part in parts:
            learner.begin()
            logits += [x for c in part if (x := learner.score(c)).size]
            learner.learn(window.first_edge)
        said[device] = np.concatenate(logits)
    torch.testing.assert_close(torch.as_tensor(said["cuda"]), torch.as_tensor(said["cpu"]), rtol=0.1 if mixed else 0.01, atol=0.1 if mixed else 0.01)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_thousand_windows_leave_gpu_memory_where_it_was(world):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    s, log = world
    learner = Learner(learning(s.model_copy(update={"device": "cuda"})), log, ReplayStore(None, 10, 0))
    window, part = next(x for x in chunks(s, log) if any(c.score is not None for c in x[1]))
    taken = []
    for number in range(1000):
        learner.memory = learner.model.new_memory(window.first_edge)
        learner.begin()
        for chunk in part:
            learner.score(chunk)
        learner.learn(number)
        taken.append(torch.cuda.memory_allocated())
    assert max(taken[900:]) < 1.01 * max(taken[100:200])


def test_mixed_precision_is_for_a_gpu_and_leaves_a_cpu_as_it_is(world):
    transfer = DeviceTransfer("cpu", GpuSettings(mixed_precision=True), 2)
    with transfer.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    recorded = next(c.score for _, part in chunks(*world) for c in part if c.score is not None)
    assert transfer.inputs(recorded) is recorded, "nothing is copied or cached"
