"""Holds events that are far ahead of all others of their partition, and then takes or refuses them.

One event from a clock that runs ahead would move the log's time forward, and the events of all
other producers would be late. An event's *lead* is its time minus its record's Kafka timestamp. An
event of a wrong clock has a large lead; the first event after hours of silence has not. In a replay
of history the lead grows all the time, at a pace (`streamd.ingest.order.replay_pace`), and events
that keep it never wait.

The judgement is pure: it depends only on events and readings of a clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.decode.block import NO_STAMP, Block, empty_block, has_time, joined
from streamd.events import Bools, Int64
from streamd.ingest.order.placement import NEVER
from streamd.ingest.order.replay_pace import advances, usual_step
from streamd.ingest.order.runs import offset_item

NUM_LEADS = 1_000
"""Number of remembered leads, which determine the usual one of the partition."""
MIN_LEADS = 100
"""With fewer leads the usual one is unknown, and every event is taken."""
USUAL_SHARE = 0.99
"""Share of the remembered leads that count as usual. A median would refuse half of what a producer
sends in batches: their first events wait for the last ones, so leads vary by minutes."""
NUM_FOLLOWERS = 100
"""Number of events after a suspicious one that decide about it. If most of them lead as far, the
stream itself has moved on, as after a gap or in an import of history."""
PACE = 2
"""Number of usual steps by which an event of a replay may lead the events before it, since gaps
differ."""
HOLD_SECONDS = 1.0
"""Longest wait for followers. An event without any is taken, since it makes no other event late."""
NO_LEADS: Int64 = np.zeros(0, np.int64)


@dataclass(frozen=True)
class JudgedBlock:
    """The events taken and refused. ahead_seconds: how far each refused event is ahead."""

    taken: Block
    refused: Block
    ahead_seconds: tuple[float, ...] = ()


class Suspects:
    """Judges the events of one partition in order of offset. Owner: the poll thread.

    All events after the first undecided one wait too, so that positions need no gaps.

    max_ahead_us: how far an event's lead may exceed the usual one, microseconds.
    """

    def __init__(self, max_ahead_us: int, edge_feature_dim: int) -> None:
        self._max_ahead_us = max_ahead_us
        self._nothing = empty_block(edge_feature_dim)
        self._leads = np.zeros(0, np.int64)
        self._held: list[Block] = []
        self._since: list[NDArray[np.float64]] = []
        """Arrival of each event of each block, in monotonic seconds: float64[n]."""
        self._num_leads = 0
        """Number of held events that have a lead."""

    @property
    def waiting(self) -> Block:
        """The waiting events in one block: the first without enough followers, and all after it."""
        if len(self._held) > 1:
            self._held = [joined(self._held)]
            self._since = [np.concatenate(self._since)]
        return self._held[0] if self._held else self._nothing

    @property
    def first_waiting(self) -> tuple[int, int] | None:
        """Offset and item of the first waiting event; None if no event waits."""
        return offset_item(self._held[0].rows[0]) if self._held else None

    @property
    def waiting_since(self) -> float | None:
        """Arrival of the first waiting event, in monotonic seconds; None if no event waits."""
        return float(self._since[0][0]) if self._held else None

    def far_leads(self, events: Block) -> Int64:
        """Leads of a poll's events in microseconds, int64[n]; int64's smallest value (NEVER) for
        those within `max_ahead_us` of the usual lead."""
        index = _with_lead(events)
        lead = (events.rows["time"] - events.rows["stamp"])[index]
        usual = self._usual(lead)
        # With too few known leads, this partition's events confirm no large lead of another
        # partition.
        if usual is None:
            return np.full(len(lead), NEVER)
        return np.where(lead > usual + self._max_ahead_us, lead, NEVER)

    def judge(self, events: Block, now: float, others: Int64 = NO_LEADS) -> JudgedBlock:
        """Add the events of a poll and judge all that can be.

        Args: now: monotonic seconds; others: `far_leads` that the other partitions brought since
        the first held event came, int64[n] microseconds.
        """
        since = self._since[0][0] if self._held else -np.inf
        self._hold(events, np.full(len(events), now))
        # The first held event still has too few followers: nothing new can be judged.
        is_usual_known = len(self._leads) >= MIN_LEADS
        num_followers = self._num_leads + len(others)
        if is_usual_known and num_followers <= NUM_FOLLOWERS and now - since < HOLD_SECONDS:
            return JudgedBlock(self._nothing, self._nothing)
        block = self.waiting
        if not len(block):
            return JudgedBlock(block, block)
        came = self._since[0]
        index = _with_lead(block)
        lead = (block.rows["time"] - block.rows["stamp"])[index]

        # Judge those that lead further than usual; with too few followers they wait, unless the
        # stream keeps its pace or the other partitions lead as far.
        usual = self._usual(lead)
        unusual = self._unusual(lead, usual)
        undecided = len(lead)
        has_few = unusual + NUM_FOLLOWERS >= len(lead)
        expected = self._keeps_pace(lead, unusual) | self._is_shared(lead, unusual, others)
        # After an event that nothing confirms, the level may come from a wrong clock.
        unusual = unusual[~(has_few & np.logical_and.accumulate(expected))]
        early = unusual[unusual + NUM_FOLLOWERS >= len(lead)]
        early = early[now - came[index[early]] < HOLD_SECONDS]
        if len(early):
            undecided = int(early[0])
        unusual = unusual[unusual < undecided]
        refused = unusual[self._is_alone(lead, unusual)]

        # Remember the leads of the events taken; hold the rest.
        kept = np.ones(undecided, np.bool_)
        kept[refused] = False
        self._leads = np.concatenate([self._leads, lead[:undecided][kept]])[-NUM_LEADS:]
        end = int(index[undecided]) if undecided < len(lead) else len(block)
        self._held, self._since, self._num_leads = [], [], 0
        if end < len(block):
            self._hold(block.take(np.arange(end, len(block))), came[end:])

        # Separate the refused events.
        if not len(refused):
            return JudgedBlock(block.split(end)[0] if end < len(block) else block, self._nothing)
        away = np.zeros(end, np.bool_)
        away[index[refused]] = True
        seconds = tuple(((lead[refused] - (usual or 0)) / 1e6).tolist())
        return JudgedBlock(
            block.take(np.flatnonzero(~away)), block.take(np.flatnonzero(away)), seconds
        )

    def _hold(self, events: Block, since: NDArray[np.float64]) -> None:
        """Add events to the waiting ones. since: arrival times, monotonic seconds, float64[n]."""
        if len(events):
            self._held.append(events)
            self._since.append(since)
            self._num_leads += len(_with_lead(events))

    def _usual(self, lead: Int64) -> int | None:
        """The greatest usual lead in microseconds; None if too few leads are known.

        lead: of events not yet judged, used while too few are remembered.
        """
        known = self._leads if len(self._leads) >= MIN_LEADS else lead[:NUM_LEADS]
        if len(known) < MIN_LEADS:
            return None
        rank = int(USUAL_SHARE * (len(known) - 1))
        return int(np.partition(known, rank)[rank])

    def _unusual(self, lead: Int64, usual: int | None) -> Int64:
        """Indices of the events that lead further than usual by more than `max_ahead_us`.

        An event does not count if at least NUM_FOLLOWERS events of the block follow it and all of
        them lead as far.
        """
        if usual is None or not len(lead) or lead.max() <= usual + self._max_ahead_us:
            return np.zeros(0, np.int64)
        far = lead > usual + self._max_ahead_us
        least_behind = np.append(np.minimum.accumulate(lead[::-1])[::-1][1:], lead[-1])
        confirmed = least_behind >= lead - self._max_ahead_us
        confirmed[max(0, len(lead) - NUM_FOLLOWERS) :] = False
        return np.flatnonzero(far & ~confirmed)

    def _keeps_pace(self, lead: Int64, number: Int64) -> Bools:
        """Whether each of these events leads the events before it by at most PACE usual steps:
        bool[n]."""
        longest = PACE * usual_step(self._leads) if len(number) else 0
        if not longest:
            return np.zeros(len(number), np.bool_)
        return advances(self._leads, lead, number) <= longest

    def _is_shared(self, lead: Int64, number: Int64, others: Int64) -> Bools:
        """Whether enough events follow each of these events in all partitions together, and at
        least half of them lead as far: bool[n]. others: as in `judge`."""
        if not len(number) or not len(others):
            return np.zeros(len(number), np.bool_)
        # Events of other partitions have no order relative to these, so all of them count.
        exists, less = self._followers(lead, number)
        as_far = len(others) - np.searchsorted(np.sort(others), lead[number] - self._max_ahead_us)
        total = exists + len(others)
        is_shared: Bools = (total >= NUM_FOLLOWERS) & (2 * (exists - less + as_far) >= total)
        return is_shared

    def _is_alone(self, lead: Int64, number: Int64) -> Bools:
        """Whether most followers of each of these events lead less than it: bool[n]."""
        exists, less = self._followers(lead, number)
        alone: Bools = 2 * less > exists
        return alone

    def _followers(self, lead: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Number of followers of each of these events, at most NUM_FOLLOWERS, and of those that
        lead less than it: int64[n]."""
        step = np.arange(1, NUM_FOLLOWERS + 1)
        index = number[:, None] + step
        exists = index < len(lead)
        follower = lead[np.where(exists, index, 0)]
        less = exists & (follower < lead[number][:, None] - self._max_ahead_us)
        return exists.sum(1), less.sum(1)


