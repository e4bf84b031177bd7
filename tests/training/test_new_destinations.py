"""New destinations are learned from others that were new at the time, and rank among each other by their features."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.negatives import LEARNED, NUM_LEARNED, SCORED
from streamd.graph.new_negatives import NEW_SEED
from streamd.graph.ranking import among_candidates, ranks
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.stored_weights import NEW_SCORE
from streamd.models.inference.torch_model import TorchModel
from streamd.models.link import LinkModel
from streamd.serving.loaded_version import LoadedVersion
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayChunk, ReplayStore
from streamd.windows import recorded_windows
from tests.builders import HOUR, batch, learning, settings
from tests.graph.test_negatives import hash_of

SOURCES, ITEMS, TOPICS, EVENTS, HOURS = 30, 900, 3, 1500, 10
SCHEMA = Schema(0, TOPICS, 0)


def write_shop(path, has_rows=True, seed=0, deleted=0):
    """Sources of one topic each. Items appear all the time, with their topic as features but every seventh; three in ten events take one that nobody took
    before, of the source's topic, the others one of the last twenty. Returns: topic of each source and item, position of each item's row."""
    rng = np.random.default_rng(seed)
    place_A = np.sort(rng.integers(0, EVENTS, ITEMS))
    place_A[:200] = 0
    topic_N = rng.integers(0, TOPICS, SOURCES + ITEMS)
    has_row_A = np.arange(ITEMS) % 7 > 0
    src, dst, left = rng.integers(0, SOURCES, EVENTS), [], np.ones(ITEMS, np.bool_)
    for e in range(EVENTS):
        own = np.flatnonzero(left & (place_A < max(e, 1)) & (topic_N[SOURCES:] == topic_N[src[e]]))
        new = len(own) and (e < 20 or rng.random() < 0.3)
        item = rng.choice(own) if new else dst[-1 - int(rng.integers(0, min(20, len(dst))))] - SOURCES
        left[item] = False
        dst.append(SOURCES + item)
    time = np.sort(rng.integers(1, HOURS * HOUR, EVENTS)) // 1000 * 1000
    writer = LogWriter(path, SCHEMA, 10_000)
    keys = [f"n:{i}" for i in range(SOURCES + ITEMS)]
    writer.keys.update({key: i for i, key in enumerate(keys)})
    for at in range(0, EVENTS, 100):
        items = np.flatnonzero((place_A >= at) & (place_A < at + 100) & has_row_A & has_rows)
        events = batch(SCHEMA, src[at : at + 100], np.array(dst[at : at + 100]), time[at : at + 100], () if at else keys)
        rows = dataclasses.replace(events, node_F=SOURCES + items, node_row_F=place_A[items] - at + np.arange(len(items)), node_edge_F=place_A[items] - at,
                                   node_values_F=np.eye(TOPICS, dtype=np.float32)[topic_N[SOURCES + items]])
        writer.commit(rows, Progress(), int(time[at + 99]) if at + 100 < EVENTS else 100 * HOUR)
    if deleted:
        rows = np.zeros(deleted, DELETION)
        rows["src"], rows["dst"], rows["time"] = SOURCES + ITEMS // 2 + np.arange(deleted), -1, -1
        writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), 100 * HOUR)
    writer.close()
    return topic_N, np.where(has_row_A & has_rows, place_A, EVENTS)


def opened(path, **values):
    log = LogReader.open(path)
    own = learning(settings(path, **{"stream__node_feature_dim": TOPICS, "training__tail_share": 0.2, **values}))
    return log, Recorder(own, log), Learner(own, log, ReplayStore.of(own))


def windows_of(path, **values):
    """Learn all windows. Yields for each the log, the learner before its training, and its scored chunks with their scores."""
    log, recorder, learner = opened(path, **values)
    for window in recorded_windows(log, HOUR):
        learner.begin()
        scored = [(chunk, learner.score(chunk)) for chunk in recorder.chunks(window)]
        yield log, learner, [(chunk, logits) for chunk, logits in scored if chunk.score is not None]
        learner.learn(window.first_edge)


def nodes_of(inputs):
    """Node ids of sources and candidates of some inputs: int64[E], int64[E, C]."""
    root_U = inputs.node_M[inputs.hops[0].root_U]
    return root_U[inputs.src_E].numpy(), root_U[inputs.candidate_EC].numpy()


@pytest.mark.parametrize("deleted", [0, 150])
def test_negatives_of_a_new_destination_are_those_of_a_plain_reference(tmp_path, deleted):
    _, place_A = write_shop(tmp_path, deleted=deleted)
    log, recorder, _ = opened(tmp_path)
    src, dst, time = log.edges(0, EVENTS)
    gone = set(range(SOURCES + ITEMS // 2, SOURCES + ITEMS // 2 + deleted))
    first_us = {}
    for node, when in zip(dst.tolist(), time.tolist(), strict=True):
        first_us.setdefault(node, when)
    num_learned = num_replaced = 0
    for window in recorded_windows(log, HOUR):
        for chunk in recorder.chunks(window):
            if chunk.learn is None:
                continue
            events, weights = chunk.learn.event_E.tolist(), chunk.learn.weight_E.tolist()
            _, node_EC = nodes_of(chunk.learn)
            new = [i for i, e in enumerate(events) if first_us[dst[e]] >= time[e] and place_A[dst[e] - SOURCES] <= chunk.first_edge]
            if not new:
                continue
            since = time[events[new[0]]]
            pool = [SOURCES + a for a in range(ITEMS) if place_A[a] <= chunk.first_edge and first_us.get(SOURCES + a, 2**62) >= since and SOURCES + a not in gone]
            for i in new:
                e, true = events[i], int(dst[events[i]])
                drawn = [pool[hash_of(e, j, NEW_SEED) % len(pool)] for j in range(NUM_LEARNED)]
                want = [true if first_us.get(n, 2**62) < time[e] else n for n in drawn]
                assert node_EC[i].tolist() == [true, *want]
                num_replaced += want.count(true)
                assert weights[i] == 1 and not chunk.known_E[i]
                num_learned += 1
            for i, e in enumerate(events):
                if i not in new:
                    assert weights[i] == (first_us[dst[e]] < time[e]), "of others nothing changes"
                    assert chunk.learn.log_draws_EC[i].eq(0).all()
    assert num_learned > 150 and 0 < num_replaced < 2 * num_learned


def test_new_destinations_rank_among_each_other_by_features_and_keep_their_rate_without(tmp_path):
    topic_N, place_A = write_shop(tmp_path)
    found, chance, moved, plain = [], [], [], 0
    values = {"training__epochs": 4, "training__learning_rate": 0.01, "model__neighbors": 6}
    for number, (_, learner, scored) in enumerate(windows_of(tmp_path, **values)):
        base = learner.model.new_destinations.logit_S
        assert bool(base.isfinite()) == (number > 0)
        for (chunk, logits), of_learn in zip(scored, learner.logits, strict=True):
            # Against known ones as in any scores: the rate, and with a row of features the score too.
            new, has_row = ~chunk.known_E, place_A[nodes_of(chunk.learn)[1][:, 0] - SOURCES] <= chunk.first_edge
            if number > 0:
                assert (logits[new & ~has_row, 0] == float(base)).all()
                plain += int((new & ~has_row).sum())
            if number < 5:
                continue
            moved += (logits[new & has_row, 0] - float(base)).tolist()
            learned = new & (chunk.learn.weight_E.numpy() > 0)
            counts = chunk.learn.is_candidate_EC.numpy()
            found += (1 / ranks(among_candidates(of_learn, counts))[learned]).tolist()
            chance += [(1 / np.arange(1, row.sum() + 1)).mean() for row in counts[learned]]
            # The score moves single ones, and the rate stays.
            others = np.exp(of_learn[learned, 1:][counts[learned, 1:]] - float(base))
            assert not len(others) or 0.2 < others.mean() < 5
    assert plain > 20 and len(found) > 100
    assert np.mean(found) > np.mean(chance) + 0.15, (np.mean(found), np.mean(chance))
    assert np.mean(moved) > 0.3, "true ones are above the rate"


def test_without_rows_of_features_everything_is_learned_to_the_same_bits(tmp_path, monkeypatch):
    write_shop(tmp_path, has_rows=False)

    def learned():
        windows = list(windows_of(tmp_path))
        scores = [logits for _, _, scored in windows for _, logits in scored]
        weights = windows[-1][1].model.state_dict()
        return np.concatenate(scores), {n: p for n, p in weights.items() if not n.startswith(NEW_SCORE)}

    scores, weights = learned()
    made = LinkModel.__init__

    def without(self, *arguments):
        made(self, *arguments)
        self.new_score = None
        self.with_features = lambda logits, inputs: logits

    monkeypatch.setattr(LinkModel, "__init__", without)
    monkeypatch.setattr(LinkModel, "forward", _forward_of_before)
    again, weights_again = learned()
    assert np.array_equal(scores, again)
    for name, tensor in weights.items():
        assert torch.equal(tensor, weights_again[name]), name


def _forward_of_before(self, inputs, state_MD, dropout=None):
    """`LinkModel.forward` before there was a score of new destinations, where no node has features: the match is zero."""
    logits = self.pair_logits(inputs.facts_ECF) + self.residual(self.embed(inputs, state_MD), inputs, dropout)
    added = self.feature_match(self.fact_stats(inputs.facts_ECF), torch.zeros_like(logits))
    return logits + (added if self.training else self.mask_new(added, inputs.facts_ECF))


def test_events_with_a_new_destination_measure_no_tail(tmp_path):
    write_shop(tmp_path)
    num_held = 0
    for _, learner, _ in windows_of(tmp_path):
        for chunk in learner.tail:
            new_E = chunk.inputs.is_new_E & (chunk.inputs.weight_E > 0)
            num_held += int(new_E.sum())
            known_E = (chunk.inputs.weight_E > 0) & ~new_E
            with torch.no_grad():
                assert len(learner._logits_of(chunk)[0]) == int(known_E.sum())
    assert num_held > 20, "they wait for the next window as others do"


def test_what_an_older_release_recorded_has_no_ages_and_teaches_no_score(tmp_path):
    write_shop(tmp_path)
    *_, (_, learner, _) = windows_of(tmp_path)
    chunk = learner.replay.chunks[0]
    assert (chunk.inputs.age_M >= 0).any() and (chunk.inputs.age_M[chunk.inputs.node_M < SOURCES] == -1).all()
    again = ReplayChunk.from_tensors(chunk.first_edge, chunk.tensors())
    assert torch.equal(again.inputs.age_M, chunk.inputs.age_M)
    older = ReplayChunk.from_tensors(chunk.first_edge, {n: t for n, t in chunk.tensors().items() if n != "age_M"})
    assert (older.inputs.age_M == -1).all() and len(older.inputs.age_M) == len(older.inputs.node_M)


def test_a_deleted_node_loses_its_row(tmp_path):
    write_shop(tmp_path, deleted=300)
    log, recorder, _ = opened(tmp_path)
    chunk = next(c for w in recorded_windows(log, HOUR) for c in recorder.chunks(w) if c.learn is not None and c.learn.age_M.ge(0).any())
    own = ReplayChunk(chunk.first_edge, chunk.learn, torch.zeros(len(chunk.learn.node_M), 8), chunk.num_events)
    node = int(chunk.learn.node_M[chunk.learn.age_M >= 0][0])

    class Deleted:
        is_gone = staticmethod(lambda nodes: nodes == node)
        hides_edges = staticmethod(lambda events: np.zeros(events.shape, np.bool_))

    age_M = own.without_deleted(Deleted).inputs.age_M
    assert (age_M[chunk.learn.node_M == node] == -1).all()
    assert torch.equal(age_M[chunk.learn.node_M != node], chunk.learn.age_M[chunk.learn.node_M != node])


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_version_that_serves_scores_new_destinations_as_windows_do(tmp_path, kind):
    """What a server and the scorer compute from cached vectors is what the trainer scored, at the start of each chunk."""
    write_shop(tmp_path)
    log, recorder, learner = opened(tmp_path, training__epochs=4, training__learning_rate=0.01)
    num_moved = 0
    for number, window in enumerate(recorded_windows(log, HOUR)):
        learner.begin()
        for chunk in recorder.chunks(window):
            model = learner.model
            answering = TorchModel(model) if kind == "torch" else NumpyModel(model.settings, SCHEMA, model.arrays())
            manifest = SimpleNamespace(window_seconds=3600, window_end_us=window.end_us)
            served = LoadedVersion(manifest, answering, learner.memory.copy())
            scores = learner.score(chunk)
            if number < 6 or chunk.score is None:
                continue
            source_E, node_EC = nodes_of(chunk.score)
            # Every node that is new, beside the candidates of the window.
            node_EC = np.concatenate([node_EC[:, SCORED], node_EC[:, LEARNED[1:]]], 1)
            facts_ECF = np.concatenate([chunk.scored_facts, chunk.learn.facts_ECF.numpy()[:, 1:]], 1)
            rows = facts_ECF.reshape(node_EC.size, -1)
            got = served.scores(rows, source_E.repeat(node_EC.shape[1]), node_EC.ravel(), recorder.live).reshape(node_EC.shape)
            # The columns of the scored candidates, without those that are none.
            counts = np.isfinite(scores)
            np.testing.assert_allclose(got[:, :101][counts], scores[counts], rtol=1e-3, atol=1e-4)
            of_learn, is_candidate = learner.logits[-1], chunk.learn.is_candidate_EC.numpy()
            np.testing.assert_allclose(got[:, 101:][is_candidate[:, 1:]], of_learn[:, 1:][is_candidate[:, 1:]], rtol=1e-3, atol=1e-4)
            new = ~chunk.known_E & (chunk.learn.weight_E.numpy() > 0)
            num_moved += int((np.abs(got[new, 101:] - float(model.new_destinations.logit_S[0])) > 0.1).sum())
        learner.learn(window.first_edge)
    assert num_moved > 200
