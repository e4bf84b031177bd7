"""The interface of a graph as the roles use it, on the host or on a device."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from streamd.events import Int64
from streamd.graph.blocks.draws import Direction, HopDraws, NeighborSampler
from streamd.graph.blocks.hops import NextRoots, NumberedHops, Roots


class TemporalGraph(NeighborSampler[Int64], Protocol):
    """An append-only temporal graph: the block graph on the host, or its mirror on a device."""

    @property
    def first_event(self) -> int: ...

    @property
    def next_event(self) -> int:
        """Id of the next event that will be inserted."""
        ...

    @property
    def directions(self) -> Collection[Direction]:
        """Directions in which it can sample from the events of all sets."""
        ...

    @property
    def num_bytes(self) -> int: ...

    def insert(self, src_E: Int64, dst_E: Int64, set_E: Int64 | None = None) -> None:
        """Append events in log order. set_E: their edge sets, required if it samples from single
        sets. Raises: CapacityError, with nothing inserted."""
        ...

    def hide(self, src_E: Int64, dst_E: Int64, event_E: Int64) -> None:
        """Delete events, given by their endpoints and ids, int64[E] each; unknown ids are
        ignored."""
        ...

    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all events of some nodes. Raises: OffloadedError."""
        ...

    def drop_before(self, event: int) -> None:
        """Sample no events before this id from now on: the log no longer has them."""
        ...

    def offload(self, before_event: int) -> None:
        """Free the memory of events before an id; a query that needs them reads them back from the
        log."""
        ...

    def sample_neighborhood(
        self, roots: Roots[Int64], draws: Sequence[HopDraws], next_roots: NextRoots[Any]
    ) -> NumberedHops[Int64]:
        """Sample hop after hop, and number the nodes reached. Raises: OffloadedError."""
        ...
