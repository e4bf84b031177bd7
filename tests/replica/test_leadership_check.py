"""What runs beside ingest learns from the changelog that another member leads."""

import pytest

from streamd.errors import FencedError
from streamd.eventlog.journal.changelog_position import CHANGELOG
from streamd.eventlog.writer import LogWriter
from streamd.replica.leader.leader import lead
from streamd.replica.leader.leadership_check import LeadershipCheck
from streamd.telemetry import replica_metrics
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import ManualClock
from tests.eventlog import test_crash as life
from tests.replica.twin import Topic


def test_a_member_leads_until_a_higher_term_is_in_the_changelog(tmp_path):
    topic = Topic()
    publisher = lead(tmp_path / "a", topic.producer(), topic.reader(), member="a")
    log = LogWriter(tmp_path / "a", life.SCHEMA, life.SEGMENT_EDGES, publisher=publisher)
    life.live(log, 3)
    here = LeadershipCheck(tmp_path / "a", topic.reader)
    assert not here.is_here()
    with pytest.raises(FencedError):
        here.check()
    beat = Heartbeat(tmp_path / "a", "ingest")
    beat.note(term=publisher.term, leading=True)
    beat.touch("leading")
    assert here.is_here()
    here.check()
    life.live(log, 5)
    here.check()

    # Another member claims; ingest here has not noticed it yet.
    lead(tmp_path / "b", topic.producer(), topic.reader(), member="b")
    assert here.is_here()
    with pytest.raises(FencedError, match="Another member leads"):
        here.check()
    (tmp_path / "a" / CHANGELOG).unlink()
    with pytest.raises(FencedError):
        here.check()
    log.close()


def test_a_leader_that_no_broker_acknowledges_does_not_say_that_it_leads(tmp_path):
    clock = ManualClock()
    topic = Topic()
    publisher = lead(tmp_path / "a", topic.producer(), topic.reader(), member="a")
    publisher._now = clock.monotonic
    publisher._sent_at = publisher._heard_at = clock.monotonic()

    def leads():
        publisher.heartbeat()
        publisher.acknowledged()
        return replica_metrics.leads._value.get()

    clock.advance(2)
    publisher.heartbeat()
    topic.turn()
    assert leads() == 1
    topic.hold, topic.patience = True, 10**9
    said = []
    for _ in range(8):
        clock.advance(1)
        said.append(leads())
    assert said == sorted(said, reverse=True) and said[0] == 1 and said[-1] == 0
    topic.hold = False
    topic.turn()
    topic.turn()
    leads()
    assert leads() == 1
