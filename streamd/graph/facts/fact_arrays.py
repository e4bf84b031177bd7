"""The arrays that hold the pair facts, and their sizes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.graph.facts.columns import NUM_HALF_LIVES
from streamd.graph.kernel_types import record, writes

RATES = (0.5, 0.8, 0.95, 0.99)
"""Decay per event of the columns PAIR_WEIGHT_50 to PAIR_WEIGHT_99, which weigh about the last 2, 5,
20 and 100 events."""
NUM_RATES = len(RATES)
PARTNERS = 16
"""Number of last partners of a node in memory: one cache line of int32."""
NEVER = np.int64(-(2**62))
"""Time of an event that never happened; differences to it do not overflow."""
POWERS = 2048
"""Number of ages in the table of decays. A greater age has decay 0: 0.99 ** 2048 is one in a
billion."""
TRANSITIONS = 1 << 17
"""Entries of the table of transitions, 2.6 MB; a power of two. If two transitions have the same
index, the newer one replaces the older one."""
HOURS = 1 << 18
"""Entries of the table of hours of the day, 4.2 MB; otherwise as TRANSITIONS."""
COVISITS = 1 << 20
"""Entries of the table of co-visits, 16.8 MB; otherwise as TRANSITIONS. The first event of a pair
adds up to 10 entries."""
VISITED = 10
"""Number of last distinct destinations of a source in memory."""


SPARE_PAIRS = 64
"""Room of the table beyond `max_pairs`, for the temporary pairs of `supposing`."""


class FactArrays(NamedTuple):
    """The memory of the pair facts.

    Nodes: seen, last, last_dst int64[N]; log_pop float64[N, 5] as of pop_at int64[N]; repeats,
    log_gap float32[N]; num_partners int32[N]; ring int32[N, 16], newest at (ring_count - 1) % 16;
    mark int32[N] scratch; rank int32[N], one more than a node's index among all destinations in
    order of their first event, 0 for none; order int32[N], the inverse of rank; visited int32[N,
    10], one more than each of the last distinct destinations of a node, newest first, 0 for none;
    num_sources int32[N], its number of distinct sources.

    Pairs (key = smaller id << 32 | larger): weight float32[P, 2, 4], met_at int64[P, 2] (events of
    that side when they last met, -1 never), sent int64[P, 2]; num_met int32[P], their events;
    before, after int32[P], a linked list from least to most recently updated. slots int32[S]: open
    addressing, entry + 1.

    Transitions, each at the index of its hash: step_key uint64[T] (one more than last partner << 32
    | candidate, 0 none), step_count float32[T], step_at int64[T] (events of the last partner at
    that time).

    Hours of the day, each at the index of its hash (`streamd.graph.facts.hour_table`): hours
    uint64[H, 2], key (0 none) and number of events, so that both are in one cache line.

    Co-visits, each at the index of its hash (`streamd.graph.facts.covisits`): covisits
    uint64[V, 2], one more than smaller destination << 32 | larger (0 none), and their count.

    totals float64[5], decayed counts of all events as of total_at; power float32[4, 2048], decay by
    rate and age; decay float64[5] per microsecond; size int64[5]: number of pairs, oldest entry,
    newest entry, total_at, number of destinations.
    """

    seen: NDArray[Any]
    last: NDArray[Any]
    last_dst: NDArray[Any]
    log_pop: NDArray[Any]
    pop_at: NDArray[Any]
    log_gap: NDArray[Any]
    repeats: NDArray[Any]
    num_partners: NDArray[Any]
    ring: NDArray[Any]
    ring_count: NDArray[Any]
    mark: NDArray[Any]
    rank: NDArray[Any]
    order: NDArray[Any]
    visited: NDArray[Any]
    num_sources: NDArray[Any]
    key: NDArray[Any]
    weight: NDArray[Any]
    met_at: NDArray[Any]
    sent: NDArray[Any]
    num_met: NDArray[Any]
    before: NDArray[Any]
    after: NDArray[Any]
    slots: NDArray[Any]
    step_key: NDArray[Any]
    step_count: NDArray[Any]
    step_at: NDArray[Any]
    hours: NDArray[Any]
    covisits: NDArray[Any]
    totals: NDArray[Any]
    power: NDArray[Any]
    decay: NDArray[Any]
    size: NDArray[Any]


# Types and shapes of the arrays, by the kind of their rows.
NODE_ARRAYS: dict[str, tuple[Any, ...]] = {
    "seen": (np.int64,),
    "last": (np.int64,),
    "last_dst": (np.int64,),
    "log_pop": (np.float64, NUM_HALF_LIVES),
    "pop_at": (np.int64,),
    "log_gap": (np.float32,),
    "repeats": (np.float32,),
    "num_partners": (np.int32,),
    "ring": (np.int32, PARTNERS),
    "ring_count": (np.int64,),
    "mark": (np.int32,),
    "rank": (np.int32,),
    "order": (np.int32,),
    "visited": (np.int32, VISITED),
    "num_sources": (np.int32,),
}
"""Arrays of `FactArrays` over nodes -> dtype, and length of a row."""
PAIR_ARRAYS: dict[str, tuple[Any, ...]] = {
    "key": (np.uint64,),
    "weight": (np.float32, 2, NUM_RATES),
    "met_at": (np.int64, 2),
    "sent": (np.int64, 2),
    "num_met": (np.int32,),
    "before": (np.int32,),
    "after": (np.int32,),
}
"""Arrays over pairs -> dtype, and shape of a row."""
HASHED_ARRAYS: dict[str, tuple[Any, ...]] = {
    "step_key": (np.uint64, TRANSITIONS),
    "step_count": (np.float32, TRANSITIONS),
    "step_at": (np.int64, TRANSITIONS),
    "hours": (np.uint64, HOURS, 2),
    "covisits": (np.uint64, COVISITS, 2),
}
"""Arrays over transitions, hours of the day and co-visits -> dtype and shape, which is fixed."""
OTHER_ARRAYS: dict[str, tuple[Any, int]] = {
    "slots": (np.int32, 1),
    "totals": (np.float64, 1),
    "power": (np.float32, 2),
    "decay": (np.float64, 1),
    "size": (np.int64, 1),
}
"""All other arrays -> dtype and number of dimensions."""
_TYPES = {
    **{n: writes(kind, 1 + len(row)) for n, (kind, *row) in (NODE_ARRAYS | PAIR_ARRAYS).items()},
    **{n: writes(kind, len(shape)) for n, (kind, *shape) in HASHED_ARRAYS.items()},
    **{n: writes(kind, num_dims) for n, (kind, num_dims) in OTHER_ARRAYS.items()},
}
FACTS = record(FactArrays, *(_TYPES[name] for name in FactArrays._fields))
"""The type of `FactArrays` as an argument of kernels."""
