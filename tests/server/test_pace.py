import pytest

from streamd.server.engine import pace
from streamd.server.engine.pace import BACKLOG_SECONDS, STARTING_SECONDS, TURN_SECONDS, Pace


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


@pytest.mark.parametrize(("behind", "others", "wanted"), [
    (False, 1.0, TURN_SECONDS),
    (True, 0.001, TURN_SECONDS),
    (True, 0.01, 0.02),
    (True, 1.0, BACKLOG_SECONDS),
], ids=["level", "behind and little asked", "behind and asked", "behind and flooded"])
def test_following_has_its_share_of_the_time_and_more_of_it_while_behind(clock, behind, others, wanted):
    pace = Pace()
    pace.end(behind)
    clock.now += others
    assert pace.begin(answering=True) == pytest.approx(clock.now + wanted)


def test_before_anything_is_answered_following_has_longer_turns(clock):
    assert Pace().begin(answering=False) == pytest.approx(clock.now + STARTING_SECONDS)
