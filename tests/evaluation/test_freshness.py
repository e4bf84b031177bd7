import numpy as np

from streamd.evaluation.freshness import NightlySight
from streamd.training.recorder import Recorder
from tests.builders import learning
from tests.training.test_learner import windows, world


def test_a_standing_record_knows_nothing_of_the_day(tmp_path):
    s, log = world(tmp_path)
    third, fourth = list(windows(log))[2:4]
    moving, standing = Recorder(learning(s), log), Recorder(learning(s), log)
    for recorder in (moving, standing):
        recorder.rebuild(third.first_edge)
    pool = moving.sight.pool_of(third)

    def recorded(window):
        standing.sight = NightlySight(standing.live, pool)
        return [c for c in standing.chunks(window) if c.score is not None]

    first = [c.score.facts_ECF.numpy() for c in recorded(third)]
    assert recorded(fourth)
    again = [c.score.facts_ECF.numpy() for c in recorded(third)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert standing.edge == third.first_edge
    fresh = [c.score for c in moving.chunks(third) if c.score is not None]
    assert all(np.array_equal(a.event_E, c.score.event_E) for a, c in zip(fresh, recorded(third), strict=True))
    assert not all(np.array_equal(a.facts_ECF, b) for a, b in zip(fresh, first, strict=True))
