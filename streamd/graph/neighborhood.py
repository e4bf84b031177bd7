"""A model's input for embedding some nodes: sampled neighbors with times and features, the nodes
renumbered from 0."""

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
    """A model's sampling: one draw per hop, or one for each of several edge sets and directions.

    window_us: 0 for hops, the roots of each being the roots and neighbors of the one before. Above
    0, every hop has the same roots and draws from a time window of this width in microseconds, the
    first hop from the newest window (DySAT).
    """

    hops: tuple[HopDraws, ...]
    window_us: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """U roots and their K neighbors. root_U, neighbor_UK: int64 indices into the nodes of the
    neighborhood. eid_UK: int64 event ids. mask_UK: bool. ago_UK: int64 microseconds from the
    neighbor's event to the query. edge_UKD: float32 edge features."""

    root_U: Int64
    neighbor_UK: Int64
    eid_UK: Int64
    mask_UK: Bools
    ago_UK: Int64
    edge_UKD: Float32

    def rows(self, kept: Int64 | Bools, renumber: Int64) -> "Hop":
        """The hop of some of its roots. renumber: int64, the new index of each node."""
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
    """The hops around some roots, and the M distinct nodes in them. No value is standardised or
    scaled.

    node_M: int64 node ids, -1 for a node without events. node_MD: float32 features. age_M: float32,
    log(1 + number of events since a node's newest row of features), -1 without a row. The first
    hop's roots are those of the query; the next hop's are the distinct nodes among the first hop's
    roots and neighbors. windows: True if the hops are time windows instead, all with the same
    roots.
    """

    node_M: Int64
    node_MD: Float32
    age_M: Float32
    hops: tuple[Hop, ...]
    windows: bool = False

    def subset(self, places: Int64) -> "Neighborhood":
        """The neighborhood of some of the roots. places: int64 indices into the first hop's
        roots."""
        # In each hop keep the roots that the kept part of the hops before reaches; in windows the
        # same roots.
        kept: list[Int64 | Bools] = []
        used = np.zeros(len(self.node_M), np.bool_)
        for number, hop in enumerate(self.hops):
            kept.append(places if number == 0 or self.windows else used[hop.root_U])
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
    """Sample the neighborhoods of distinct roots in the events before `before_event`, at query
    time `query_us` (microseconds). Raises: OffloadedError."""
    next_roots: NextRoots[Any] = distinct_nodes
    since = 0

    # Time windows become ranges of event ids, the newest first; it includes the events at the
    # query's own time.
    if plan.window_us:
        back = query_us + 1 - plan.window_us * np.arange(len(plan.hops) + 1)
        starts = np.minimum(edges_before(columns, back), before_event).tolist()
        since = starts[1]
        next_roots = earlier_windows(starts)
    found = graph.sample_neighborhood(Roots(roots_U, since, before_event), plan.hops, next_roots)

    # Times and features come from the mapped log.
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
