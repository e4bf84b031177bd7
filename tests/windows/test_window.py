from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.windows import canonical_chunks, closed_chunks, next_window
from streamd.windows.history import HistoryReader, WindowRecord, append_record, truncate_records


class Log:
    def __init__(self, times, watermark):
        self.times, self.watermark = np.array(times, np.int64), watermark
        self.num_edges = len(times)

    def time_of(self, ids):
        return self.times[ids]

    def lower_bound(self, t):
        return int(np.searchsorted(self.times, t))


def test_a_window_is_half_open_and_closes_when_the_watermark_reaches_its_end():
    log = Log([3, 9, 10, 25], 19)
    first = next_window(log, 0, 10)
    assert (first.start_us, first.end_us, first.first_edge, first.end_edge) == (0, 10, 0, 2)
    assert next_window(log, 2, 10) is None, "time 19 may still come"
    log.watermark = 20
    assert next_window(log, 2, 10).end_edge == 3
    assert next_window(log, 4, 10) is None


def test_empty_windows_are_passed_over():
    log = Log([3, 1000], 2000)
    assert next_window(log, 1, 10).start_us == 1000


def test_a_cut_moves_to_the_next_change_of_time():
    assert canonical_chunks(np.array([1, 2, 2, 2, 3]), 2) == [(0, 4), (4, 5)]
    assert canonical_chunks(np.array([1, 1, 1]), 2) == [(0, 3)]
    assert canonical_chunks(np.zeros(0, np.int64), 2) == []


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_chunks_cut_while_the_log_grows_are_those_of_whole_windows(seed, memory_chunk):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 60, rng.integers(1, 80)))
    width, want, at = 10, [], 0
    while at < len(times):
        end = int(np.searchsorted(times, (times[at] // width + 1) * width))
        want += [(at + a, at + b) for a, b in canonical_chunks(times[at:end], memory_chunk)]
        at = end
    got, start, seen = [], 0, 0
    while seen < len(times):
        seen = min(len(times), seen + int(rng.integers(1, 15)))
        watermark = int(times[seen - 1]) if seen < len(times) else 1000
        fresh = closed_chunks(times[start:seen], watermark, width, memory_chunk)
        got += [(start + a, start + b) for a, b in fresh]
        start = got[-1][1] if got else 0
    assert got == want


def test_history_is_read_while_it_is_written_and_cut_back_after_a_crash(tmp_path):
    record = WindowRecord(start_us=0, end_us=10, first_edge=0, end_edge=5, num_scored=5, version="v", scored_by="rule",
                          promoted=True, reason="fine", scores={"live": {"mrr": 0.5}}, loss=None, seconds={"score": 1.0},
                          finished_at=3.0)
    reader = HistoryReader(tmp_path)
    assert reader.refresh() == []
    size = append_record(tmp_path, record)
    following = replace(record, first_edge=5, end_edge=9)
    append_record(tmp_path, following)
    assert reader.refresh() == [record, following]
    truncate_records(tmp_path, size)
    assert reader.refresh() == [record]
