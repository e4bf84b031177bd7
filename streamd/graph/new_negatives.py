"""Negatives for an event with a new destination: other nodes that were new then.

A node is new if it was never a destination before the event. The negatives have a row of features,
as the true destination does. So a model learns to distinguish new destinations from one another,
not from known ones.
"""

import numpy as np

from streamd.events import Bools, Int64
from streamd.graph.negatives import NUM_LEARNED, Pools, hashes
from streamd.graph.row_positions import RowPositions

NEW_SEED = 4
"""Differs from the seeds of other draws: equal hashes would correlate them."""


def draw_new(
    pools: Pools,
    positions: RowPositions,
    deleted: Int64,
    event_E: Int64,
    dst_E: Int64,
    known_E: Int64,
) -> tuple[Int64, Bools]:
    """Draw the negatives of events for training: nodes of the true destination's node set with a
    row of features that were no destination before the event, nor are deleted, uniformly with
    replacement, by the hash of `Pool.draw`.

    They are drawn from the nodes that were new at the first of the events. A node that was a
    destination by the time of its event is replaced by the true destination, and so does not count.

    positions: of the rows before the events. deleted: int64, ids of deleted nodes. event_E: int64
    event ids, ascending. dst_E: int64 true destinations, all new. known_E: from
    `Pools.known_before`.

    Returns: the negatives, int64[E, 10]; and bool[E], whether the model can be trained on the
    event: its destination has a row, and at least one negative counts.
    """
    out = np.repeat(dst_E[:, None], NUM_LEARNED, 1)
    is_learned = positions.has_row(dst_E)
    set_E = pools.node_sets_of(dst_E)
    for node_set in np.unique(set_E[is_learned]):
        rows = np.flatnonzero(is_learned & (set_E == node_set))

        # The nodes that were new at the first of these events.
        nodes = positions.sample()
        nodes = nodes[pools.node_sets_of(nodes) == node_set]
        nodes = nodes[~pools.holds(nodes, np.full(len(nodes), known_E[rows].min()))]
        nodes = nodes[~np.isin(nodes, deleted)]
        if not len(nodes):
            continue

        # Replace nodes that became a destination since.
        drawn = nodes[hashes(event_E[rows], NUM_LEARNED, NEW_SEED) % np.uint64(len(nodes))]
        known = np.repeat(known_E[rows], NUM_LEARNED)
        held = pools.holds(drawn.ravel(), known).reshape(drawn.shape)
        out[rows] = np.where(held, dst_E[rows, None], drawn)
    return out, is_learned & (out != dst_E[:, None]).any(1)
