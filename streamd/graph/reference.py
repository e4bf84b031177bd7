"""The slow, obvious reference of what the kernels compute: the meaning of the graph, for tests."""

from collections.abc import Collection

import numpy as np

from streamd.events import Int64
from streamd.graph.blocks import Neighbors


def entries(
    src_E: Int64, dst_E: Int64, first_edge: int, node: int, since_edge: int, before_edge: int, hidden: Collection[int] = (),
    directed: bool = False
) -> list[tuple[int, int]]:
    """(edge id, neighbour) of a node among edges [since_edge, before_edge), oldest first. hidden: ids of deleted edges."""
    out = []
    for e, (u, v) in enumerate(zip(src_E.tolist(), dst_E.tolist(), strict=True), first_edge):
        if since_edge <= e < before_edge and e not in hidden:
            if u == node:
                out.append((e, v))
            elif v == node and not directed:
                out.append((e, u))
    return out


def recent(
    src_E: Int64, dst_E: Int64, nodes_R: Int64, before_edge: int, k: int, hidden: Collection[int] = (), since_edge: int = 0
) -> Neighbors:
    """`BlockGraph.recent` by looking at every edge. hidden: ids of deleted edges."""
    neighbor = np.zeros((len(nodes_R), k), np.int64)
    eid = np.zeros((len(nodes_R), k), np.int64)
    mask = np.zeros((len(nodes_R), k), np.bool_)
    for r, node in enumerate(nodes_R.tolist()):
        newest = entries(src_E, dst_E, 0, node, since_edge, before_edge, hidden)[::-1]
        for i, (e, other) in enumerate(newest[:k]):
            neighbor[r, i], eid[r, i], mask[r, i] = other, e, True
    return Neighbors(neighbor, eid, mask)
