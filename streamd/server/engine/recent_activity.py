"""The recent activity around a node, and the stream of server-sent events with its changes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamd.errors import OffloadedError
from streamd.events import Int64, Key
from streamd.graph.blocks.draws import Draw
from streamd.graph.blocks.hops import NumberedHops, Roots, distinct_nodes
from streamd.server.engine.set_names import plain
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import UNKNOWN

NUM_NEIGHBORS = (12, 3)
"""Newest events of the node, and of each of its neighbors: with the node at most 49 nodes."""
EVENTS_OF_HUB = 32
"""A neighbor with this many events since its last one with the node is a hub: its newest events do
not concern the node, and change all the time."""
MAX_STREAMS = 16
"""Maximum number of open streams: each reads the activity around its node once a second."""
CHECK_SECONDS = 1.0
"""Interval at which a stream reads the graph: a reader of the page could not follow faster
changes."""
KEEP_ALIVE_SECONDS = 10.0
"""Silence after which a comment is sent, so that proxies keep the connection open."""
MAX_STREAM_SECONDS = 600.0
"""Lifetime of a stream; the page then opens another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """The newest events around a node.

    edge: number of events in the graph. nodes: (key, number of the node set, distance) of each
    node; the distance is 0 for the node itself, then 1 or 2. events: (id, time in microseconds,
    number of the edge set, index of the source in `nodes`, index of the destination), oldest first.
    partners: keys of the node's last partners in the edge set of the request, at most 16.
    """

    edge: int
    nodes: list[tuple[Key, int, int]]
    events: list[tuple[int, int, int, int, int]]
    partners: list[Key]

    def content(self, node_sets: tuple[str, ...], edge_sets: tuple[str, ...]) -> dict[str, Any]:
        """The content as JSON, with names instead of numbers of sets."""
        return {
            "edge": self.edge,
            "nodes": [
                {"key": plain(key), "node_set": node_sets[number], "hops": hops}
                for key, number, hops in self.nodes
            ],
            "events": [
                {"id": event, "time_us": us, "edge_set": edge_sets[number], "src": u, "dst": v}
                for event, us, number, u, v in self.events
            ],
            "partners": [plain(key) for key in self.partners],
        }


def read_activity(view: ServerGraph, key: Key, edge_set: int) -> Activity:
    """Read the activity around a node from the live graph; an unknown node has none."""
    node = int(view.ids([key])[0])
    if node == UNKNOWN:
        return Activity(edge=view.edge, nodes=[(key, 0, 0)], events=[], partners=[])

    # The newest events of two hops. If offloaded events cannot be read back, there are none.
    direction = view.model.direction
    draws = [Draw(direction=direction, fanout=n) for n in (NUM_NEIGHBORS[0], EVENTS_OF_HUB)]
    roots = Roots(np.array([node]), 0, view.edge)
    try:
        hops = view.live.graph.sample_neighborhood(roots, draws, distinct_nodes)
        found = _found_events(hops, node)
    except OffloadedError:
        found = []
    event_E = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    # Their endpoints, with the distance at which they were reached; deleted nodes have no key.
    log = view.log
    src_E, dst_E = log.gather("src", event_E), log.gather("dst", event_E)
    near = {node: 0}
    for number, own in enumerate(found):
        at = np.searchsorted(event_E, own)
        for end in np.unique(np.concatenate([src_E[at], dst_E[at]])).tolist():
            near.setdefault(end, number + 1)
    keys = {n: log.keys[n] for n in near}
    named = {n: key for n, key in keys.items() if key is not None}
    index = {n: i for i, n in enumerate(named)}
    sets = log.node_sets_of(np.array([*named, 0]))
    rows = zip(
        event_E.tolist(),
        log.time_of(event_E).tolist(),
        log.edge_sets_of(event_E).tolist(),
        src_E.tolist(),
        dst_E.tolist(),
        strict=True,
    )
    partners = [log.keys[n] for n in view.facts.partners(node, edge_set).tolist()]
    return Activity(
        edge=view.edge,
        nodes=[(named[n], int(sets[i]), near[n]) for n, i in index.items()],
        events=[
            (event, us, number, index[u], index[v])
            for event, us, number, u, v in rows
            if u in index and v in index
        ],
        partners=[key for key in partners if key is not None],
    )


def _found_events(hops: NumberedHops[Any], node: int) -> list[Int64]:
    """The event ids of each hop, int64, without the second-hop events of hubs. node: at the
    center."""
    first, second = hops.hops
    own = first.eid_UK[first.mask_UK]

    # The last event of each neighbor with the node; the first hop has all of these.
    last = dict.fromkeys(hops.node_M.tolist(), -1)
    is_ending = hops.node_M[first.neighbor_UK[first.mask_UK]].tolist()
    for neighbor, event in zip(is_ending, own.tolist(), strict=True):
        last[neighbor] = max(last[neighbor], event)
    kept = [np.zeros(0, np.int64)]
    roots = hops.node_M[second.root_U].tolist()
    for root, eid_K, mask_K in zip(roots, second.eid_UK, second.mask_UK, strict=True):
        newest = np.sort(eid_K[mask_K])[::-1]
        if root == node or np.count_nonzero(newest > last[root]) < EVENTS_OF_HUB:
            kept.append(newest[: NUM_NEIGHBORS[1]])
    return [own, np.concatenate(kept)]


class Streams:
    """Counts the open streams. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self.num_open = 0

    def open(self) -> bool:
        """Count one more open stream. Returns: False, without a count, if MAX_STREAMS are open."""
        if self.num_open >= MAX_STREAMS:
            return False
        self.num_open += 1
        return True

    def close(self) -> None:
        """Count one open stream less."""
        self.num_open -= 1


async def follow(
    look: Callable[[], tuple[int, Callable[[], dict[str, Any]]]], is_ending: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield server-sent events with the activity around a node: one now, and one after each change.

    look: returns the number of events in the graph, and a function that makes the present content.
    is_ending: whether the server stops; then the stream ends, so that the server need not wait.
    """
    begun = said = time.monotonic()
    edge, sent = -1, b""
    while not is_ending() and time.monotonic() - begun < MAX_STREAM_SECONDS:
        now_edge, content = look()
        if now_edge != edge:
            edge = now_edge
            found = content()
            # A changed number of events alone is not sent.
            text = msgspec.json.encode({**found, "edge": 0})
            if text != sent:
                sent = text
                said = time.monotonic()
                yield b"event: around\ndata: " + msgspec.json.encode(found) + b"\n\n"
        if time.monotonic() - said >= KEEP_ALIVE_SECONDS:
            said = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(CHECK_SECONDS)
    yield b"event: end\ndata: {}\n\n"