class StreamSuspects:
    """Judges the events of all partitions of an assignment. Owner: the poll thread.

    partitions: the judge of each, by number.
    """

    def __init__(self, num_partitions: int, max_ahead_us: int, edge_feature_dim: int) -> None:
        self.partitions = [Suspects(max_ahead_us, edge_feature_dim) for _ in range(num_partitions)]
        self._polls: list[tuple[float, list[Int64]]] = []
        """Time and `far_leads` of each partition, of the polls since the first held event came."""

    def judge(self, polled: Sequence[Block], now: float) -> list[JudgedBlock]:
        """Add the events of a poll, by partition, and judge all that can be."""
        # Compute this before any partition learns from the poll: the first would know more than the
        # last.
        far = [part.far_leads(events) for part, events in zip(self.partitions, polled, strict=True)]
        self._polls.append((now, far))
        # Judge each by the others' events since its first held one came.
        judged = []
        for number, (part, events) in enumerate(zip(self.partitions, polled, strict=True)):
            since = now if part.waiting_since is None else part.waiting_since
            others = [
                leads
                for at, of_poll in self._polls
                for other, leads in enumerate(of_poll)
                if at >= since and other != number and len(leads)
            ]
            judged.append(part.judge(events, now, np.concatenate([NO_LEADS, *others])))

        # Only waiting events need the polls since their arrival.
        waiting = [part.waiting_since for part in self.partitions if part.waiting_since is not None]
        oldest = min(waiting, default=np.inf)
        self._polls = [poll for poll in self._polls if poll[0] >= oldest]
        return judged


def _with_lead(block: Block) -> Int64:
    """Indices of the events that have both a time and a timestamp."""
    has_lead = has_time(block.rows) & (block.rows["stamp"] != NO_STAMP)
    return np.flatnonzero(has_lead)
