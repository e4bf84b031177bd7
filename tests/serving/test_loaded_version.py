from types import SimpleNamespace

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.graph.facts.columns import FactColumn, num_facts
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.models import build_model
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.torch_model import TorchModel
from streamd.serving.loaded_version import RATE_WINDOWS, LoadedVersion
from streamd.training.recorder import Recorder
from streamd.windows import recorded_windows
from tests.builders import HOUR, SECOND, learning, settings, stream, write_log


def opened(path, src, dst, time, watermark):
    """A version at the beginning of a log, and the log's reader."""
    write_log(path, src, dst, time, Schema(), watermark=watermark)
    model = build_model(settings(path).model, Schema(), 0)
    manifest = SimpleNamespace(window_seconds=3600, window_end_us=0)
    return LoadedVersion(manifest, TorchModel(model), model.new_memory()), LogReader.open(path)


@pytest.mark.parametrize("burst_us", [HOUR + 5 * SECOND, 2 * HOUR - 1], ids=["inside a window", "at its end"])
def test_memory_passes_a_time_with_more_events_than_it_looks_at(tmp_path, burst_us):
    src, dst, time = stream(1500, hours=4)
    time[300:1200] = burst_us
    time[:300] = np.sort(time[:300] % HOUR)
    time[1200:] = np.sort(2 * HOUR + time[1200:] % HOUR)
    served, log = opened(tmp_path, src, dst, time, 3 * HOUR)
    s, model = settings(tmp_path), served.model.model
    cuts = [0]
    for until in range(50, 1501, 50):
        while served.follow(log, until, 3 * HOUR if until == 1500 else int(time[until - 1]), 1):
            cuts.append(served.memory.edge)

    # As the trainer cuts and moves it.
    trained = model.new_memory()
    wanted = [0]
    for window in recorded_windows(log, HOUR):
        for chunk in Recorder(learning(s), log).cut(window):
            model.advance(trained, chunk)
            wanted.append(trained.edge)
    assert cuts == wanted and 1200 in cuts
    assert torch.equal(served.memory.tensors()["state"], trained.tensors()["state"])


@pytest.mark.parametrize("num_chunks", [8, 16])
def test_queries_during_a_backlog_advance_no_memory_over_it(tmp_path, monkeypatch, num_chunks):
    src, dst, _ = stream(40 * num_chunks + 10)
    time = np.arange(len(src)) * SECOND
    served, log = opened(tmp_path, src, dst, time, int(time[-1]))
    moved = []
    advance = LoadedVersion.advance
    monkeypatch.setattr(LoadedVersion, "advance", lambda *a: (moved.extend(a[3]), advance(*a)))

    # A query after each chunk, as a server that is asked while it catches up.
    cuts = []
    while served.follow(log, len(src), int(time[-1]), 1):
        cuts.append(served.ahead(log, len(src), int(time[-1]) + 1).memory.edge)
    assert cuts == [40 * n for n in range(1, num_chunks + 1)] and len(moved) == num_chunks


def test_a_query_closes_the_open_chunk_of_a_memory_that_has_caught_up(tmp_path):
    src, dst, _ = stream(100)
    time = np.arange(len(src)) * SECOND
    served, log = opened(tmp_path, src, dst, time, int(time[-1]))
    while served.follow(log, 100, int(time[-1]), 1):
        pass
    assert served.memory.edge == 80 and served.ahead(log, 100, int(time[-1]) + 1) is served
    assert served.ahead(log, 100, 2 * HOUR).memory.edge == 100 and served.memory.edge == 80


def test_following_goes_on_for_as_long_as_there_is_time_and_says_what_is_left(tmp_path):
    src, dst, _ = stream(200)
    time = np.arange(len(src)) * SECOND
    served, log = opened(tmp_path, src, dst, time, int(time[-1]))
    assert served.follow_until(0.0, log, 200, int(time[-1])) and served.memory.edge == 40, "one chunk at least"
    assert not served.follow_until(float("inf"), log, 200, int(time[-1])) and served.memory.edge >= 160


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_rate_of_new_destinations_is_not_kept_for_ever_by_a_version_without_successor(tmp_path, kind):
    src, dst, _ = stream(900)
    time = np.arange(900) * 2 * HOUR // 60
    write_log(tmp_path, src, dst, time, Schema(), watermark=int(time[-1]))
    log, chosen = LogReader.open(tmp_path), settings(tmp_path, model__name="pair").model
    model = build_model(chosen, Schema(), 0).eval()
    facts = np.random.default_rng(0).normal(size=(2, num_facts(Schema()))).astype(np.float32)
    facts[:, FactColumn.LOG_SECONDS_SINCE_DESTINATION] = 3.0, NEVER_LOG_SECONDS
    bare = TorchModel(model).pair_logits(facts)
    model.new_destinations.observe(torch.tensor([[[100.0], [10.0], [500.0]]], dtype=torch.float64))
    answers = TorchModel(model) if kind == "torch" else NumpyModel(chosen, Schema(), model.arrays())
    served = LoadedVersion(SimpleNamespace(window_seconds=3600, window_end_us=HOUR), answers, model.new_memory())

    logits = {}
    while served.follow(log, 900, int(time[-1]), 1):
        logits[served.memory.now_us // HOUR] = answers.pair_logits(facts)
    young = [one for hour, one in logits.items() if hour < 1 + RATE_WINDOWS]
    old = [one for hour, one in logits.items() if hour > 1 + RATE_WINDOWS]
    assert len(young) > 5 and len(old) > 1 and abs(young[0][1] - bare[1]) > 1
    assert all(np.array_equal(one, young[0]) for one in young)
    assert all(np.allclose(one, bare, atol=1e-5) for one in old), "known ones rank as before, new ones by the weights"

    # A restart finds the memory where it was.
    again = TorchModel(build_model(chosen, Schema(), 0).eval())
    again.model.new_destinations.observe(torch.tensor([[[100.0], [10.0], [500.0]]], dtype=torch.float64))
    LoadedVersion(served.manifest, again, served.memory)
    assert np.allclose(again.pair_logits(facts), bare, atol=1e-5)
