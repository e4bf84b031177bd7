"""A graph with its nodes divided among the ranks: the owner of each root samples for it (GNNFlow
section 4.4)."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from streamd.events import Float32, Int64
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import Direction, HopDraws, Neighbors
from streamd.graph.blocks.hops import (
    NextRoots,
    NumberedHops,
    Roots,
    renumbered,
    sample_hops,
)
from streamd.graph.node_features import NodeFeatures
from streamd.graph.row_positions import RowPositions
from streamd.ranks.process_group import ProcessGroup
from streamd.ranks.row_exchange import Route


class RankedGraph:
    """The part of the graph that this rank owns, with access to the other ranks' parts.

    All ranks query it at the same time, possibly without roots. Owner: the thread that records.
    """

    def __init__(self, own: BlockGraph, group: ProcessGroup) -> None:
        self._own = own
        self._group = group

    @property
    def first_event(self) -> int:
        return self._own.first_event

    @property
    def next_event(self) -> int:
        """Id of the next event to be inserted."""
        return self._own.next_event

    @property
    def directions(self) -> Collection[Direction]:
        return self._own.directions

    @property
    def num_bytes(self) -> int:
        """Bytes in use on this rank."""
        return self._own.num_bytes

    def insert(self, src_E: Int64, dst_E: Int64, set_E: Int64 | None = None) -> None:
        """Append all events in log order; entries of nodes of other ranks are skipped."""
        self._own.insert(src_E, dst_E, set_E)

    def hide(self, src_E: Int64, dst_E: Int64, event_E: Int64) -> None:
        self._own.hide(src_E, dst_E, event_E)

    def hide_nodes(self, nodes: Int64) -> None:
        self._own.hide_nodes(nodes)

    def drop_before(self, event: int) -> None:
        self._own.drop_before(event)

    def offload(self, before_event: int) -> None:
        self._own.offload(before_event)

    def sample(
        self, root_R: Int64, since: int | Int64, before: int | Int64, draws: HopDraws
    ) -> Neighbors[Int64]:
        """As `BlockGraph.sample` of a graph with all nodes, with the same bits. A bound that is a
        single number must be the same on every rank."""
        route = Route(self._group, root_R)
        low, high = (
            bound if isinstance(bound, int) else route.back(torch.from_numpy(bound)).numpy()
            for bound in (since, before)
        )
        found = self._own.sample(route.asked, low, high, draws)

        # Answers are returned in one buffer; event -1 is padding.
        event = np.where(found.mask, found.event, -1)
        packed = torch.from_numpy(np.concatenate([found.neighbor, event], 1))
        got = route.answer(packed).numpy()
        fanout = found.mask.shape[1]
        neighbor, event = got[:, :fanout].copy(), got[:, fanout:]
        mask = event >= 0
        return Neighbors(neighbor, np.where(mask, event, 0), mask)

    def sample_neighborhood(
        self, roots: Roots[Int64], draws: Sequence[HopDraws], next_roots: NextRoots[Any]
    ) -> NumberedHops[Int64]:
        """Sample hop by hop, and renumber the sampled nodes."""
        return renumbered(sample_hops(self, roots, draws, next_roots))


class RankedFeatures:
    """The features of the nodes that this rank owns, with access to those of other ranks. Owner: as
    of `RankedGraph`."""

    def __init__(self, own: NodeFeatures, group: ProcessGroup) -> None:
        self._own = own
        self._group = group
        self.dim = own.dim

    @property
    def num_bytes(self) -> int:
        return self._own.num_bytes

    @property
    def positions(self) -> RowPositions:
        return self._own.positions

    def take(self, node_U: Int64, values_UD: Float32, event_U: Int64) -> None:
        """Apply updates of any nodes, as `NodeFeatures.take`."""
        self._own.take(node_U, values_UD, event_U)

    def of(self, node_N: Int64) -> Float32:
        """As `NodeFeatures.of` with all nodes; all ranks call it at the same time."""
        if not self.dim:
            return np.zeros((len(node_N), 0), np.float32)
        route = Route(self._group, node_N)
        features: Float32 = route.answer(torch.from_numpy(self._own.of(route.asked))).numpy()
        return features
