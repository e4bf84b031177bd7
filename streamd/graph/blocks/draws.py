"""What may be asked of a graph: the contract between hops above and block stores below."""

from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from streamd.graph.blocks.strategies import StrategyName

Direction = Literal["out", "in", "both"]
"""Which events lead from a node to a neighbour: those it is the source of, those it is the
destination of, or both, where a self loop counts once."""
ALL_SETS = -1
"""In the place of an edge set: the events of all sets."""
A = TypeVar("A")
"""An array of the host (numpy) or of a device (torch)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """How neighbours of one root are drawn: `fanout` of them among its events of a direction.

    edge_set: number of the set whose events are meant. strategy: a row of
    `streamd.graph.blocks.strategies`. replace: an event may be drawn twice. seed: of a strategy
    that draws at random.
    """

    direction: Direction = "both"
    edge_set: int = ALL_SETS
    fanout: int
    strategy: StrategyName = "recent"
    replace: bool = False
    seed: int = 0


HopDraws = Draw | tuple[Draw, ...]
"""How one hop is drawn: at once, or part by part, as of several edge sets and directions."""


@dataclass(frozen=True, slots=True)
class Neighbors(Generic[A]):
    """Sampled neighbours of R roots. neighbor, event: int64[R, k]; mask: bool[R, k], True first;
    what lies behind is padding, 0. Of several draws those of each follow one another, and only
    within each is True first."""

    neighbor: A
    event: A
    mask: Any


class NeighborSampler(Protocol[A]):
    """Who draws neighbours: the block graph on the host, its mirror on a device, several threads of
    either."""

    def sample(
        self, root_R: A, since: "int | A", before: "int | A", draws: HopDraws
    ) -> Neighbors[A]:
        """Neighbours of each root among its events [since, before), of several draws one after the
        other.

        Both may be one number for all roots, or int64[R]. Unknown nodes have none.
        Raises: OffloadedError where the answer needs what cannot be read back.
        """
        ...
