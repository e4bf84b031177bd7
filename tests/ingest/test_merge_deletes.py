"""Where deletes and node features, which have no time of their own, come to lie among the events."""

from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.block import NO_STAMP, ROW, Block
from streamd.events import DELETE, EDGE, NODE, Position, Run
from streamd.ingest.order import merge
from streamd.ingest.order.merge import Merger
from streamd.ingest.order.runs import lacks_events

YEAR = 365 * 24 * 3600 * 1_000_000
SECOND = 1_000_000


class Sent(NamedTuple):
    """A record of one event. kind DELETE or NODE: of node a, without a time."""

    stamp: int
    time: int = 0
    kind: int = EDGE
    a: int = 0
    b: int = 1


def block(source, first_offset, sent):
    rows = [(s.time, s.stamp, source, first_offset + i, 0, s.kind, s.a, s.b if s.kind == EDGE else -1, -1)
            for i, s in enumerate(sent)]
    rows = np.array(rows, ROW) if rows else np.zeros(0, ROW)
    return Block(rows, np.zeros((len(rows), 0), np.float32))


class Reading:
    """Partitions read to their ends through a merger, some records a poll, with restarts on the way."""

    def __init__(self, *parts, wait_seconds=0.2, max_buffered=50_000):
        self.parts, self.wait_seconds, self.max_buffered = parts, wait_seconds, max_buffered
        self.stored = [Position(0)] * len(parts)
        self.log, self.now, self.most_buffered = [], 0.0, 0
        self.start()

    def start(self):
        self.merger = Merger(len(self.parts), self.wait_seconds, 0, self.max_buffered)
        self.at = [p.offset for p in self.stored]
        self.resumed = list(self.stored)
        for source, position in enumerate(self.stored):
            self.merger.start(source, position)

    def poll(self, source, count):
        part, first = self.parts[source], self.at[source]
        self.at[source] = min(first + count, len(part))
        events = block(source, first, part[first: self.at[source]])
        events = events.take(lacks_events(events.rows, self.resumed[source]))
        self.merger.push(source, events, (self.at[source], 0), self.at[source] == len(part), self.now)

    def release(self, limit=10**6):
        self.log += [(int(r["source"]), int(r["offset"])) for r in self.merger.release(self.now, limit).rows]
        self.stored = [self.merger.position(s) for s in range(len(self.parts))]

    def turn(self, counts, limit=10**6):
        paused = self.merger.partitions_to_pause()
        for source, count in enumerate(counts):
            if source not in paused:
                self.poll(source, count)
        self.most_buffered = max(self.most_buffered, self.merger.num_buffered)
        self.release(limit)
        self.now += 0.01

    def to_the_end(self, *counts, most=1_000_000):
        for _ in range(most):
            self.turn(counts)
            if self.merger.all_at_end and not self.merger.num_buffered:
                return self
        raise AssertionError("it never ends")

    @property
    def order(self):
        """The records in log order."""
        return [self.parts[s][o] for s, o in self.log]

    def clamped(self):
        """Events that came to lie behind a later one."""
        newest, late = -1, 0
        for sent in self.order:
            if sent.kind == EDGE:
                late += sent.time < newest
                newest = max(newest, sent.time)
        return late


def live_stream(num, a=0, lag=2 * SECOND, start=YEAR):
    """An event a second, produced `lag` later."""
    return [Sent(start + i * SECOND + lag, start + i * SECOND, a=a, b=10 + i) for i in range(num)]


@pytest.mark.parametrize("counts", [(500, 7), (7, 500), (50, 50)])
def test_a_delete_in_a_topic_of_its_own_finds_its_place_in_a_backlog(counts):
    edges = live_stream(5000)
    deletes = [Sent(edges[i].stamp + 1, kind=DELETE, a=i) for i in (0, 1200, 1201, 4998)]
    reading = Reading(edges, deletes).to_the_end(*counts)
    assert reading.clamped() == 0
    for delete in deletes:
        place = reading.order.index(delete)
        before = [s for s in reading.order[:place] if s.kind == EDGE]
        assert abs(len(before) - (delete.a + 1)) <= 3, "it lies where it was produced, to the spread of the lag"
        assert edges[delete.a] in before, "it does not overtake what it means"


