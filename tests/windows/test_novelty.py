import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.training.recorder import Recorder
from streamd.windows import recorded_windows
from streamd.windows.novelty import Novelty, NoveltyCounts, recurrence
from tests.builders import HOUR, learning, sets_stream, settings, write_sets_log


def test_novelty_is_that_of_the_events_before_in_the_set_or_in_all(tmp_path):
    """A pair is one of its edge set; ends are known from every set."""
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path, src, dst, time, sets, watermark=100 * HOUR)
    log = LogReader.open(tmp_path)
    recorder = Recorder(learning(settings(tmp_path, model__name="pair")), log)
    chunks = [c for w in recorded_windows(log, HOUR) for c in recorder.chunks(w) if c.score is not None]
    told = Novelty.join([c.novelty for c in chunks])
    events = np.concatenate([c.score.event_E.numpy() for c in chunks])
    want = []
    for e in events.tolist():
        before = np.flatnonzero(time < time[e])
        same = before[sets[before] == sets[e]]
        want.append((bool(((src[same] == src[e]) & (dst[same] == dst[e])).any()), bool((dst[before] == dst[e]).any()),
                     bool(((src[before] == src[e]) | (dst[before] == src[e])).any())))
    assert list(zip(told.pair_seen_E.tolist(), told.known_E.tolist(), told.source_known_E.tolist(), strict=True)) == want
    assert min(told.counts.pair_seen, told.counts.pair_new, told.counts.destination_new, told.counts.source_new) > 0


def test_a_mean_is_over_the_events_of_each_part_that_has_any():
    yes, no = np.array([True, True, False]), np.zeros(3, bool)
    new = Novelty(yes, ~no, ~yes)
    assert new.means(np.array([1.0, 0.5, 0.25])) == {"pair_seen": 0.75, "pair_new": 0.25, "source_new": 0.75}
    assert new.counts == NoveltyCounts(pair_seen=2, pair_new=1, destination_new=0, source_new=2)
    assert Novelty.join([]).means(np.zeros(0)) == {}


def test_recurrence_is_over_the_windows_that_counted_it():
    two = [NoveltyCounts(pair_seen=seen, pair_new=n - seen, destination_new=0, source_new=0) for n, seen in ((10, 9), (30, 0))]
    assert recurrence([None, *two]) == pytest.approx(9 / 40) and recurrence([None]) is None and recurrence([]) is None
