"""The score topic touched by others: a stray, a damaged, a trimmed or a removed record or topic, and what must happen."""

import dataclasses
import math

import pytest

from streamd.scoring.loop import SCORES
from streamd.scoring.outbox import Outbox
from streamd.scoring.record import decode
from streamd.telemetry import replica_metrics
from tests.scoring.test_loop import learned, life
from tests.scoring.world import Topic

__all__ = ["learned", "life"]


def of_another_log(topic, **values):
    """A record as ours, which says something of an event of another log."""
    newest = topic.records[-1]
    return dataclasses.replace(newest, **values).encode(values.get("complete_before", newest.complete_before))


STRAYS = {
    # what: (the value, whether it looks like a score)
    "a line of a console producer": (lambda topic: b"hello", False),
    "a tombstone": (lambda topic: None, False),
    "an event far ahead": (lambda topic: of_another_log(topic, event=10**6, complete_before=10**6), True),
    "an event of another time": (lambda topic: of_another_log(topic, event=318, complete_before=318), True),
    "an event of another source": (lambda topic: of_another_log(topic, src="n:99999", complete_before=topic.records[-1].event), True),
    "an event that is before what it calls complete": (lambda topic: of_another_log(topic, complete_before=319), True),
}


def strays():
    return replica_metrics.stray_records.labels(SCORES)._value.get()


def run_until(scoring, life, event):
    """Score until an event, and write down how far it came."""
    life.feed.commit(event)
    scoring.turn()
    scoring.loop._kept_at = -math.inf
    scoring.turn()


def scored(topic):
    return sorted({record.event for part in topic.partitions for _, value in part if (record := decode(value)) and record.event < 1000})


@pytest.mark.parametrize("what", [*STRAYS, "all of them, and no place beside the topic"])
def test_a_stray_says_nothing_of_where_to_go_on(life, what):
    topic = Topic()
    run_until(life.scoring(topic).ready(), life, 300)
    assert scored(topic) == list(range(260, 300))
    chosen = [STRAYS[what]] if what in STRAYS else STRAYS.values()
    values = [(make(topic), is_score) for make, is_score in chosen]
    for part in topic.partitions:
        part.extend((b"", value) for value, _ in values)
    if what not in STRAYS:
        (life.path / "roles/score/complete").unlink()
    life.feed.commit(310)
    before = strays()
    second = life.scoring(topic).ready()
    assert strays() - before == 2 * sum(is_score for _, is_score in values)
    run_until(second, life, 320)
    assert set(range(260, 320)) <= set(scored(topic)) and second.skipped == {}, "no event is skipped"


@pytest.mark.parametrize("how", ["trimmed", "removed"])
def test_a_topic_without_records_is_gone_on_with_where_scoring_was(life, how):
    topic = Topic()
    run_until(life.scoring(topic).ready(), life, 300)
    life.feed.commit(320)
    if how == "trimmed":
        topic.partitions = [[], []]
    else:
        topic = Topic()
    second = life.scoring(topic).ready()
    second.turn()
    assert scored(topic)[-20:] == list(range(300, 320)) and second.skipped == {}


def test_a_log_that_was_restored_scores_its_newest_events_again(life):
    """The place is that of the log of before, which had more."""
    (life.path / "roles/score").mkdir(parents=True, exist_ok=True)
    (life.path / "roles/score/complete").write_bytes(b"999999")
    topic = Topic()
    run_until(life.scoring(topic).ready(), life, 280)
    assert scored(topic) == list(range(260, 280))


class LateSink:
    """Acknowledges what the test names."""

    def __init__(self):
        self.sent, self.written = [], set()

    def send(self, key, value, alarm):
        record = decode(value)
        self.sent.append(record)
        return LateReceipt(self, record.event)

    def abandon(self): ...


class LateReceipt:
    def __init__(self, sink, event):
        self.sink, self.event = sink, event

    def is_written(self):
        return self.event in self.sink.written


def test_a_record_calls_complete_only_what_is_acknowledged_or_passed_over(life):
    """One that says too much makes the next start skip what was on its way."""
    scoring = life.scoring().ready()
    life.feed.commit(280)
    scoring.scorer.view.log.refresh()
    found = scoring.scorer.step(20)
    events = [one.record.event for one in found]
    assert len(events) > 10
    sink = LateSink()
    outbox = Outbox(lambda: sink, lambda at: None, lambda reason, number: None)
    outbox.add(found[:5], [0.0] * 5)
    outbox.step(0.0, -1.0)
    assert {r.complete_before for r in sink.sent} == {events[0]}, "none is acknowledged"
    sink.written = set(events[1:5])
    outbox.add(found[5:8], [0.0] * 3)
    outbox.step(0.0, -1.0)
    assert {r.complete_before for r in sink.sent[5:]} == {events[0]}, "the first one is not"
    assert outbox.complete_before(events[-1] + 1) == events[0]
    sink.written.add(events[0])
    outbox.add(found[8:], [0.0] * (len(found) - 8))
    outbox.step(0.0, -1.0)
    assert {r.complete_before for r in sink.sent[8:]} == {events[5]}
    sink.written = set(events)
    outbox.step(0.0, -1.0)
    assert outbox.complete_before(events[-1] + 1) == events[-1] + 1
