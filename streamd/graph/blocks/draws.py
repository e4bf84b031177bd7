"""The interface for draws of neighbors: the loop over hops calls it, graphs implement it."""

from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from streamd.graph.blocks.strategies import StrategyName

Direction = Literal["out", "in", "both"]
"""The events of a node to draw from: "out", with the node as source; "in", with the node as
destination; "both", in which a self loop counts once."""
ALL_SETS = -1
"""In place of the number of an edge set: the events of all sets."""
A = TypeVar("A")
"""An array of the host (numpy) or of a device (torch)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One draw of neighbors of a root.

    Args:
        direction: str, of the root's events. Default "both".
        edge_set: int, number of the set of these events. Default ALL_SETS.
        fanout: int, number of neighbors.
        strategy: str, a key of `streamd.graph.blocks.strategies.STRATEGIES`. Default "recent".
        replace: bool, whether a random strategy may draw an event twice. Default False.
        seed: int, of a random strategy. Default 0.
    """

    direction: Direction = "both"
    edge_set: int = ALL_SETS
    fanout: int
    strategy: StrategyName = "recent"
    replace: bool = False
    seed: int = 0


HopDraws = Draw | tuple[Draw, ...]
"""The draws of one hop: one, or one for each of several edge sets and directions."""


@dataclass(frozen=True, slots=True)
class Neighbors(Generic[A]):
    """Sampled neighbors of R roots: the columns of several draws are concatenated.

    neighbor, event: int64[R, k], 0 for padding. mask: bool[R, k], False for padding, which comes
    last within the columns of each draw.
    """

    neighbor: A
    event: A
    mask: Any


class NeighborSampler(Protocol[A]):
    """A sampler of neighbors: the block graph on the host, its mirror on a device, or several
    threads of either."""

    def sample(
        self, root_R: A, since: "int | A", before: "int | A", draws: HopDraws
    ) -> Neighbors[A]:
        """Draw neighbors of each root from its events [since, before).

        root_R: int64[R] node ids; an unknown node has no neighbors. since, before: event ids, one
        for all roots or int64[R]. Raises: OffloadedError if a draw needs offloaded events and they
        cannot be read back.
        """
        ...
