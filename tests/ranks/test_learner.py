"""Ranks learn together what one rank learns alone: the number of ranks never changes what is learned."""

import threading

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.schema import Schema
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.builders import HOUR, learning, settings, stream, write_log
from tests.ranks.threads import run

ONE_AT_A_TIME = threading.Lock()
"""Threads share torch's seed, from which weights are drawn."""


def plain_world(path, **values):
    s = settings(path, model__memory_chunk=60, training__epochs=2, **values)
    write_log(path, *stream(500, hours=4), Schema(2, 0, 0), watermark=10 * HOUR)
    return s




def windows(log):
    edge = log.first_edge
    while (window := next_window(log, edge, HOUR)) is not None:
        yield window
        edge = window.end_edge


def recorded(s, ranks):
    """What is recorded of each chunk: the inputs of this rank's events."""
    log = LogReader.open(s.data_dir)
    recorder = Recorder(learning(s), log, ranks)
    return [chunk for window in windows(log) for chunk in recorder.chunks(window)]


def learned(s, ranks, num_windows=3):
    """What is scored, and what state learning leaves."""
    log = LogReader.open(s.data_dir)
    with ONE_AT_A_TIME:
        learner = Learner(learning(s), log, ReplayStore.of(learning(s), ranks=ranks), ranks)
    recorder = Recorder(learning(s), log, ranks)
    scores, results = [], []
    for window in list(windows(log))[:num_windows]:
        learner.begin()
        for chunk in recorder.chunks(window):
            logits = learner.score(chunk)
            if chunk.score is not None:
                scores.append((chunk.score.event_E.numpy(), logits))
        results.append(learner.learn(window.first_edge))
    return {
        "events": np.concatenate([e for e, _ in scores]), "logits": np.concatenate([x for _, x in scores]),
        "weights": learner.model.state_dict(), "results": results, "recall": learner.recall(),
        "replay": [c.first_edge for c in learner.replay.chunks], "tail": [c.first_edge for c in learner.tail]}


def together(parts):
    """Events and logits of all ranks in order of the events."""
    events = np.concatenate([p["events"] for p in parts])
    order = np.argsort(events)
    return events[order], np.concatenate([p["logits"] for p in parts])[order]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", ["tgn", "tgat", "dysat"])
def test_draws_samples_and_facts_are_those_of_one_rank_to_the_bit(tmp_path, size, name):
    s = plain_world(tmp_path, model__name=name, training__recent_negatives=0.5)
    whole = recorded(s, run(1, lambda ranks: ranks)[0])
    parts = run(size, lambda ranks: recorded(s, ranks))
    for number, chunk in enumerate(whole):
        shares = [p[number] for p in parts]
        assert all(x.num_events == chunk.num_events == sum(len(y.known_E) for y in shares) for x in shares)
        if chunk.score is None:
            assert all(x.score is None for x in shares)
            continue
        for kind in ("score", "learn"):
            one, split = getattr(chunk, kind), [getattr(x, kind) for x in shares]
            for field in ("event_E", "facts_ECF", "weight_E", "log_draws_EC"):
                assert torch.equal(torch.cat([getattr(x, field) for x in split]), getattr(one, field))
            assert torch.equal(torch.cat([named(x) for x in split]), named(one))
            samples = dict(sampled(one))
            for x in split:
                for key, value in sampled(x):
                    assert torch.equal(samples[key], value)


def named(inputs):
    """Node ids of each event's candidates."""
    return inputs.node_M[inputs.hops[0].root_U][inputs.candidate_EC]


def sampled(inputs):
    """(hop, root) -> its neighbors, events, times and features."""
    for h, hop in enumerate(inputs.hops):
        for row, root in enumerate(inputs.node_M[hop.root_U].tolist()):
            neighbor = torch.where(hop.mask_UK[row], inputs.node_M[hop.neighbor_UK[row]], -1)
            yield (h, root), torch.cat([neighbor.double(), hop.eid_UK[row].double(), hop.ago_UK[row].double(),
                                        hop.edge_UKD[row].flatten().double()])


@pytest.mark.parametrize(("size", "name"), [(2, "tgn"), (3, "tgn"), (4, "tgn"), (2, "tgat"), (3, "dysat"), (2, "sage"), (2, "pair")])
def test_what_ranks_learn_is_what_one_rank_learns(tmp_path, size, name):
    s = plain_world(tmp_path, model__name=name)
    one = run(1, lambda ranks: learned(s, ranks))[0]
    parts = run(size, lambda ranks: learned(s, ranks))
    for part in parts:
        assert part["replay"] == one["replay"] and part["tail"] == one["tail"]
        for key, tensor in parts[0]["weights"].items():
            assert torch.equal(part["weights"][key], tensor), "all ranks have the same weights"
    # How many destinations were new is counted over all ranks, chunk by chunk.
    counts, alone = (run["weights"]["new_destinations.counts"] for run in (parts[0], one))
    assert alone[1, 0] > 1 and torch.allclose(counts[:2], alone[:2], rtol=1e-12)
    assert torch.allclose(counts[2], alone[2], rtol=1e-2)
    events, logits = together(parts)
    np.testing.assert_array_equal(events, one["events"])
    # Columns without a candidate of their own are the same, minus infinity on each side.
    is_candidate = np.isfinite(one["logits"])
    np.testing.assert_array_equal(np.isfinite(logits), is_candidate)
    np.testing.assert_allclose(logits[:200], one["logits"][:200], rtol=1e-4, atol=1e-4)
    assert abs(logits[is_candidate] - one["logits"][is_candidate]).mean() < 0.02
    for a, b in zip(parts[0]["results"], one["results"], strict=True):
        assert a.num_tail == b.num_tail and a.loss == pytest.approx(b.loss, rel=2e-3)
        assert a.tail_before == pytest.approx(b.tail_before, abs=0.03)
    assert parts[0]["recall"]["mrr"] == pytest.approx(one["recall"]["mrr"], abs=0.03)
