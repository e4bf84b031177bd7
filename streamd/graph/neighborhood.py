"""What a model needs to embed some nodes: their recent neighbours with times and features, ids made compact."""

from dataclasses import dataclass

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks import BlockGraph
from streamd.graph.gather import edge_features, edge_times
from streamd.graph.node_features import NodeFeatures
from streamd.segments.columns import EdgeColumns


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
    graph: BlockGraph, columns: EdgeColumns, features: NodeFeatures, roots_U: Int64, before_edge: int, query_us: int, k: int
) -> Neighborhood:
    """Neighbourhoods of distinct roots among edges below `before_edge`, at query time `query_us`."""
    found = graph.recent(roots_U, before_edge, k)
    neighbor = np.where(found.mask, found.neighbor, roots_U[:, None])
    nodes, places = np.unique(np.concatenate([roots_U, neighbor.ravel()]), return_inverse=True)
    ago = np.where(found.mask, query_us - edge_times(columns, found.eid, found.mask), 0)
    return Neighborhood(nodes, places[: len(roots_U)], places[len(roots_U):].reshape(neighbor.shape), found.eid, found.mask,
                        ago, edge_features(columns, found.eid, found.mask), features.of(nodes))
