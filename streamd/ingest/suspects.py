"""Events far ahead of all others of their partition: held for a moment, then taken or refused.

One event from a clock that runs ahead would move the log's time forward, and everybody else's
events would be late. An event's *lead* is its time less its record's Kafka timestamp, which tells
an event that is ahead from a stream that had nothing to say for hours.

Pure: fed with events and a clock reading.
"""

from dataclasses import dataclass

import numpy as np

from streamd.events import Bools, Int64
from streamd.ingest.block import NO_STAMP, Block, empty_block, has_time, joined

NUM_LEADS = 1_000
"""Leads that are remembered: what is usual for the partition."""
MIN_LEADS = 100
"""Fewer leads than this say nothing of what is usual; then every event is taken."""
USUAL_SHARE = 0.99
"""Share of the remembered leads that count as usual. A median would refuse half of what a producer
sends in batches: their first events wait for the last ones, so leads spread over minutes."""
NUM_FOLLOWERS = 100
"""Events behind a suspicious one that decide about it: where most of them lead as far, the stream
itself has moved on, as after a gap or in an import of history."""
HOLD_SECONDS = 1.0
"""Longest wait for followers; without a single one the event is taken, it harms nobody so far."""


@dataclass(frozen=True)
class Judged:
    """taken: events to go on with. refused: those that are ahead of all others, and by how many
    seconds each."""

    taken: Block
    refused: Block
    ahead_seconds: tuple[float, ...] = ()


class Suspects:
    """Judges the events of one partition in order of offset. Owner: the poll thread.

    From the first undecided event on everything waits, so that positions need no gaps.
    """

    def __init__(self, max_ahead_us: int, edge_feature_dim: int) -> None:
        self._max_ahead_us = max_ahead_us
        self._nothing = empty_block(edge_feature_dim)
        self._leads = np.zeros(0, np.int64)
        self.held = self._nothing
        """Events that wait."""
        self._since = np.zeros(0)
        """When each of them came, monotonic seconds."""

    @property
    def first_held(self) -> tuple[int, int] | None:
        """Offset and item of the first event that waits, None where none does."""
        rows = self.held.rows
        return (int(rows["offset"][0]), int(rows["item"][0])) if len(rows) else None

    def judge(self, events: Block, now: float) -> Judged:
        """Take in what a poll brought and decide what can be decided. now: monotonic seconds."""
        if not len(events) and not len(self.held):
            return Judged(self._nothing, self._nothing)
        since = np.append(self._since, np.full(len(events), now))
        block = joined([self.held, events]) if len(self.held) else events
        place = np.flatnonzero(has_time(block.rows) & (block.rows["stamp"] != NO_STAMP))
        lead = (block.rows["time"] - block.rows["stamp"])[place]

        # Decide about those that lead further than usual; with too few followers they wait.
        usual = self._usual(lead)
        unusual = self._unusual(lead, usual)
        undecided = len(lead)
        early = unusual[unusual + NUM_FOLLOWERS >= len(lead)]
        early = early[now - since[place[early]] < HOLD_SECONDS]
        if len(early):
            undecided = int(early[0])
        unusual = unusual[unusual < undecided]
        refused = unusual[self._is_alone(lead, unusual)]

        # Remember the leads of what is taken; hold the rest.
        kept = np.ones(undecided, np.bool_)
        kept[refused] = False
        self._leads = np.concatenate([self._leads, lead[:undecided][kept]])[-NUM_LEADS:]
        end = int(place[undecided]) if undecided < len(lead) else len(block)
        self.held = block.take(np.arange(end, len(block))) if end < len(block) else self._nothing
        self._since = since[end:]
        if not len(refused):
            return Judged(block.split(end)[0] if end < len(block) else block, self._nothing)
        away = np.zeros(end, np.bool_)
        away[place[refused]] = True
        seconds = tuple(((lead[refused] - (usual or 0)) / 1e6).tolist())
        return Judged(block.take(np.flatnonzero(~away)), block.take(np.flatnonzero(away)), seconds)

    def _usual(self, lead: Int64) -> int | None:
        """The lead up to which events are as usual, microseconds; None where too few are known.

        lead: of events not yet judged, which speak for themselves where nothing is remembered.
        """
        known = self._leads if len(self._leads) >= MIN_LEADS else lead[:NUM_LEADS]
        if len(known) < MIN_LEADS:
            return None
        rank = int(USUAL_SHARE * (len(known) - 1))
        return int(np.partition(known, rank)[rank])

    def _unusual(self, lead: Int64, usual: int | None) -> Int64:
        """Numbers of the events that lead further than usual by more than `max_ahead_us`, less
        those where all that follows in the block, if that is enough, leads as far."""
        if usual is None or not len(lead) or lead.max() <= usual + self._max_ahead_us:
            return np.zeros(0, np.int64)
        far = lead > usual + self._max_ahead_us
        least_behind = np.append(np.minimum.accumulate(lead[::-1])[::-1][1:], lead[-1])
        confirmed = least_behind >= lead - self._max_ahead_us
        confirmed[max(0, len(lead) - NUM_FOLLOWERS) :] = False
        return np.flatnonzero(far & ~confirmed)

    def _is_alone(self, lead: Int64, number: Int64) -> Bools:
        """Whether most of the followers of each of these events lead less: bool[n]."""
        behind = np.arange(1, NUM_FOLLOWERS + 1)
        place = number[:, None] + behind
        there = place < len(lead)
        follower = lead[np.where(there, place, 0)]
        less = there & (follower < lead[number][:, None] - self._max_ahead_us)
        alone: Bools = 2 * less.sum(1) > there.sum(1)
        return alone
