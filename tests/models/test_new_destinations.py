"""A destination without an event has a logit of its own: the rate of new ones, on the scale of the known."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.facts.columns import NUM_FACTS, FactColumn, num_facts
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.models import build_model
from streamd.models.inference.new_rates import COUNTS, HALF_LIFE_EVENTS, logits_of
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.torch_model import TorchModel
from streamd.training.learner import Learner
from streamd.training.measures import measures
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import recorded_windows
from streamd.windows.novelty import Novelty
from tests.builders import (
    HOUR,
    SETS,
    learning,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)

TRUE, LATE = NUM_FACTS + FactColumn.LOG_SECONDS_SINCE_DESTINATION, FactColumn.LOG_SECONDS_SINCE_DESTINATION


def rows_of(schema, seed=0):
    """Facts of 40 rows, the last 10 of destinations without an event; the asked sets take turns."""
    facts = np.random.default_rng(seed).normal(size=(40, num_facts(schema))).astype(np.float32)
    column = LATE if schema.num_edge_sets == 1 else TRUE
    facts[:, column] = 3.0
    facts[30:, column] = NEVER_LOG_SECONDS
    if schema.num_edge_sets > 1:
        facts[:, -schema.num_edge_sets :] = np.eye(schema.num_edge_sets)[np.arange(40) % schema.num_edge_sets]
    return facts


@pytest.mark.parametrize("schema", [Schema(2, 0, 0), SETS])
def test_torch_and_numpy_give_new_destinations_the_rate_of_their_set_and_leave_others(tmp_path, schema):
    s = settings(tmp_path, model__name="pair").model
    model = build_model(s, schema, 0).eval()
    facts = rows_of(schema)
    plain = TorchModel(model).pair_logits(facts)
    assert np.isfinite(plain).all() and np.ptp(plain[30:]) > 0, "before an event was counted the network answers"

    # The second and third sets are at 2 and 3 times the first one's rate.
    sets = schema.num_edge_sets
    counts = np.array([np.full(sets, 100.0), 10.0 * (1 + np.arange(sets)), np.full(sets, 100 * np.log(50))])
    model.new_destinations.observe(torch.from_numpy(counts)[None])
    got = TorchModel(model).pair_logits(facts)
    rate = (10.5, 20.5, 30.5)
    want = [np.log(rate[i % sets] / (101 - rate[i % sets])) + np.log(50) for i in range(30, 40)]
    assert np.array_equal(got[:30], plain[:30]) and np.allclose(got[30:], want, atol=1e-5)
    assert np.allclose(NumpyModel(s, schema, model.arrays()).pair_logits(facts), got, atol=1e-5)

    # Weights of releases that counted nothing say what they said.
    arrays = model.arrays()
    arrays.pop(COUNTS)
    model.restore(arrays)
    assert np.array_equal(TorchModel(model).pair_logits(facts), plain)
    assert np.allclose(NumpyModel(s, schema, arrays).pair_logits(facts), plain, atol=1e-5)


def test_the_past_fades_by_events_and_a_set_that_had_none_keeps_its_rate(tmp_path):
    model = build_model(settings(tmp_path, model__name="pair").model, SETS, 0).new_destinations
    first = torch.tensor([[100.0, 40.0, 0.0], [50.0, 4.0, 0.0], [300.0, 9.0, 0.0]], dtype=torch.float64)
    model.observe(first[None])
    before = model.logit_S.clone()
    model.observe(torch.tensor([[[HALF_LIFE_EVENTS, 0, 0], [0, 0, 0], [5, 0, 0]]], dtype=torch.float64))
    assert model.counts[:, 0].tolist() == [HALF_LIFE_EVENTS + 50, 25, 155]
    assert model.logit_S[1] == before[1] and model.logit_S[0] < before[0] and torch.isneginf(model.logit_S[2])


def test_the_events_of_a_window_fade_among_themselves(tmp_path):
    """Learning may begin with many events at once, of which the first ones were all new."""
    model = build_model(settings(tmp_path, model__name="pair").model, Schema(2, 0, 0), 0).new_destinations
    all_new, none_new = [[200.0], [200.0], [0.0]], [[200.0], [0.0], [0.0]]
    chunks = torch.tensor(10 * [all_new] + 90 * [none_new], dtype=torch.float64)
    model.observe(chunks)
    at_once = model.counts.clone()
    model.counts.zero_()
    for chunk in chunks:
        model.observe(chunk[None])
    assert torch.equal(model.counts, at_once)
    assert at_once[1, 0] / at_once[0, 0] < 0.004, "a tenth of the events, but the first ones"


def growing(num_edges=3000, num_users=30, share=0.2, seed=0):
    """Users come back to an item of the last 20, and one event in five is with an item that is new."""
    rng = np.random.default_rng(seed)
    items, dst = [num_users], []
    for _ in range(num_edges):
        if rng.random() < share:
            items.append(items[-1] + 1)
            dst.append(items[-1])
        else:
            dst.append(items[-1 - int(rng.integers(0, min(20, len(items))))])
    return rng.integers(0, num_users, num_edges), np.array(dst), np.sort(rng.integers(1, 10 * HOUR, num_edges))


def run(path, is_counted=True):
    """Scores of all events after the fifth window, their novelty, the learner, the chunks, and the logit of a new one at each event."""
    log = LogReader.open(path)
    own = learning(settings(path, model__name="pair", stream__edge_feature_dim=2))
    recorder, learner = Recorder(own, log), Learner(own, log, ReplayStore.of(own))
    scores, chunks, new = [], [], []
    for number, window in enumerate(recorded_windows(log, HOUR)):
        learner.begin()
        for chunk in recorder.chunks(window):
            logits = learner.score(chunk)
            if number >= 5 and len(logits):
                scores.append(logits)
                new += [float(learner.model.new_destinations.logit_S[0])] * len(logits)
                chunks.append(chunk)
        learner.learn(window.first_edge)
        if not is_counted:
            learner.model.new_destinations.counts.zero_()
            learner.model.new_destinations._derive()
    return np.concatenate(scores), Novelty.join([c.novelty for c in chunks]), learner, chunks, np.array(new)


def test_new_destinations_rank_by_their_rate_and_known_ones_as_without_it(tmp_path):
    write_log(tmp_path, *growing(), Schema(2, 0, 0), watermark=100 * HOUR)
    scores, novelty, learner, chunks, logit = run(tmp_path)
    without, _, other, _, _ = run(tmp_path, is_counted=False)
    got, last = measures(scores, novelty), measures(without, novelty)
    assert got["mrr_destination_new"] > 5 * last["mrr_destination_new"], (got, last)
    assert np.array_equal(scores[novelty.known_E], without[novelty.known_E]), "no negative is new here"
    assert all(torch.equal(a, b) for a, b in zip(learner.model.parameters(), other.model.parameters(), strict=True))

    # The chance of a new one among all, by the scores, is the rate at which they come.
    assert np.array_equal(scores[~novelty.known_E][:, 0], logit[~novelty.known_E])
    chance = chance_of_new(scores, novelty, chunks, logit)
    assert chance == pytest.approx((~novelty.known_E).mean(), rel=0.3)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_an_invented_key_ranks_higher_the_more_new_destinations_come(tmp_path, share):
    write_log(tmp_path, *growing(share=share), Schema(2, 0, 0), watermark=100 * HOUR)
    scores, novelty, _, _, logit = run(tmp_path)
    above = (scores[novelty.known_E][:, 0] < logit[novelty.known_E]).mean()
    low, high = {0.01: (0.0, 0.25), 0.05: (0.25, 0.75), 0.2: (0.75, 1.0)}[share]
    assert low <= above <= high


def chance_of_new(scores, novelty, chunks, logit):
    """Mean over events of exp(logit) over the sum of it and of all known destinations, of which negatives are a sample."""
    odds = np.exp(scores.astype(np.float64))
    counted = np.isfinite(scores[:, 1:])
    num_others = np.concatenate([c.num_others_E for c in chunks])
    mean_odds = np.where(counted, odds[:, 1:], 0).sum(1) / counted.sum(1)
    others = mean_odds * num_others + np.where(novelty.known_E, odds[:, 0], 0)
    return (np.exp(logit) / (np.exp(logit) + others)).mean()


def test_where_no_destination_is_new_for_long_an_invented_one_hardly_counts(tmp_path):
    write_log(tmp_path, *stream(2000, num_items=40, hours=10), Schema(2, 0, 0), watermark=100 * HOUR)
    scores, novelty, learner, chunks, _ = run(tmp_path)
    assert novelty.known_E.all()
    invented = chunks[-1].scored_facts[:1, 0].copy()
    invented[..., LATE] = NEVER_LOG_SECONDS
    logit = TorchModel(learner.model).pair_logits(invented)[0]
    assert logit < np.median(scores[:, 0]) and chance_of_new(scores, novelty, chunks, logit) < 0.03


def test_counts_are_of_all_scored_events_by_their_sets(tmp_path):
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path, src, dst, time, sets, watermark=100 * HOUR)
    log = LogReader.open(tmp_path)
    own = learning(settings(tmp_path, model__name="pair"))
    recorder, learner = Recorder(own, log), Learner(own, log, ReplayStore.of(own))
    chunks = []
    for window in recorded_windows(log, HOUR):
        learner.begin()
        for chunk in recorder.chunks(window):
            learner.score(chunk)
            chunks += [chunk] if chunk.score is not None else []
        learner.learn(window.first_edge)
    counts = learner.model.new_destinations.counts.numpy()
    for number in range(3):
        new = sum(int((~c.known_E & (c.edge_set_E == number)).sum()) for c in chunks)
        events = sum(int((c.edge_set_E == number).sum()) for c in chunks)
        # Events of a few windows fade by less than a fifth.
        assert 0.8 * events < counts[0, number] <= events and 0.8 * new - 0.01 <= counts[1, number] <= new
    assert counts[1].sum() > 0 and np.isfinite(logits_of(counts)).all()


def test_windows_in_which_all_destinations_are_new_count_too(tmp_path):
    """Nothing of them is learned. Were they left out, a stream with an event a window would never have a new one."""
    hours = np.arange(60)
    dst = np.where(hours < 30, 100 + hours % 3, 200 + hours)
    write_log(tmp_path, hours % 4, dst, 1 + hours * HOUR, Schema(2, 0, 0), watermark=100 * HOUR)
    log = LogReader.open(tmp_path)
    own = learning(settings(tmp_path, model__name="pair", stream__edge_feature_dim=2))
    recorder, learner = Recorder(own, log), Learner(own, log, ReplayStore.of(own))
    learned, logit = [], []
    for window in recorded_windows(log, HOUR):
        learner.begin()
        for chunk in recorder.chunks(window):
            learner.score(chunk)
        learned.append(learner.learn(window.first_edge) is not None)
        logit.append(float(learner.model.new_destinations.logit_S[0]))
    assert all(learned[5:30]) and not any(learned[30:])
    assert logit[29] < logit[40] < logit[59]


def test_deleted_destinations_are_none_that_could_come(tmp_path):
    src, dst, time = stream(600, num_items=40, hours=4)
    write_log(tmp_path, src, dst, time, Schema(2, 0, 0), watermark=100 * HOUR)
    log = LogReader.open(tmp_path)
    own = learning(settings(tmp_path, model__name="pair", stream__edge_feature_dim=2))

    def num_others():
        recorder = Recorder(own, log)
        return np.concatenate([c.num_others_E for w in recorded_windows(log, HOUR) for c in recorder.chunks(w) if c.score is not None])

    whole = num_others()
    kept = np.unique(dst)[5:]
    rows = np.zeros(5, DELETION)
    rows["src"], rows["dst"], rows["time"] = np.unique(dst)[:5], -1, -1
    writer = LogWriter(tmp_path, Schema(2, 0, 0))
    writer.commit(dataclasses.replace(empty_batch(Schema(2, 0, 0)), deletions_X=rows), Progress(), 100 * HOUR)
    writer.close()
    log.refresh()
    assert num_others()[-1] == whole[-1] - 5 == len(kept) - 1
