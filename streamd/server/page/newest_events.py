"""The newest events of the log, as the page lists them while they arrive."""

from typing import Any

from streamd.eventlog.reader import LogReader
from streamd.server.engine.set_names import plain

NUM_SHOWN = 8
"""Number of newest events that the page lists."""


def newest_events(log: LogReader | None) -> list[dict[str, Any]]:
    """The newest events without deleted ones, newest first: id, keys of both endpoints, name of the
    edge set, and time in microseconds. Empty before the log has events."""
    if log is None or log.num_edges == log.first_edge:
        return []
    first, end = max(log.first_edge, log.num_edges - NUM_SHOWN), log.num_edges
    src_E, dst_E, time_E = log.edges(first, end)
    names = log.state.schema.edge_set_names
    rows = zip(
        range(first, end),
        src_E.tolist(),
        dst_E.tolist(),
        log.edge_sets(first, end).tolist(),
        time_E.tolist(),
        log.hidden(first, end).tolist(),
        strict=True,
    )
    # A deleted node has no key, and its events are hidden.
    return [
        {
            "id": event,
            "src": plain(log.keys[src]),
            "dst": plain(log.keys[dst]),
            "edge_set": names[number],
            "time_us": us,
        }
        for event, src, dst, number, us, is_hidden in rows
        if not is_hidden and log.keys[src] is not None and log.keys[dst] is not None
    ][::-1]
