"""The input of a model's graph layers: sampled neighbors with times and features, and the nodes in
them, numbered from 0."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamd.eventlog.columns import EdgeColumns
from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks.draws import HopDraws
from streamd.graph.blocks.gather import edge_features, edge_times, edges_before
from streamd.graph.blocks.hops import NextRoots, Roots, distinct_nodes, earlier_windows
from streamd.graph.node_features import FeatureRows
from streamd.graph.temporal import TemporalGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingPlan:
    """The draws of a model's neighborhoods.

    hops: draws of each hop. window_us: 0 if the roots of a hop are the roots and neighbors of the
    hop before. Above 0, all hops have the same roots, and each draws from a time window of this
    width in microseconds, the first hop from the newest window (DySAT).
    """

    hops: tuple[HopDraws, ...]
    window_us: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """U roots and their K sampled neighbors.

    root_U, neighbor_UK: int64 indices in `Neighborhood.node_M`. eid_UK: int64 event ids. mask_UK:
    bool, False for padding. ago_UK: int64 microseconds from the neighbor's event to the query.
    edge_UKD: float32 edge features.
    """

    root_U: Int64
    neighbor_UK: Int64
    eid_UK: Int64
    mask_UK: Bools
    ago_UK: Int64
    edge_UKD: Float32

    def rows(self, kept: Int64 | Bools, renumber: Int64) -> "Hop":
        """The hop of some of its roots. kept: their indices or a mask. renumber: int64[M], the new
        index of each node."""
        return Hop(
            root_U=renumber[self.root_U[kept]],
            neighbor_UK=renumber[self.neighbor_UK[kept]],
            eid_UK=self.eid_UK[kept],
            mask_UK=self.mask_UK[kept],
            ago_UK=self.ago_UK[kept],
            edge_UKD=self.edge_UKD[kept],
        )


@dataclass(frozen=True)
class Neighborhood:
    """The hops around some roots, and the M distinct nodes in them. All values are raw.

    node_M: int64 node ids, -1 for a node without events. node_MD: float32 features. age_M: float32,
    log(1 + number of events since a node's newest row of features), -1 without a row. hops: the
    first has the roots of the query; the roots of the next are the distinct roots and neighbors of
    the hop before. windows: True if the hops are time windows instead, all with the same roots.
    """

    node_M: Int64
    node_MD: Float32
    age_M: Float32
    hops: tuple[Hop, ...]
    windows: bool = False

    def subset(self, roots: Int64) -> "Neighborhood":
        """The neighborhood of some of the roots. roots: int64 indices into the first hop's
        roots."""
        # In each hop keep the roots that are in the kept part of the hop before; in time windows
        # keep the same roots.
        kept: list[Int64 | Bools] = []
        used = np.zeros(len(self.node_M), np.bool_)
        for number, hop in enumerate(self.hops):
            kept.append(roots if number == 0 or self.windows else used[hop.root_U])
            used[hop.root_U[kept[-1]]] = True
            used[hop.neighbor_UK[kept[-1]]] = True

        # The kept nodes get new indices, in the old order.
        renumber = np.cumsum(used) - 1
        hops = tuple(hop.rows(rows, renumber) for hop, rows in zip(self.hops, kept, strict=True))
        return Neighborhood(
            self.node_M[used], self.node_MD[used], self.age_M[used], hops, self.windows
        )


def sample_neighborhood(
    graph: TemporalGraph,
    columns: EdgeColumns,
    features: FeatureRows,
    roots_U: Int64,
    before_event: int,
    query_us: int,
    plan: SamplingPlan,
) -> Neighborhood:
    """Sample the neighborhoods of distinct roots, int64[U] node ids, in the events before
    `before_event`, at query time `query_us` (microseconds). Raises: OffloadedError."""
    next_roots: NextRoots[Any] = distinct_nodes
    since = 0

    # Convert time windows to ranges of event ids; the newest includes events at the query time.
    if plan.window_us:
        back = query_us + 1 - plan.window_us * np.arange(len(plan.hops) + 1)
        starts = np.minimum(edges_before(columns, back), before_event).tolist()
        since = starts[1]
        next_roots = earlier_windows(starts)
    found = graph.sample_neighborhood(Roots(roots_U, since, before_event), plan.hops, next_roots)

    # Read times and features from the mapped log.
    hops = []
    for hop in found.hops:
        time_UK = edge_times(columns, hop.eid_UK, hop.mask_UK)
        hops.append(
            Hop(
                root_U=hop.root_U,
                neighbor_UK=hop.neighbor_UK,
                eid_UK=hop.eid_UK,
                mask_UK=hop.mask_UK,
                ago_UK=np.where(hop.mask_UK, query_us - time_UK, 0),
                edge_UKD=edge_features(columns, hop.eid_UK, hop.mask_UK),
            )
        )
    node_MD = features.of(found.node_M)
    age_M = features.positions.ages(found.node_M, before_event)
    return Neighborhood(found.node_M, node_MD, age_M, tuple(hops), windows=plan.window_us > 0)
