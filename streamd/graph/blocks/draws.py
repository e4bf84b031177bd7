"""The interface for drawing neighbors: hops call it, block stores implement it."""

from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from streamd.graph.blocks.strategies import StrategyName

Direction = Literal["out", "in", "both"]
"""The events that lead from a node to a neighbor: "out", those of which it is the source; "in",
those of which it is the destination; or "both", in which a self loop counts once."""
ALL_SETS = -1
"""Instead of an edge set's number: the events of all sets."""
A = TypeVar("A")
"""An array of the host (numpy) or of a device (torch)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One draw of neighbors: `fanout` of them from a root's events in a direction.

    edge_set: number of the set to draw from. strategy: a key of
    `streamd.graph.blocks.strategies.STRATEGIES`. replace: an event may be drawn twice. seed: of a
    random strategy.
    """

    direction: Direction = "both"
    edge_set: int = ALL_SETS
    fanout: int
    strategy: StrategyName = "recent"
    replace: bool = False
    seed: int = 0


HopDraws = Draw | tuple[Draw, ...]
"""The draws of one hop: one, or several, as for several edge sets and directions."""


@dataclass(frozen=True, slots=True)
class Neighbors(Generic[A]):
    """Sampled neighbors of R roots. neighbor, event: int64[R, k]; mask: bool[R, k], True first;
    padding is 0. The columns of several draws are concatenated, and True comes first within each
    draw only."""

    neighbor: A
    event: A
    mask: Any


class NeighborSampler(Protocol[A]):
    """A sampler of neighbors: the block graph on the host, its mirror on a device, or several
    threads of either."""

    def sample(
        self, root_R: A, since: "int | A", before: "int | A", draws: HopDraws
    ) -> Neighbors[A]:
        """Draw neighbors of each root from its events [since, before); the columns of several
        draws are concatenated.

        root_R: int64[R] node ids; unknown nodes have no neighbors. since, before: one number for
        all roots, or int64[R]. Raises: OffloadedError if a draw needs events that cannot be read
        back.
        """
        ...
