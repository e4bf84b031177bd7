"""What happened around a node lately, and the stream of server-sent events that follows it."""

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
"""Newest events of the node, and of each of its neighbours: with the node at most 49 nodes."""
EVENTS_OF_HUB = 32
"""A neighbour with so many events since its last one with the node is a hub: its own newest events
say nothing of the node, and there is always a newer one."""
MAX_STREAMS = 16
"""Streams that are open at once: each looks around its node once a second."""
LOOK_SECONDS = 1.0
"""Time between two looks at the log: what a person can follow."""
BEAT_SECONDS = 10.0
"""Silence after which a comment is sent, so that proxies keep the connection open."""
LIFE_SECONDS = 600.0
"""A stream ends after so long; the page opens another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """The newest events around a node.

    nodes: of each its key, node set, and distance: 0 the node itself, 1, 2. events: of each its
    id, time in microseconds, edge set, and the places of its ends among `nodes`, oldest first.
    partners: keys of the node's last partners in the asked edge set, at most 16.
    """

    edge: int
    nodes: list[tuple[Key, int, int]]
    events: list[tuple[int, int, int, int, int]]
    partners: list[Key]

    def content(self, node_sets: tuple[str, ...], edge_sets: tuple[str, ...]) -> dict[str, Any]:
        """The same as JSON, with the names of sets."""
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


def look_around(view: ServerGraph, key: Key, edge_set: int) -> Around:
    """Look around a node by the live graph; a node never seen has nothing around it."""
    node = int(view.ids([key])[0])
    if node == UNKNOWN:
        return Around(edge=view.edge, nodes=[(key, 0, 0)], events=[], partners=[])

    # The newest events of two hops. Those that nobody can read back are as if they were not there.
    direction = view.model.direction
    draws = [Draw(direction=direction, fanout=n) for n in (NUM_NEIGHBORS[0], EVENTS_OF_HUB)]
    roots = Roots(np.array([node]), 0, view.edge)
    try:
        hops = view.live.graph.sample_neighborhood(roots, draws, distinct_nodes)
        found = _found_events(hops, node)
    except OffloadedError:
        found = []
    event_E = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    # Their ends, by the distance at which they were reached; deleted nodes have no key.
    log = view.log
    src_E, dst_E = log.gather("src", event_E), log.gather("dst", event_E)
    near = {node: 0}
    for number, own in enumerate(found):
        at = np.searchsorted(event_E, own)
        for end in np.unique(np.concatenate([src_E[at], dst_E[at]])).tolist():
            near.setdefault(end, number + 1)
    keys = {n: log.keys[n] for n in near}
    named = {n: key for n, key in keys.items() if key is not None}
    place = {n: i for i, n in enumerate(named)}
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
    return Around(
        edge=view.edge,
        nodes=[(named[n], int(sets[i]), near[n]) for n, i in place.items()],
        events=[
            (event, us, number, place[u], place[v])
            for event, us, number, u, v in rows
            if u in place and v in place
        ],
        partners=[key for key in partners if key is not None],
    )


def _found_events(hops: NumberedHops[Any], node: int) -> list[Int64]:
    """The event ids of each hop, of the second without those of hubs. node: the one asked about."""
    first, second = hops.hops
    own = first.eid_UK[first.mask_UK]

    # The last event of each neighbour with the node; the node's own events are no news.
    last = dict.fromkeys(hops.node_M.tolist(), -1)
    ends = hops.node_M[first.neighbor_UK[first.mask_UK]].tolist()
    for neighbor, event in zip(ends, own.tolist(), strict=True):
        last[neighbor] = max(last[neighbor], event)
    kept = [np.zeros(0, np.int64)]
    roots = hops.node_M[second.root_U].tolist()
    for root, eid_K, mask_K in zip(roots, second.eid_UK, second.mask_UK, strict=True):
        newest = np.sort(eid_K[mask_K])[::-1]
        if root == node or np.count_nonzero(newest > last[root]) < EVENTS_OF_HUB:
            kept.append(newest[: NUM_NEIGHBORS[1]])
    return [own, np.concatenate(kept)]


class Streams:
    """Counts the streams that are open. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self.num_open = 0

    def enter(self) -> bool:
        """Count a stream from now on. Returns: False where no more may be open."""
        if self.num_open >= MAX_STREAMS:
            return False
        self.num_open += 1
        return True

    def leave(self) -> None:
        """Count a stream no longer."""
        self.num_open -= 1


async def follow(
    look: Callable[[], tuple[int, Callable[[], dict[str, Any]]]], ends: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield server-sent events: what is around a node, whenever it changed.

    look: gives the number of events taken in, and what makes the content as of now. ends: whether
    the server is to stop, so that nobody waits for this connection.
    """
    begun = said = time.monotonic()
    edge, sent = -1, b""
    while not ends() and time.monotonic() - begun < LIFE_SECONDS:
        now_edge, content = look()
        if now_edge != edge:
            edge = now_edge
            found = content()
            # The count of events alone is no news.
            text = msgspec.json.encode({**found, "edge": 0})
            if text != sent:
                sent = text
                said = time.monotonic()
                yield b"event: around\ndata: " + msgspec.json.encode(found) + b"\n\n"
        if time.monotonic() - said >= BEAT_SECONDS:
            said = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)
    yield b"event: end\ndata: {}\n\n"
