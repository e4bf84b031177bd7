"""A step on padded values, as a CUDA graph replays it, changes what the plain step changes. Without a GPU it runs kernel by kernel."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.events import NodeDeletes, Schema
from streamd.models import LinkModel
from streamd.models.architectures import ARCHITECTURES
from streamd.training.learner import Learner
from streamd.training.padding import round_up
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.step_graphs import MAX_GRAPHS
from streamd.windows import next_window
from tests.builders import HOUR, learning, settings, stream, write_log


def learned(path, name, device, replays, captures=None, **more):
    """The learner after three windows, the last two with replay, and its loss in each."""
    s = settings(path, stream__edge_feature_dim=2, device=device, **{"model__name": name, "model__neighbors": 3, "model__dim": 8, "model__memory_chunk": 50,
                 "training__replay_events": 20, "training__epochs": 3, **more})
    log = LogReader.open(path)
    learner, recorder = Learner(learning(s), log, ReplayStore(None, 10, 0)), Recorder(learning(s), log)
    learner.transfer.replays_steps = replays
    learner.transfer.captures_steps = replays and device == "cuda" if captures is None else captures
    losses, edge = [], 0
    while (window := next_window(log, edge, HOUR)) is not None and len(losses) < 3:
        learner.begin()
        for chunk in recorder.chunks(window):
            learner.score(chunk)
        result = learner.learn(window.first_edge)
        losses += [] if result is None else [result.loss]
        edge = window.end_edge
    return learner, losses


@pytest.fixture
def log(tmp_path):
    write_log(tmp_path, *stream(900), Schema(2, 0, 0), watermark=100 * HOUR)
    return tmp_path


def assert_alike(ours, plain, losses, plain_losses, tolerance):
    assert len(losses) == 3 and np.allclose(losses, plain_losses, rtol=tolerance)
    for name, weight in plain.model.state_dict().items():
        assert torch.allclose(ours.model.state_dict()[name].cpu(), weight.cpu(), rtol=tolerance, atol=tolerance), name
    for name, tensor in plain.memory.tensors().items():
        assert torch.allclose(ours.memory.tensors()[name].cpu(), tensor.cpu(), rtol=tolerance, atol=tolerance), name


def test_padded_steps_take_off_how_often_a_candidate_is_drawn(log, on, monkeypatch):
    def runs(replays):
        return learned(log, "tgn", on, replays, training__recent_negatives=0.5)

    plain, plain_losses = runs(False)
    ours, losses = runs(True)
    assert_alike(ours, plain, losses, plain_losses, 1e-4)
    assert all(c.inputs.log_draws_EC.any() for c in ours.replay.chunks), "replayed events too"
    monkeypatch.setattr("streamd.graph.recent_negatives.log_draw_frequency", lambda candidates, *_: np.zeros(candidates.shape))
    for replays, ours in ((False, plain_losses), (True, losses)):
        assert abs(np.array(runs(replays)[1]) - ours).min() > 1e-3, "it is not taken off"


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "pair"])
def test_padded_steps_learn_what_plain_steps_learn(log, name, on):
    plain, plain_losses = learned(log, name, on, replays=False)
    ours, losses = learned(log, name, on, replays=True)
    assert_alike(ours, plain, losses, plain_losses, 1e-4)
    sizes = list(ours._graphs._graphs)
    assert 0 < len(sizes) < MAX_GRAPHS
    if on == "cuda":
        assert any(graph.graph is not None for graph in ours._graphs._graphs.values())


def test_the_rate_of_new_destinations_changes_no_weight_in_padded_steps_either(log, on, monkeypatch):
    """New ones come in each window, which are negatives of events before them: their logits are learned as all others are."""
    path = log / "growing"
    src, dst, time = stream(900)
    dst = np.where(np.arange(900) % 10 == 9, 1000 + np.arange(900), dst)
    write_log(path, src, dst, time, Schema(2, 0, 0), watermark=100 * HOUR)
    runs = {replays: learned(path, "tgn", on, replays) for replays in (False, True)}
    counted = runs[True][0].model
    assert_alike(runs[True][0], runs[False][0], runs[True][1], runs[False][1], 1e-3 if on == "cuda" else 1e-4)
    assert counted.new_destinations.counts[1, 0] > 20 and counted.new_destinations.logit_S.isfinite().all()

    monkeypatch.setattr("streamd.models.new_destinations.NewDestinations.observe", lambda self, counts, ranks: None)
    uncounted, losses = learned(path, "tgn", on, replays=True)
    assert losses == runs[True][1] and not uncounted.model.new_destinations.counts.any()
    for name, weight in counted.named_parameters():
        assert torch.equal(uncounted.model.get_parameter(name), weight), name


def test_steps_learn_the_same_bits_again(log, on):
    first, losses = learned(log, "tgn", on, replays=True)
    again, losses_again = learned(log, "tgn", on, replays=True)
    assert losses == losses_again
    for name, weight in first.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight), name


def test_graphs_go_with_the_optimizer_that_they_step(log, on):
    learner, _ = learned(log, "tgn", on, replays=True)
    graphs = learner._graphs
    assert graphs.are_of(learner.model, learner.optimizer) and learner._step_graphs() is graphs
    learner.undo_training()
    assert learner._step_graphs() is not graphs
    learner.memory_step = lambda model, memory, chunk: LinkModel.over(model, memory, chunk)
    assert learner._step_graphs() is None


@pytest.mark.parametrize(("size", "padded"), [(0, 0), (1, 1), (2, 2), (5, 5), (9, 10), (600, 640), (1025, 1280), (1281, 1536), (2048, 2048)])
def test_sizes_are_rounded_up_by_less_than_a_quarter(size, padded):
    assert round_up(size) == padded


class Refusing:
    """A CUDA graph that nothing can be captured into."""

    begun = ended = 0

    def capture_begin(self, pool, capture_error_mode):
        Refusing.begun += 1
        assert capture_error_mode == "thread_local", "another thread prepares the next step meanwhile"
        raise RuntimeError("operation not permitted when stream is capturing")

    def capture_end(self):
        Refusing.ended += 1


def test_steps_that_cannot_be_captured_are_launched_and_a_warning_says_so_once(log, monkeypatch, capsys):
    plain, plain_losses = learned(log, "tgn", "cpu", replays=True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Refusing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ours, losses = learned(log, "tgn", "cpu", replays=True, captures=True)
    assert losses == plain_losses and Refusing.begun == Refusing.ended == 1
    assert capsys.readouterr().out.count("gpu_step_not_captured") == 1
    assert not ours.transfer.captures_steps


def test_steps_of_the_past_alone_leave_the_updater_as_it_was(log, on):
    """Where a chunk's own events are all held out, no message of it is asked for."""
    plain, plain_losses = learned(log, "tgn", on, replays=False, training__tail_share=0.4, training__learning_rate=0.01)
    ours, losses = learned(log, "tgn", on, replays=True, training__tail_share=0.4, training__learning_rate=0.01)
    assert_alike(ours, plain, losses, plain_losses, 1e-3 if on == "cuda" else 1e-4)
    steps = [[int(state["step"]) for state in learner.optimizer.state.values()] for learner in (ours, plain)]
    assert steps[0] == steps[1] and len(set(steps[0])) > 1


def test_deletes_that_leave_no_message_leave_a_step_to_learn(tmp_path, on):
    """A chunk of one event, both of whose ends are deleted right after it."""
    write_log(tmp_path, *stream(120), Schema(2, 0, 0), watermark=100 * HOUR)

    def losses(replays):
        learner, _ = learned(tmp_path, "tgn", on, replays, model__memory_chunk=1, training__learning_rate=1e-5)
        edges = learner._edges
        both = np.unique([edges[0].src_E, edges[0].dst_E])
        gone = NodeDeletes(node=both, edge=np.array([edges[1].first_edge] * len(both)))
        learner._edges = [edges[0], *(dataclasses.replace(chunk, deletes=gone) for chunk in edges[1:])]
        return learner.learn(edges[0].first_edge).loss

    assert np.isclose(losses(True), losses(False), rtol=1e-4)


def test_only_the_graphs_used_lately_are_kept(log, on, monkeypatch):
    plain, plain_losses = learned(log, "tgn", on, replays=True)
    monkeypatch.setattr("streamd.training.step_graphs.MAX_GRAPHS", 1)
    ours, losses = learned(log, "tgn", on, replays=True)
    assert losses == plain_losses and len(ours._graphs._graphs) == 1
