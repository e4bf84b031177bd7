"""What a model needs to embed some nodes: sampled neighbours with times and features, ids made compact."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks import BlockGraph
from streamd.graph.gather import edge_features, edge_times, edges_before
from streamd.graph.node_features import NodeFeatures
from streamd.segments.columns import EdgeColumns


@dataclass(frozen=True)
class Sampling:
    """How neighbours are sampled: `count` a root. strategy: recent and uniform go `hops` deep, hop after hop; window takes
    the newest of each of `hops` windows of `width_us` back from the query, all of the same roots (DySAT)."""

    strategy: Literal["recent", "uniform", "window"]
    count: int
    hops: int = 1
    width_us: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Hop:
    """U roots and their K neighbours. root_U, neighbor_UK: int64 places among the nodes of the neighbourhood. eid_UK: int64
    edge ids. mask_UK: bool. ago_UK: int64 microseconds from the neighbour's event to the query. edge_UKD: float32."""

    root_U: Int64
    neighbor_UK: Int64
    eid_UK: Int64
    mask_UK: Bools
    ago_UK: Int64
    edge_UKD: Float32

    def rows(self, kept: Int64 | Bools, renumber: Int64) -> "Hop":
        """Some of the roots, in nodes numbered anew."""
        return Hop(renumber[self.root_U[kept]], renumber[self.neighbor_UK[kept]], self.eid_UK[kept], self.mask_UK[kept],
                   self.ago_UK[kept], self.edge_UKD[kept])


@dataclass(frozen=True)
class Neighborhood:
    """The hops around some roots, and the M distinct nodes in them. All raw: nothing standardised or scaled.

    node_M: int64 node ids, -1 is a node never seen. node_MD: float32 features. The first hop's roots are those asked for;
    the next hop's are the distinct ones among the first's roots and neighbours, unless the hops are windows of time.
    """

    node_M: Int64
    node_MD: Float32
    hops: tuple[Hop, ...]
    windows: bool = False

    def subset(self, places: Int64) -> "Neighborhood":
        """The same for some of the roots."""
        kept: list[Int64 | Bools] = []
        used = np.zeros(len(self.node_M), np.bool_)
        for number, hop in enumerate(self.hops):
            kept.append(places if number == 0 or self.windows else used[hop.root_U])
            used[hop.root_U[kept[-1]]] = True
            used[hop.neighbor_UK[kept[-1]]] = True
        renumber = np.cumsum(used) - 1
        hops = tuple(hop.rows(rows, renumber) for hop, rows in zip(self.hops, kept, strict=True))
        return Neighborhood(self.node_M[used], self.node_MD[used], hops, self.windows)


def look_around(
    graph: BlockGraph, columns: EdgeColumns, features: NodeFeatures, roots_U: Int64, before_edge: int, query_us: int,
    sampling: Sampling
) -> Neighborhood:
    """Neighbourhoods of distinct roots among edges below `before_edge`, at query time `query_us`."""
    ranges = [(0, before_edge)] * sampling.hops
    if sampling.strategy == "window":
        back = query_us + 1 - sampling.width_us * np.arange(sampling.hops + 1)
        starts = np.minimum(edges_before(columns, back), before_edge).tolist()
        ranges = list(zip(starts[1:], [before_edge, *starts[1:-1]], strict=True))
    seed = sampling.seed if sampling.strategy == "uniform" else None
    found = graph.explore(roots_U, ranges, sampling.count, seed, sampling.strategy != "window")
    hops = []
    for hop in found.hops:
        ago = np.where(hop.mask_UK, query_us - edge_times(columns, hop.eid_UK, hop.mask_UK), 0)
        hops.append(Hop(hop.root_U, hop.neighbor_UK, hop.eid_UK, hop.mask_UK, ago,
                        edge_features(columns, hop.eid_UK, hop.mask_UK)))
    return Neighborhood(found.node_M, features.of(found.node_M), tuple(hops), sampling.strategy == "window")
