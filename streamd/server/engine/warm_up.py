"""Requests that a server sends itself before it is ready.

The first answer of each kind loads or compiles kernels, which takes from 0.03 to 2 seconds, and
touches new memory. No client should wait for that.
"""

import numpy as np

from streamd.events import Key
from streamd.server.engine.set_names import in_set
from streamd.serving.following_graph import ServerGraph
from streamd.serving.requests import (
    Embedding,
    Explain,
    Label,
    NewSource,
    Recommend,
    Request,
    Score,
    Similar,
    SourceEvent,
)

UNKNOWN_KEY = "a node that does not exist"
"""A key for a log without events, or with deleted nodes in its newest events."""
NUM_SCORED = 100
"""Candidates of the score request: about as many as clients send."""

LATER_US = 366 * 24 * 3_600_000_000
"""A time after which every chunk of the log is closed: windows are shorter than a year."""


def warm_up_requests(view: ServerGraph) -> list[Request]:
    """One request of each kind, about the endpoints of the newest events.

    One has a query time long after the newest event, so that memory advances for it. Two have a new
    source, with a last event at the same late time.
    """
    # The keys of the newest events; a deleted node has none.
    newest = max(view.log.first_edge, view.edge - NUM_SCORED)
    src, dst, _ = view.log.edges(newest, view.edge)
    keys = [view.log.keys[node] for node in np.append(src[-1:], dst)]
    source, *targets = [UNKNOWN_KEY if key is None else key for key in keys] or [
        UNKNOWN_KEY,
        UNKNOWN_KEY,
    ]
    later_us = view.newest_us + LATER_US
    return [
        Score(source, tuple(targets)),
        Score(source, tuple(targets), later_us),
        Recommend(src=source),
        Similar(node=targets[-1]),
        Embedding(source),
        Label(source),
        Explain(source, targets[-1]),
        *_with_a_new_source(view, targets, later_us),
    ]


def _with_a_new_source(view: ServerGraph, targets: list[Key], later_us: int) -> list[Request]:
    """Requests with a new source in the edge set of the newest event. targets: keys, the last of
    them the destination of that event. later_us: time of the source's last event."""
    # The edge set of the newest event, 0 before the first.
    schema = view.log.state.schema
    edge_set = int(
        np.append(0, view.log.edge_sets(max(view.log.first_edge, view.edge - 1), view.edge))[-1]
    )
    node_set = schema.ends_of(edge_set)[0]
    widths = schema.node_columns(node_set), schema.edge_columns(edge_set)
    own, of_edge = ((0.0,) * (columns.stop - columns.start) for columns in widths)

    # The last event closes the chunks of memory before it.
    times = (None, view.newest_us, later_us)
    events = tuple(SourceEvent(targets[-1], time, edge_set, of_edge) for time in times)
    source, new = in_set(node_set, UNKNOWN_KEY), NewSource(own, events)
    return [
        Score(source, tuple(targets), edge_set=edge_set, new=new),
        Recommend(src=source, edge_set=edge_set, new=new),
    ]
