"""Negatives that are destinations of recent events do not teach that what is popular is wrong."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.models.inputs import LinkInputs
from streamd.training.learner import Learner
from streamd.training.measures import measures
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayChunk, ReplayStore
from streamd.windows import recorded_windows
from tests.builders import HOUR, learning, settings, write_log


@pytest.fixture
def path(tmp_path):
    """Anyone goes anywhere: all that can be learned is how popular each of 60 destinations is."""
    rng = np.random.default_rng(0)
    weight = 1 / np.arange(1, 61) ** 1.2
    dst = 30 + rng.choice(60, 2400, p=weight / weight.sum())
    time = np.sort(rng.integers(1, 8 * HOUR, 2400))
    write_log(tmp_path, rng.integers(0, 30, 2400), dst, time, Schema(2, 0, 0), watermark=100 * HOUR)
    return tmp_path


def learned(path, share, **values):
    """Scores of the last three windows against uniform negatives, and the learner."""
    own = learning(settings(path, **{"stream__edge_feature_dim": 2, "model__name": "pair", "training__epochs": 4, "training__learning_rate": 0.01,
                                     "training__recent_negatives": share, **values}))
    log = LogReader.open(path)
    recorder, learner = Recorder(own, log), Learner(own, log, ReplayStore.of(own))
    scores = []
    for number, window in enumerate(recorded_windows(log, HOUR)):
        learner.begin()
        of_window = [learner.score(chunk) for chunk in recorder.chunks(window)]
        scores += of_window if number >= 5 else []
        learner.learn(window.first_edge)
    return np.concatenate([x for x in scores if len(x)]), learner


def test_popular_destinations_rank_as_with_uniform_negatives(path, monkeypatch):
    uniform, corrected = (measures(learned(path, share)[0])["mrr"] for share in (0.0, 0.8))
    monkeypatch.setattr("streamd.graph.recent_negatives.log_draw_frequency", lambda candidates, *_: np.zeros(candidates.shape))
    uncorrected = measures(learned(path, 0.8)[0])["mrr"]
    assert corrected > uniform - 0.01 and uncorrected < uniform - 0.03, (uniform, corrected, uncorrected)


def test_the_tail_and_what_is_replayed_keep_how_often_each_was_drawn(path):
    _, learner = learned(path, 0.5, training__tail_share=0.2)
    assert learner.tail and learner.replay.chunks
    for chunk in (*learner.tail, *learner.replay.chunks):
        assert chunk.inputs.log_draws_EC.any(1).all()
        again = ReplayChunk.from_tensors(chunk.first_edge, chunk.tensors())
        assert torch.equal(again.inputs.log_draws_EC, chunk.inputs.log_draws_EC)


def test_chunks_of_releases_that_drew_uniformly_are_not_corrected(path):
    _, learner = learned(path, 0.0)
    chunk = learner.replay.chunks[0]
    stored = chunk.inputs.tensors()
    del stored["log_draws_EC"]
    again = LinkInputs.restored(stored)
    assert again.log_draws_EC.shape == again.candidate_EC.shape and not again.log_draws_EC.any()
    assert dataclasses.replace(again, log_draws_EC=chunk.inputs.log_draws_EC).tensors().keys() == chunk.inputs.tensors().keys()
