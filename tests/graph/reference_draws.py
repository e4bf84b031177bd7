"""The slow, obvious reference of what the kernels compute: the meaning of the graph, for tests."""

from collections.abc import Collection, Sequence

import numpy as np

from streamd.events import Int64
from streamd.graph.hashing import GOLDEN, mix


def entries(
    src_E: Int64,
    dst_E: Int64,
    first_event: int,
    node: int,
    since: int,
    before: int,
    hidden: Collection[int] = (),
    direction: str = "both",
) -> list[tuple[int, int]]:
    """(event id, neighbor) of a node among events [since, before), oldest first, by looking at
    every event. hidden: ids of deleted events."""
    out = []
    for event, (u, v) in enumerate(zip(src_E.tolist(), dst_E.tolist(), strict=True), first_event):
        if since <= event < before and event not in hidden:
            if u == node and direction in ("out", "both"):
                out.append((event, v))
            elif v == node and direction in ("in", "both"):
                out.append((event, u))
    return out


def recent(visible: Sequence[tuple[int, int]], fanout: int, **_: object) -> list[tuple[int, int]]:
    """The newest of a root's entries, newest first."""
    return list(visible[::-1][:fanout])


def uniform(
    visible: Sequence[tuple[int, int]],
    fanout: int,
    *,
    node: int,
    before: int,
    seed: int,
    replace: bool,
) -> list[tuple[int, int]]:
    """Entries of a root, each as likely as any other; draws are a hash of seed, node, the query's
    end and their number."""
    count = len(visible)
    if count == 0:
        return []
    if count <= fanout and not replace:
        return list(visible[::-1])
    state = _mixed(_mixed(seed + int(GOLDEN) * (node + 1)) + before)
    chosen: list[int] = []
    for i in range(fanout):
        bound = count if replace else count - fanout + i + 1
        pick = ((_mixed(state + i) >> 32) * bound) >> 32
        chosen.append(bound - 1 if not replace and pick in chosen else pick)
    return [visible[number] for number in chosen]


def _mixed(x: int) -> int:
    return int(mix(np.array([x % 2**64], np.uint64))[0])


REFERENCES = {"recent": recent, "uniform": uniform}
"""Of each row of `streamd.graph.blocks.strategies.STRATEGIES` its reference: a root's answer from the list of its entries."""
