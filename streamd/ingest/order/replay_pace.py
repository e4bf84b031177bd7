"""The pace of a replay: the usual steps by which its lead grows.

A replay of history may send an hour of events in a second, so the lead of its events over their
records' timestamps grows for as long as it runs. The *level* of some neighboring events is the
median of their leads; one or two wrong clocks do not move it.
"""

import numpy as np

from streamd.events import Int64

LEVEL_EVENTS = 5
"""Events whose median lead is a level: two with a wrong clock among them do not move it."""
USUAL_STEPS = 6
"""Number of steps of at least one size that make this size usual. A burst of a wrong clock makes
one step."""


def usual_step(lead: Int64) -> int:
    """The usual step by which the level grows, microseconds; 0 if it does not grow.

    It is the smallest of the USUAL_STEPS largest steps from one level to the next. A step counts
    only if another level follows it and no later level falls back by more than half of it: a clock
    that was wrong for a while makes none.

    Args: lead: of the last events of a partition, in order of offset.
    """
    num = len(lead) // LEVEL_EVENTS
    if num < USUAL_STEPS + 2:
        return 0
    # Levels of neighboring events, and the steps between them; nothing confirms the last one yet.
    level = np.median(lead[len(lead) - num * LEVEL_EVENTS :].reshape(num, LEVEL_EVENTS), axis=1)
    step = np.diff(level)[:-1]
    lowest_after = np.minimum.accumulate(level[::-1])[::-1][2:]
    # A step that is undone later came from a wrong clock.
    lasting = step[(step > 0) & (lowest_after >= level[1:-1] - step / 2)]
    if len(lasting) < USUAL_STEPS:
        return 0
    return int(np.sort(lasting)[-USUAL_STEPS])


def advances(before: Int64, lead: Int64, index: Int64) -> Int64:
    """How far some events lead the level of the events before each, int64[n] microseconds.

    Args: before: leads of at least LEVEL_EVENTS events before the first of lead; index: of the
    events, in lead.
    """
    known = np.concatenate([before[-LEVEL_EVENTS:], lead])
    window = index[:, None] + np.arange(LEVEL_EVENTS)
    level: Int64 = np.median(known[window], axis=1).astype(np.int64)
    return lead[index] - level