def test_a_delete_never_overtakes_what_was_produced_before_it_even_in_an_import():
    """A year of history produced within a minute: the lead changes by hours from record to record."""
    today = 50 * YEAR
    edges = [Sent(today + i * 1000, YEAR + i * (YEAR // 60_000), a=i) for i in range(60_000)]
    deletes = [Sent(edges[i].stamp + 1, kind=DELETE, a=i) for i in range(100, 60_000, 9_000)]
    for counts in ((20_000, 100), (500, 1)):
        reading = Reading(edges, deletes).to_the_end(*counts)
        assert reading.clamped() == 0
        for delete in deletes:
            assert reading.order.index(edges[delete.a]) < reading.order.index(delete)


def test_a_replay_with_deletes_inline_clamps_and_hides_nothing_by_their_dates():
    """2023 produced today, a delete behind every hundredth event, its user back right after it."""
    today, sent, rng = 50 * YEAR, [], np.random.default_rng(0)
    for i in range(5000):
        user = int(rng.integers(20))
        sent.append(Sent(today + i * 500, YEAR + i * 60 * SECOND, a=user, b=100))
        if i % 100 == 50:
            sent.append(Sent(today + i * 500 + 100, kind=DELETE, a=user))
            sent.append(Sent(today + i * 500 + 200, YEAR + i * 60 * SECOND + 1, a=user, b=100))
    other = [Sent(today + i * 5000, YEAR + i * 600 * SECOND + 7, a=500, b=501) for i in range(500)]
    reading = Reading(sent, other).to_the_end(300, 300)
    assert reading.clamped() == 0
    order, own = reading.order, [s for s in reading.order if s in set(sent)]
    assert [s for s in own if s.kind == DELETE] == [s for s in sent if s.kind == DELETE]
    assert own == sent, "a delete stays between what was sent before and behind it"
    assert len(order) == len(sent) + len(other)


def test_events_of_a_user_sent_behind_its_delete_stay_behind_it_though_they_are_earlier():
    sent = [Sent(100, 90, a=1, b=7), Sent(101, kind=DELETE, a=1), Sent(102, 50, a=1, b=7), Sent(103, 60, a=2, b=7),
            Sent(104, 95, a=3, b=1)]
    reading = Reading(sent, [Sent(110, 200, a=9)]).to_the_end(10, 10)
    order = reading.order
    assert order.index(sent[1]) < order.index(sent[2]) and order.index(sent[1]) < order.index(sent[4])
    assert order.index(sent[3]) == 0, "who is not named goes by its own time"


def test_a_partition_of_deletes_holds_nobody_back():
    reading = Reading(live_stream(100), [Sent(YEAR + 10**9, kind=NODE, a=1)] * 50)
    reading.turn((100, 10))
    assert len([s for s in reading.order if s.kind == EDGE]) >= 99, "only the newest may tie with what is to come"


def test_a_backlog_of_node_features_is_not_buffered_whole():
    updates = [Sent(YEAR + i * SECOND // 100, kind=NODE, a=i % 50) for i in range(60_000)]
    for edges in (live_stream(600), [Sent(YEAR + 10**15, YEAR)], []):
        reading = Reading(edges, updates, max_buffered=1000).to_the_end(20, 500)
        assert reading.most_buffered < 4_000 and len(reading.order) == len(edges) + len(updates)
    mixed = [Sent(YEAR, YEAR, a=3), *updates, Sent(YEAR + 601 * SECOND, YEAR + 601 * SECOND, a=4)]
    reading = Reading(live_stream(600), mixed, max_buffered=1000).to_the_end(20, 500)
    assert reading.most_buffered < 4_000 and len(reading.order) == 600 + len(mixed)


def test_a_live_delete_goes_within_the_wait_and_no_earlier_event_behind_it():
    """Both partitions are read to their ends; the delete's topic is otherwise silent."""
    reading = Reading(live_stream(50), [Sent(YEAR + 3600 * SECOND, kind=DELETE, a=0)])
    reading.turn((50, 1))
    assert not any(s.kind == DELETE for s in reading.order)
    reading.now += 0.2
    reading.release()
    assert reading.order[-1].kind == DELETE and len(reading.order) == 51


def test_without_any_event_and_without_timestamps_deletes_go_in_their_own_order():
    reading = Reading([Sent(NO_STAMP, kind=DELETE, a=i) for i in range(5)], []).to_the_end(2, 1)
    assert [s.a for s in reading.order] == list(range(5))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_mixture_is_taken_once_each_and_deletes_stay_among_what_they_name(seed):
    rng = np.random.default_rng(seed)
    parts = []
    for p in range(3):
        clock, sent = int(rng.integers(0, 50)), []
        for _ in range(int(rng.integers(1, 40))):
            clock += int(rng.integers(0, 5))
            kind = EDGE if rng.random() < (0.0, 0.7, 1.0)[p] else int(rng.choice([DELETE, NODE]))
            time = max(0, clock - 3 + int(rng.integers(-4, 4))) if kind == EDGE else 0
            sent.append(Sent(clock, time, kind, int(rng.integers(4)), int(rng.integers(4))))
        parts.append(sent)
    max_runs = rng.choice([3, 30, 10**6], size=2).tolist()
    with patch.object(merge, "MAX_RUNS", max_runs[0]):
        reading = Reading(*parts, wait_seconds=0.05, max_buffered=int(rng.choice([3, 10, 1000])))
    for _ in range(5_000):
        if rng.random() < 0.1:
            # With partitions added, fewer runs are let through for each.
            with patch.object(merge, "MAX_RUNS", max_runs[1]):
                reading.start()
        reading.turn(rng.integers(0, 6, 3).tolist(), int(rng.integers(1, 9)))
        if reading.merger.all_at_end and not reading.merger.num_buffered:
            break
    assert sorted(reading.log) == [(s, o) for s, part in enumerate(parts) for o in range(len(part))]
    place = {name: i for i, name in enumerate(reading.log)}
    for s, part in enumerate(parts):
        for o, delete in enumerate(part):
            if delete.kind != DELETE:
                continue
            for other, sent in enumerate(part):
                if sent.kind == EDGE and delete.a in (sent.a, sent.b):
                    assert (place[s, other] < place[s, o]) == (other < o), "a delete and what it names keep their order"


def test_a_restart_with_more_runs_ahead_than_are_let_through_reads_on(monkeypatch):
    """Deletes and events by turns, all events ahead; then partitions were added, or a poll is small."""
    monkeypatch.setattr(merge, "MAX_RUNS", 40)
    mixed = [sent for edge in live_stream(50) for sent in (Sent(edge.stamp, kind=DELETE, a=500), edge)]
    reading = Reading(mixed, live_stream(1, a=600))
    reading.stored[0] = Position(0, 0, tuple(Run((i, 0), (i, 0)) for i in range(1, 100, 2)))
    reading.log = [(0, i) for i in range(1, 100, 2)]
    reading.start()
    reading.to_the_end(2, 2, most=10_000)
    assert sorted(reading.log) == [(0, i) for i in range(100)] + [(1, 0)]


def test_a_delete_goes_behind_an_event_of_another_partition_with_the_same_time():
    edges = live_stream(50)
    deletes = [Sent(edge.stamp, kind=DELETE, a=edge.b) for edge in edges[::10]]
    for parts in ((deletes, edges), (edges, deletes)):
        order = Reading(*parts).to_the_end(5, 5).order
        assert all(order.index(e) < order.index(d) for e, d in zip(edges[::10], deletes, strict=True))
