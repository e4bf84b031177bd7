from types import SimpleNamespace

import numpy as np
import pytest
import torch

from streamd.events import Schema
from streamd.models import build_model
from streamd.models.torch_model import TorchModel
from streamd.segments.reader import LogReader
from streamd.server.loaded_version import LoadedVersion
from streamd.training.recorder import Recorder
from streamd.windows import recorded_windows
from tests.builders import HOUR, SECOND, settings, stream, write_log


@pytest.mark.parametrize("burst_us", [HOUR + 5 * SECOND, 2 * HOUR - 1], ids=["inside a window", "at its end"])
def test_memory_passes_a_time_with_more_events_than_it_looks_at(tmp_path, burst_us):
    src, dst, time = stream(1500, hours=4)
    time[300:1200] = burst_us
    time[:300] = np.sort(time[:300] % HOUR)
    time[1200:] = np.sort(2 * HOUR + time[1200:] % HOUR)
    write_log(tmp_path, src, dst, time, Schema(), watermark=3 * HOUR)
    s = settings(tmp_path)
    log, model = LogReader.open(tmp_path), build_model(s.model, Schema(), 0)
    served = LoadedVersion(SimpleNamespace(window_seconds=3600), TorchModel(model), model.new_memory())
    cuts = [0]
    for until in range(50, 1501, 50):
        while served.follow(log, until, 3 * HOUR if until == 1500 else int(time[until - 1]), 1):
            cuts.append(served.memory.edge)

    # As the trainer cuts and moves it.
    trained = model.new_memory()
    wanted = [0]
    for window in recorded_windows(log, HOUR):
        for chunk in Recorder(s, log).cut(window):
            model.advance(trained, chunk, log.deletions.of_nodes)
            wanted.append(trained.edge)
    assert cuts == wanted and 1200 in cuts
    assert torch.equal(served.memory.tensors()["state"], trained.tensors()["state"])
