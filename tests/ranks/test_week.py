"""A week of real events: with fixed weights ranks score what one rank scores, and learn as well as it does.

`make slow` runs it: it takes too long for every change."""

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.graph.ranking import ranks as rank_of
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.builders import HOUR, learning
from tests.ranks.test_learner import ONE_AT_A_TIME
from tests.ranks.threads import run
from tests.ranks.week import week

pytestmark = pytest.mark.slow


def windows(log):
    edge = log.first_edge
    while (window := next_window(log, edge, HOUR)) is not None:
        yield window
        edge = window.end_edge


def made(s, ranks):
    log = LogReader.open(s.data_dir, keep_keys=False)
    with ONE_AT_A_TIME:
        learner = Learner(learning(s), log, ReplayStore.of(learning(s), ranks=ranks), ranks)
        # A new model is its pair network: let the graph count as well.
        torch.manual_seed(1)
        torch.nn.init.normal_(learner.model.head_out.weight, std=0.3)
    return log, learner, Recorder(learning(s), log, ranks)


def scored(s, ranks, learn=False):
    """Event ids and logits of this rank's events, and the states of its nodes at the end."""
    log, learner, recorder = made(s, ranks)
    out = []
    for number, window in enumerate(windows(log)):
        learner.begin()
        for chunk in recorder.chunks(window):
            logits = learner.score(chunk)
            if chunk.score is not None:
                out.append((chunk.score.event_E.numpy(), logits))
        if number == 0:
            learner.update_statistics()
        if learn:
            learner.learn(window.first_edge)
    memory = learner.memory
    place = np.arange(memory.rows.num_positions)
    node = place if memory.rows.owned is None else memory.rows.owned.nodes(place)
    state = memory.rows.state(node)
    return np.concatenate([e for e, _ in out]), np.concatenate([x for _, x in out]), node, state


def joined(parts):
    events, nodes = (np.concatenate([p[i] for p in parts]) for i in (0, 2))
    by_event, by_node = np.argsort(events), np.argsort(nodes)
    return (events[by_event], np.concatenate([p[1] for p in parts])[by_event],
            nodes[by_node], np.concatenate([p[3] for p in parts])[by_node])


@pytest.mark.parametrize("name", ["wikipedia", "taxi"])
def test_fixed_weights_score_a_week_alike_on_any_number_of_ranks(tmp_path, name):
    s = week(name, tmp_path / "log", windows__max_events=500)
    one = joined(run(1, lambda ranks: scored(s, ranks)))
    for size in (2, 3, 4):
        some = joined(run(size, lambda ranks: scored(s, ranks)))
        np.testing.assert_array_equal(some[0], one[0])
        np.testing.assert_array_equal(some[2], one[2])
        for got, want, what in ((some[1], one[1], "logits"), (some[3], one[3], "memory")):
            worst = float((abs(got - want) / (1 + abs(want))).max())
            print(f"{name}, {size} ranks: {what} differ by {worst:.1e} at most")
            assert worst <= 1e-5


def test_a_week_is_learned_as_well_by_several_ranks(tmp_path):
    def mrr(size, seed):
        s = week("wikipedia", tmp_path / f"{size}-{seed}", windows__max_events=1000, training__seed=seed)
        _, logits, _, _ = joined(run(size, lambda ranks: scored(s, ranks, learn=True)))
        return float((1 / rank_of(logits)).mean())

    alone = [mrr(1, seed) for seed in range(3)]
    spread = max(alone) - min(alone)
    print(f"one rank, three seeds: {min(alone):.4f} to {max(alone):.4f}")
    for size in (2, 3, 4):
        got = mrr(size, 0)
        print(f"{size} ranks: {got:.4f}, one rank {alone[0]:.4f}")
        assert abs(got - alone[0]) <= spread
