"""Runs of events that are in the log ahead of their partition's position, because an earlier event
still waits."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from streamd.decode.block import Rows
from streamd.events import Bools, Int64, OffsetItem, Position, Run

first_of = attrgetter("first")
last_of = attrgetter("last")


def offset_item(row: np.void) -> OffsetItem:
    return int(row["offset"]), int(row["item"])


def runs_of(rows: Rows, chosen: Bools) -> list[Run]:
    """The runs of the chosen rows of a partition. rows: sorted by offset and item."""
    turns = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    begins, ends = turns[::2], turns[1::2] - 1
    columns = (rows[name][at].tolist() for at in (begins, ends) for name in ("offset", "item"))
    return [Run((a, b), (c, d)) for a, b, c, d in zip(*columns, strict=True)]


def join_runs(runs: Sequence[Run], waiting: Rows, following: OffsetItem) -> tuple[Run, ...]:
    """Join runs with no waiting event between them, and drop those before the first waiting event.

    runs: of events that are in the log, in any order. waiting: the partition's buffer. following:
    (offset, index) up to which it was read; later runs, known from before a restart, are not
    joined.
    """
    out: list[Run] = []
    before_last = -1
    ordered = sorted(runs)
    num_before = _num_before(waiting, [run.first for run in ordered]).tolist()
    for run, before in zip(ordered, num_before, strict=True):
        if run.last < following and before == 0:
            continue
        if out and before == before_last and run.first < following:
            # A run that was released later may include an earlier one.
            out[-1] = Run(out[-1].first, max(out[-1].last, run.last))
        else:
            out.append(run)
        before_last = before
    return tuple(out)


def runs_from(runs: tuple[Run, ...], at: OffsetItem) -> tuple[Run, ...]:
    """The runs that end at or after an (offset, index). runs: in ascending order."""
    if not runs or runs[0].last >= at:
        return runs
    return runs[bisect_left(runs, at, key=last_of) :]


def lacks_events(rows: Rows, resume: Position) -> Bools:
    """Whether the log lacks each event of a partition that is read again from `resume`: bool[n]."""
    offset = rows["offset"]
    missing: Bools = (offset > resume.offset) | (
        (offset == resume.offset) & (rows["item"] >= resume.index)
    )
    if not len(rows) or not resume.ahead:
        return missing

    # Only few runs overlap these rows.
    begin = bisect_left(resume.ahead, offset_item(rows[0]), key=last_of)
    end = bisect_right(resume.ahead, offset_item(rows[-1]), key=first_of)
    runs = resume.ahead[begin:end]
    after_last = [(run.last[0], run.last[1] + 1) for run in runs]
    turns = np.zeros(len(rows) + 1, np.int64)
    np.add.at(turns, _num_before(rows, [run.first for run in runs]), 1)
    np.add.at(turns, _num_before(rows, after_last), -1)
    missing &= np.cumsum(turns)[:-1] == 0
    return missing


def _num_before(rows: Rows, items: Sequence[OffsetItem]) -> Int64:
    """The number of rows before each (offset, item) of `items`, int64; both are sorted."""
    offset, item = np.array(items, np.int64).reshape(-1, 2).T
    keys = np.append(item, rows["item"]), np.append(offset, rows["offset"])
    # Of equal keys, those of `items` come first.
    order = np.lexsort(keys)
    is_row = order >= len(items)
    before: Int64 = np.cumsum(is_row, dtype=np.int64)[~is_row]
    return before
