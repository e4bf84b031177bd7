"""What `streamd.ingest.order.placement` does, event by event and pair by pair."""

import numpy as np

from streamd.decode.block import NO_STAMP, has_time
from streamd.events import DELETE, EDGE, NODE
from streamd.ingest.order.placement import ALWAYS, NEVER


def order_events(buffers, situations):
    """(time that orders it, whether it may go) of each event of all partitions."""
    return [placed for number, now in enumerate(situations) for placed in of_partition(buffers, number, now)]


def of_partition(buffers, number, now):
    own = events_of(buffers[number])
    others = [e for i, block in enumerate(buffers) if i != number for e in events_of(block) if e.timed]
    pairs = [(d, later) for i, d in enumerate(own) if d.kind == DELETE for later in own[i + 1:] if later.timed and d.name in later.names]

    # The estimate, and which untimed events wait for others.
    earliest, behind, held = NEVER, NEVER, False
    for i, e in enumerate(own):
        earliest = max(earliest, e.time if e.timed else NEVER)
        if e.timed:
            e.at, e.ready = e.time, now.bound is None or e.time < now.bound
            continue
        waits = not (now.crowded and e.kind == NODE)
        wanted = e.stamp + now.lead if waits and now.lead is not None and e.stamp != NO_STAMP else NEVER
        after = set(map(id, own[i:]))
        latest = min([later.time for d, later in pairs if id(d) in after], default=ALWAYS)
        behind = e.at = max(behind, earliest, min(wanted, latest))
        held = held or (waits and e.stamp > now.reached)
        e.ready = is_due(e, now) and not held

    # Deletes move, and with them the untimed events behind them.
    for d in [e for e in own if e.kind == DELETE and e.ready]:
        d.at = max([d.at, *(o.time + 1 for o in others if o.stamp <= d.stamp and d.name in o.names)])
    behind = NEVER
    for e in own:
        if not e.timed:
            behind = e.at = max(behind, e.at)
            e.ready = e.ready and is_due(e, now)
    for d, later in pairs:
        later.at, later.ready = max(later.at, d.at), later.ready and d.ready
    return [(e.at, e.ready) for e in own]


def is_due(e, now):
    return now.bound is None or e.at < now.bound or e.order_events <= now.overdue


class Event:
    def __init__(self, row, extras):
        self.kind, self.time, self.stamp, self.order_events = (int(row["kind"]), int(row["time"]), int(row["stamp"]), (int(row["offset"]), int(row["item"])))
        a, b = int(row["a"]), int(row["b"])
        self.timed = bool(has_time(np.array([row]))[0])
        self.name = (a,) if b < 0 else (a, b, int(extras[row["extra"]][0]) if self.kind == DELETE else self.time)
        self.names = {(a,), (b,), (a, b, self.time)} if self.kind == EDGE else {(a,)}


def events_of(block):
    return [Event(row, block.extras) for row in block.rows]
