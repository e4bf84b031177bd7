"""What a model needs to embed some nodes: their recent neighbours with times and features, ids made compact."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks import BlockGraph
from streamd.graph.node_features import NodeFeatures


class EdgeStore(Protocol):
    """Times and features of edges by id; `streamd.segments.reader.LogReader` is one."""

    def time_of(self, edge_ids: Int64) -> Int64: ...

    def features_of(self, edge_ids: Int64) -> Float32: ...


@dataclass(frozen=True)
class Neighborhood:
    """U roots, their K neighbours, and the M distinct nodes among both. All raw: nothing standardised or scaled.

    node_M: int64 node ids, -1 is a node never seen. root_U, neighbor_UK: int64 places in node_M. eid_UK:
    int64 edge ids. mask_UK: bool. ago_UK: int64 microseconds from the neighbour's event to the query time. edge_UKD,
    node_MD: float32 features.
    """

    node_M: Int64
    root_U: Int64
    neighbor_UK: Int64
    eid_UK: Int64
    mask_UK: Bools
    ago_UK: Int64
    edge_UKD: Float32
    node_MD: Float32

    def subset(self, places: Int64) -> "Neighborhood":
        """The same for some of the roots."""
        kept = np.concatenate([self.root_U[places], self.neighbor_UK[places].ravel()])
        used = np.zeros(len(self.node_M), np.bool_)
        used[kept] = True
        renumber = np.cumsum(used) - 1
        return Neighborhood(self.node_M[used], renumber[self.root_U[places]], renumber[self.neighbor_UK[places]],
                            self.eid_UK[places], self.mask_UK[places], self.ago_UK[places], self.edge_UKD[places],
                            self.node_MD[used])


def look_around(
    graph: BlockGraph, edges: EdgeStore, features: NodeFeatures, roots_U: Int64, before_edge: int, query_us: int, k: int
) -> Neighborhood:
    """Neighbourhoods of distinct roots among edges below `before_edge`, at query time `query_us`."""
    found = graph.recent(roots_U, before_edge, k)
    neighbor = np.where(found.mask, found.neighbor, roots_U[:, None])
    nodes, places = np.unique(np.concatenate([roots_U, neighbor.ravel()]), return_inverse=True)
    ago = np.zeros(found.eid.shape, np.int64)
    hit = found.eid[found.mask]
    ago[found.mask] = query_us - edges.time_of(hit)
    taken = edges.features_of(hit)
    edge = np.zeros((*found.eid.shape, taken.shape[-1]), np.float32)
    edge[found.mask] = taken
    return Neighborhood(nodes, places[: len(roots_U)], places[len(roots_U):].reshape(neighbor.shape),
                        found.eid, found.mask, ago, edge, features.of(nodes))
