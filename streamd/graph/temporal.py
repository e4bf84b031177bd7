"""What the roles ask of a graph, wherever it answers."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from streamd.events import Int64
from streamd.graph.blocks.draws import Direction, HopDraws, NeighborSampler
from streamd.graph.blocks.hops import NextRoots, NumberedHops, Roots


class TemporalGraph(NeighborSampler[Int64], Protocol):
    """A graph that grows: the block graph on the host, or with its queries on a device."""

    @property
    def first_event(self) -> int: ...

    @property
    def next_event(self) -> int:
        """Id of the next event that will be inserted."""
        ...

    @property
    def directions(self) -> Collection[Direction]:
        """Directions that it can draw from among the events of all sets."""
        ...

    @property
    def num_bytes(self) -> int: ...

    def insert(self, src_E: Int64, dst_E: Int64, set_E: Int64 | None = None) -> None:
        """Append events in log order. set_E: their edge sets, needed where it draws from single
        ones. Raises: CapacityError; nothing is inserted then."""
        ...

    def hide(self, src_E: Int64, dst_E: Int64, event_E: Int64) -> None:
        """Delete events, given with their ends; ids the graph does not have are passed over."""
        ...

    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all events of some nodes. Raises: OffloadedError."""
        ...

    def drop_before(self, event: int) -> None:
        """Answer with no older events from now on: the log no longer has them."""
        ...

    def offload(self, before_event: int) -> None:
        """Take events before an id out of memory."""
        ...

    def sample_neighborhood(
        self, roots: Roots[Int64], draws: Sequence[HopDraws], next_roots: NextRoots[Any]
    ) -> NumberedHops[Int64]:
        """Sample hop after hop, and number the nodes reached."""
        ...
