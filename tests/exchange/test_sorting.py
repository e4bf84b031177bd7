"""Rows in order of time, in bounded memory."""

import random

import pytest

from streamd.exchange import sorting
from streamd.exchange.sorting import TimedRow, sort_rows


@pytest.mark.parametrize("max_bytes", [1, 500, 10**9])
@pytest.mark.parametrize("max_runs", [2, 64])
def test_rows_of_one_time_keep_their_order_however_little_memory_there_is(monkeypatch, max_bytes, max_runs):
    monkeypatch.setattr(sorting, "MAX_BYTES", max_bytes)
    monkeypatch.setattr(sorting, "MAX_RUNS", max_runs)
    draw = random.Random(5)
    rows = [TimedRow(draw.randrange(-3, 20), i, i + 1, b"x" * draw.randrange(9)) for i in range(200)]
    assert list(sort_rows(iter(rows))) == sorted(rows, key=lambda row: row.time_us)


def test_a_run_is_written_before_more_rows_are_read_than_memory_holds(monkeypatch):
    """The most rows that are in memory at a time, counted by those that nothing else holds."""
    monkeypatch.setattr(sorting, "MAX_BYTES", 100 * (sorting.ROW_BYTES + 8))
    alive, most = 0, 0

    class Value(bytes):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def rows():
        nonlocal alive, most
        for i in range(2000):
            alive += 1
            most = max(most, alive)
            yield TimedRow(-i, i, i, Value(b"12345678"))

    assert [row.time_us for row in sort_rows(rows())] == list(range(-1999, 1)) and most <= 110
