"""Topics imported one after the other: what waits, and what is ahead of it, costs by the event."""

import numpy as np
import pytest

from streamd.decode.block import ROW, Block, has_time
from streamd.eventlog.journal.journal import encode_line, progress_fields
from streamd.events import DELETE, EDGE, NODE, Position, Progress, Run
from streamd.ingest.order import merge
from streamd.ingest.order.merge import MAX_RUNS, Merger
from streamd.replica.changelog.records import MAX_LINE_BYTES

TODAY, YEAR = 50 * 365 * 86_400 * 10**6, 365 * 86_400 * 10**6
NUM = 20_000


def topic(num, source, kinds):
    """A year of clicks, produced today behind the topics before; `kinds` says what some records are instead."""
    rows = np.zeros(num, ROW)
    index = np.arange(num)
    rows["source"], rows["offset"], rows["extra"] = source, index, -1
    rows["stamp"] = TODAY + (source * num + index) * 20
    rows["time"], rows["a"], rows["b"] = index * (YEAR // num), index % 997, 1000 + index % 77
    rows["kind"] = EDGE
    for kind, chosen in kinds.items():
        rows["kind"][chosen] = kind
        rows["time"][chosen], rows["b"][chosen] = 0, -1
    return rows


def profiles_first(num):
    """The profiles are a topic of their own, produced before the clicks."""
    return [topic(num, 0, {NODE: slice(None)}), topic(num, 1, {})]


def one_profile_behind(num):
    """The second topic of clicks begins with a profile, which waits until all of the first is read."""
    return [topic(num, 0, {}), topic(num, 1, {NODE: slice(1)})]


def profiles_between(num):
    return [topic(num, p, {NODE: slice(0, None, 2)}) for p in range(2)]


def deletes_between(num):
    return [topic(num, p, {DELETE: slice(50, None, 100)}) for p in range(2)]


class Import:
    """Reads the topics, with a commit after each poll. late: events that came behind a later one. line_bytes: of each commit's positions."""

    def __init__(self, parts, poll=200):
        self.parts, self.line_bytes, self.most_arrivals = parts, [], 0
        self.merger = Merger(len(parts), 0.2, 0)
        at, now, log = [0] * len(parts), 0.0, []
        while not (self.merger.all_at_end and not self.merger.num_buffered):
            paused = self.merger.partitions_to_pause()
            for p, rows in enumerate(parts):
                end = at[p] if p in paused else min(at[p] + poll, len(rows))
                events = Block(rows[at[p]: end].copy(), np.zeros((end - at[p], 0), np.float32))
                at[p] = end
                self.merger.push(p, events, (end, 0), end == len(rows), now)
            self.most_arrivals = max(self.most_arrivals, len(self.merger._arrivals))
            released = self.merger.release(now, 20_000)
            if len(released):
                positions = dict(enumerate(map(self.merger.position, range(len(parts)))))
                self.line_bytes.append(len(encode_line(progress_fields(Progress("c", {"t": "id"}, {"t": positions})))))
            log.append(released.rows)
            now += 0.01
            assert now < 1000
        self.log = np.concatenate(log)
        times = self.log["time"][has_time(self.log)]
        self.late = int((times < np.maximum.accumulate(times)).sum())


@pytest.mark.parametrize("topics", [profiles_first, one_profile_behind, profiles_between, deletes_between])
def test_an_import_of_twice_as_many_events_writes_twice_as_much(topics):
    once, twice = Import(topics(NUM)), Import(topics(2 * NUM))
    for read, num in ((once, NUM), (twice, 2 * NUM)):
        assert sorted(zip(read.log["source"], read.log["offset"], strict=True)) == [(p, o) for p in range(2) for o in range(num)]
        assert read.late == 0 or topics is deletes_between, "only what follows a delete of it waits with the delete"
    assert sum(twice.line_bytes) < 2.5 * sum(once.line_bytes) and sum(twice.line_bytes) < 100 * 4 * NUM
    assert max(once.most_arrivals, twice.most_arrivals) < 100, "of events that wait long there is one arrival"


def test_profiles_do_not_fall_behind_the_clicks_of_their_own_records():
    read = Import(profiles_between(2 * NUM))
    place = {(int(r["source"]), int(r["offset"])): i for i, r in enumerate(read.log)}
    behind = [place[1, o] - place[1, o + 1] for o in range(0, 2 * NUM - 1, 2)]
    assert max(behind) < 10 * merge.CROWDED_RUNS


def test_no_line_comes_near_what_followers_take():
    """Runs are counted over all partitions; a release may add some more."""
    widest = Run((2**63 - 1, 2**31 - 1), (2**63 - 1, 2**31 - 1))
    few, more = (len(encode_line(progress_fields(Progress(positions={"t": {0: Position(0, 0, (widest,) * n)}})))) for n in (10, 110))
    assert MAX_RUNS * (more - few) / 100 < MAX_LINE_BYTES / 2


def test_a_partition_with_too_many_runs_ahead_is_read_no_further_until_the_deletes_may_go(monkeypatch):
    monkeypatch.setattr(merge, "MAX_RUNS", 400)
    clicks, deletes = topic(900, 0, {}), topic(900, 1, {DELETE: slice(0, None, 2)})
    merger = Merger(2, 0.2, 0)
    push(merger, 0, clicks[:420], 420)
    push(merger, 1, deletes[:410], 410)
    merger.release(0.0, 10_000)
    assert len(merger.position(1).ahead) >= 200 and merger.partitions_to_pause() == [1], "each delete waits until the clicks are read"

    # Meanwhile the clicks flow; at their end the deletes go, and the partition is read on.
    push(merger, 0, clicks[420:], 900)
    assert len(merger.release(2.0, 10_000)) > 470 and merger.partitions_to_pause() == [1]
    merger.push(0, EMPTY, (900, 0), True, 3.0)
    merger.release(4.0, 10_000)
    assert merger.position(1) == Position(410) and merger.partitions_to_pause() == []


EMPTY = Block(np.zeros(0, ROW), np.zeros((0, 0), np.float32))


def push(merger, source, rows, end):
    merger.push(source, Block(rows.copy(), np.zeros((len(rows), 0), np.float32)), (end, 0), False, 0.0)
