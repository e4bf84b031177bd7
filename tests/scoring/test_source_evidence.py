"""Rare events of one source add up, those of a busy one do not by their number, and a while later all is forgotten."""

import math

import msgspec
import numpy as np
import pytest

from streamd.scoring import source_evidence
from streamd.scoring.alarms import DAY_US, Alarms
from streamd.scoring.rarity import MIN_EVENTS
from streamd.scoring.source_evidence import REFERENCE, SourceEvidence
from tests.scoring.test_alarms import days, options, raised, scored

HOUR_US = 3_600_000_000


def usual(made, count=2 * MIN_EVENTS, seed=0):
    """Events of 40 sources, a minute apart, with uniform p-values. Returns: the time after them."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        made.rate(int(rng.integers(40)), i * 60_000_000, float(1 - rng.random()), float(rng.random()), True)
    return count * 60_000_000


def test_evidence_is_the_cumulative_sum_with_forgetting():
    made = SourceEvidence(HOUR_US)
    sums, rng, at = {}, np.random.default_rng(1), 0
    for _ in range(500):
        at += int(rng.integers(0, HOUR_US))
        src, p = int(rng.integers(5)), float(1 - rng.random())
        value, since = sums.get(src, (0.0, at))
        sums[src] = max(0.0, value * 0.5 ** ((at - since) / HOUR_US) - math.log(p) - REFERENCE), at
        assert made.rate(src, at, p, 0.5, True) is None, "too few are compared"
    assert made.state().newest[-1] == pytest.approx(sums[src][0])
    assert {node: value for node, value, _ in made.state().sources} == pytest.approx({node: value for node, (value, _) in sums.items()})


def test_rare_events_of_one_source_add_up_and_usual_ones_never_do():
    made = SourceEvidence(HOUR_US)
    now = usual(made)
    of_one = [made.rate(50, now + i, 0.02, 0.5, True) for i in range(5)]
    assert of_one == sorted(of_one, reverse=True) and of_one[0] > 0.005 > of_one[-1]
    of_many = [made.rate(60 + i, now + 10 + i, 0.02, 0.5, True) for i in range(5)]
    assert min(of_many) > 0.005
    busy = [made.rate(70, now + 20 + i, 0.3, 0.5, True) for i in range(100)]
    assert min(busy) > 0.05
    # Half an hour later much of it counts, a day later none.
    assert made.rate(50, now + HOUR_US // 2, 0.02, 0.5, False) < 0.005 < made.rate(50, now + 24 * HOUR_US, 0.02, 0.5, False)


def test_an_event_that_comes_again_is_not_added_again():
    made = SourceEvidence(HOUR_US)
    now = usual(made)
    first = made.rate(50, now, 0.001, 0.5, True)
    before = made.state()
    assert made.rate(50, now, 0.001, 0.5, False) == pytest.approx(first, abs=0.0006)
    assert made.state() == before


def test_without_a_quiet_time_each_event_counts_alone():
    made = SourceEvidence(0)
    now = usual(made)
    assert len({round(made.rate(50, now + i, 0.02, 0.5, True), 2) for i in range(5)}) == 1


def test_the_oldest_source_is_forgotten_and_deleted_ones_at_once(monkeypatch):
    monkeypatch.setattr(source_evidence, "MAX_SOURCES", 3)
    made = SourceEvidence(HOUR_US)
    for i, src in enumerate((1, 2, 1, 3, 4)):
        made.rate(src, i, 0.01, 0.5, True)
    assert [node for node, *_ in made.state().sources] == [1, 3, 4]
    made.forget(np.array([3, 99]))
    assert [node for node, *_ in made.state().sources] == [1, 4]


def test_there_are_as_many_alarms_as_wanted_although_rare_events_come_in_runs(tmp_path):
    """Each fifth event begins a run of five of the same source and rarity."""
    rng = np.random.default_rng(2)
    made, found = Alarms(tmp_path, options(server__alarms_per_day=1)), []
    for i in range(70 * 500):
        if i % 5 == 0:
            src, value = int(rng.integers(200)), float(rng.exponential())
        one = made.rate(scored(i, src, value + 1e-6 * rng.random(), i * (DAY_US // 500)))
        found += raised([one]) if i >= 10 * 500 else []
    assert 0.6 * 60 < len(found) < 1.4 * 60, "the threshold of events alone gave a fifth of them"


def test_a_file_of_an_older_release_has_no_evidence_yet(tmp_path):
    made = Alarms(tmp_path, options())
    for one in days(1):
        made.rate(one)
    made.store()
    stored = msgspec.msgpack.decode(made._path.read_bytes())
    del stored["evidence"], stored["firsts"]
    made._path.write_bytes(msgspec.msgpack.encode(stored))
    again = Alarms(tmp_path, options())
    assert len(again._rarity.state().sets["default"][0]) == 500 and not again._evidence.state().newest
