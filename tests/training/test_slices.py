"""A chunk of very many events of one time is recorded, scored and learned in slices."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.evaluation.freshness import StaleView
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.training.event_view import FreshView
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.versions.shadow import Shadow
from streamd.windows import recorded_windows
from tests.builders import HOUR, batch, learning, settings, stream

SCHEMA = Schema(2, 0, 1)
BURST = slice(205, 605)
MOST = 160


@pytest.fixture
def world(tmp_path):
    """Hours of others around 400 events of one time, after whose 150th a node is deleted; labels among them."""
    src, dst, time = stream(800, num_items=40, hours=4)
    time[BURST] = time[BURST.start]
    src[355:] = np.where(src[355:] == 3, 4, src[355:])
    writer = LogWriter(tmp_path, SCHEMA, 100_000)
    writer.keys.update({f"n:{i}": i for i in range(60)})
    for a, b in ((0, 355), (355, 800)):
        part = batch(SCHEMA, src[a:b], dst[a:b], time[a:b], [f"n:{i}" for i in range(60)] if not a else (), a)
        labels = np.arange(a, b, 10)
        part = dataclasses.replace(part, label_node_L=src[labels], label_time_L=time[labels],
                                   label_target_L=src[labels][:, None].astype(np.float32))
        writer.commit(part, Progress(), int(time[b - 1]) if b < 800 else 100 * HOUR)
        if b < 800:
            gone = np.zeros(1, DELETION)
            gone["src"], gone["dst"], gone["time"] = 3, -1, -1
            writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=gone), Progress(), int(time[b - 1]))
    writer.close()
    torch.set_num_threads(1)
    s = settings(tmp_path, stream__edge_feature_dim=2, stream__label_dim=1, model__labels="regression", training__epochs=1)
    return s, LogReader.open(tmp_path)


def recorded(world, long_chunk, monkeypatch, stale=None, learn=False):
    """All chunks, what the learner and a shadow make of them, and the losses."""
    s, log = world
    monkeypatch.setattr("streamd.training.recorder.LONG_CHUNK", long_chunk)
    recorder, learner = Recorder(learning(s), log), Learner(learning(s), log, ReplayStore(None, 100, 0))
    if stale is not None:
        recorder.view = StaleView(FreshView(recorder.live), recorder.live, stale)
    shadow, chunks, scores, shadowed, losses = Shadow.of("v", learner), [], [], [], []
    for window in recorded_windows(log, HOUR):
        learner.begin()
        for chunk in recorder.chunks(window):
            chunks.append(chunk)
            if (logits := learner.score(chunk)).size:
                scores.append(logits)
                shadowed.append(shadow.score(chunk))
            else:
                shadow.score(chunk)
        if learn:
            losses.append(learner.learn(window.first_edge))
    return chunks, np.concatenate(scores), np.concatenate(shadowed), learner, shadow, losses


def seen_by_event(chunks):
    """Of each scored event: its facts, its candidates, and the neighbors around each of them."""
    out = {}
    for chunk in chunks:
        if chunk.score is not None:
            inputs, hop = chunk.score, chunk.score.hops[0]
            nodes = inputs.node_M[hop.root_U][inputs.candidate_EC]
            for row, event in enumerate(inputs.event_E.tolist()):
                at = inputs.candidate_EC[row]
                out[event] = (inputs.facts_ECF[row], nodes[row], hop.eid_UK[at], hop.ago_UK[at], hop.mask_UK[at],
                              inputs.node_M[hop.neighbor_UK[at]] * hop.mask_UK[at], torch.from_numpy(chunk.known_E[row:row + 1]))
    return out


@pytest.mark.parametrize("stale", [None, 7])
def test_slices_of_a_chunk_see_what_the_whole_sees(world, monkeypatch, stale):
    whole, scores, shadowed, learner, shadow, _ = recorded(world, 10**6, monkeypatch, stale)
    sliced, *ours, own, own_shadow, _ = recorded(world, 4, monkeypatch, stale)
    want, found = seen_by_event(whole), seen_by_event(sliced)
    assert list(want) == list(found)
    for event in want:
        assert all(torch.equal(a, b) for a, b in zip(want[event], found[event], strict=True)), event
    assert all(np.array_equal(a.labels.target_LT, b.labels.target_LT) and torch.equal(a.labels.facts_LF, b.labels.facts_LF)
               for a, b in zip([c for c in whole if c.labels], [c for c in sliced if c.labels], strict=True))

    # A product of matrices of fewer rows may round in another way; memory moves over whole chunks.
    np.testing.assert_allclose(ours, [scores, shadowed], atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(learner.memory.tensors().values(), own.memory.tensors().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(shadow.memory.tensors().values(), own_shadow.memory.tensors().values(), strict=True))


def test_no_slice_is_longer_than_four_chunks_and_each_is_a_training_step_and_a_replay_chunk(world, monkeypatch):
    chunks, *_, learner, _, losses = recorded(world, 4, monkeypatch, learn=True)
    slices = [c for c in chunks if BURST.start - 40 < c.first_edge < BURST.stop]
    assert [len(c.edges.src_E) > 0 for c in slices[-3:]] == [False] * 2 + [True]
    assert all(c.score.num_events <= MOST for c in chunks if c.score is not None)
    assert len({c.first_edge for c in chunks}) == len(chunks)
    assert {c.first_edge for c in slices[-3:]} <= {c.first_edge for c in learner.replay.chunks}
    assert max(c.inputs.num_events for c in learner.replay.chunks) <= MOST
    assert all(learned is None or learned.finite for learned in losses)
    whole, *_, not_sliced = recorded(world, 11, monkeypatch, learn=True)
    assert all(len(chunk.edges.src_E) for chunk in whole), "at most eleven chunks long"
    assert losses[-1].loss == pytest.approx(not_sliced[-1].loss, rel=0.1)
