"""The model of more ranks than there are cores, by hand and on a few threads."""

import threading
import time

import numpy as np
import pytest

from tests.benchmarks.ranks_model import Link, Noted, NotedGroup, Turns, Work
from tests.ranks import threads


def test_a_chunk_takes_its_slowest_rank_and_a_round_its_largest():
    # Two chunks: 3 s and 4 s by their slowest ranks. Three rounds of half a second each, and 100, 40 and 0 bytes at 20 a second.
    work = Work(np.array([[3.0, 1.0], [2.0, 4.0]]), np.array([[100.0, 10.0, 0.0], [60.0, 40.0, 0.0]]), np.array([110.0, 50.0]))
    assert work.over(Link("by hand", 0.5, 20.0)) == pytest.approx(3 + 4 + 3 * 0.5 + (100 + 40) / 20)
    # Means 2.5 and 2.5 s.
    assert work.unevenness == pytest.approx((3 / 2.5 + 4 / 2.5) / 2)


def test_one_rank_computes_at_a_time_and_waiting_is_not_compute():
    import torch

    turns, working, most = Turns(), [], []
    guard = threading.Lock()

    def busy(seconds):
        with guard:
            working.append(1)
            most.append(len(working))
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        with guard:
            working.pop()

    def one(ranks):
        noted = Noted(turns)
        try:
            group = NotedGroup(ranks.learning, noted)
            noted.start()
            busy(0.05 if ranks.rank else 0.2)
            # Rank 0 sends 5 rows of 16 bytes to rank 1, which sends 2 back; rows to itself do not travel.
            sent, received = (([1, 5], [1, 2]), ([2, 3], [5, 3]))[ranks.rank]
            group.all_to_all(torch.zeros(sum(sent), 2, dtype=torch.int64), sent, received)
            busy(0.02)
            noted.chunk()
            return noted.seconds, noted.bytes, noted.sent
        finally:
            turns.end()

    told = threads.run(2, one)
    assert max(most) == 1
    assert [(bytes_, sent) for _, bytes_, sent in told] == [([80], 80), ([80], 32)]
    for (seconds, *_), wanted in zip(told, (0.22, 0.07), strict=True):
        assert seconds == [pytest.approx(wanted, abs=0.02)]
