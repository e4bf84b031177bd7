"""Requests that a server answers itself before it is ready.

The first answer of each kind loads or compiles kernels, which takes from 0.03 to 2 seconds, and
touches new memory. No client should wait for that.
"""

import numpy as np

from streamd.serving.following_graph import ServerGraph
from streamd.serving.requests import Embedding, Explain, Label, Recommend, Request, Score, Similar

UNKNOWN_KEY = "a node that does not exist"
"""A key to use if the log has no event, or the nodes of its newest events are deleted."""
NUM_SCORED = 100
"""Candidates of the score request: about as many as clients send."""

LATER_US = 366 * 24 * 3_600_000_000
"""A time after which every chunk of the log is closed: windows are shorter than a year."""


def warm_up_requests(view: ServerGraph) -> list[Request]:
    """One request of each kind, about the endpoints of the newest events.

    One of them has a time long after the newest event, so that the memory advances for it.
    """
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
    ]
