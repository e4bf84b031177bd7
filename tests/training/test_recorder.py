from streamd.training.recorder import Recorder
from tests.builders import learning
from tests.training.test_learner import windows, world


def test_a_large_window_is_scored_on_a_seeded_sample(tmp_path):
    s, log = world(tmp_path, windows__max_events=30)
    recorder = Recorder(learning(s), log)
    for number, window in enumerate(list(windows(log))[:2]):
        sampled = sum(c.score.num_events for c in recorder.chunks(window) if c.score is not None)
        assert sampled == 30, number
    assert recorder.live.facts.edge == window.end_edge, "all events move the facts"
