"""The loop over hops, for host and device, roles and the public sampler, and the rules for the
roots of the next hop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from streamd.graph.blocks.draws import HopDraws, Neighbors, NeighborSampler

A = TypeVar("A")
"""An array of the host (numpy) or of a device (torch)."""


@dataclass(frozen=True, slots=True)
class Roots(Generic[A]):
    """The roots of a hop. node: int64[R] node ids. since, before: draw from events [since, before);
    one id for all roots, or int64[R]."""

    node: A
    since: "int | A"
    before: "int | A"


@dataclass(frozen=True, slots=True)
class SampledHop(Generic[A]):
    """A hop's roots and their neighbors."""

    roots: Roots[A]
    found: Neighbors[A]


NextRoots = Callable[[int, SampledHop[A]], Roots[A]]
"""(number of the sampled hop, that hop) -> the roots of the next hop."""


def sample_hops(
    sampler: NeighborSampler[A],
    roots: Roots[A],
    draws: Sequence[HopDraws],
    next_roots: NextRoots[A],
) -> list[SampledHop[A]]:
    """Sample hop after hop. roots: of the first hop. draws: one element for each hop. next_roots:
    rule for the roots of each later hop. Raises: OffloadedError."""
    hops: list[SampledHop[A]] = []
    for number, draw in enumerate(draws):
        found = sampler.sample(roots.node, roots.since, roots.before, draw)
        hops.append(SampledHop(roots, found))
        # There is no hop after the last one.
        if number + 1 < len(draws):
            roots = next_roots(number, hops[-1])
    return hops


def distinct_nodes(_: int, hop: SampledHop[A]) -> Roots[A]:
    """Rule: the next roots are the distinct roots and neighbors of a hop, with the same events,
    which must be one range for all roots."""

    # Concatenate roots too, so that those without neighbors stay.
    arrays: Any = arrays_of(hop.roots.node)
    neighbor: Any = hop.found.neighbor
    reached = arrays.concatenate([hop.roots.node, neighbor[hop.found.mask]])
    return Roots(arrays.unique(reached), hop.roots.since, hop.roots.before)


def earlier_windows(starts: Sequence[int]) -> NextRoots[Any]:
    """Rule: the next roots are the same roots in the window before. Hop h draws from events
    [starts[h + 1], starts[h])."""

    def next_roots(number: int, hop: SampledHop[Any]) -> Roots[Any]:
        return Roots(hop.roots.node, starts[number + 2], starts[number + 1])

    return next_roots


@dataclass(frozen=True, slots=True)
class NumberedHop(Generic[A]):
    """A hop with numbered nodes.

    root_U: int64[U], neighbor_UK: int64[U, K], indices in `NumberedHops.node_M`; padding has the
    index of its root. eid_UK: int64[U, K] event ids. mask_UK: bool[U, K], False for padding.
    """

    root_U: A
    neighbor_UK: A
    eid_UK: A
    mask_UK: Any


@dataclass(frozen=True, slots=True)
class NumberedHops(Generic[A]):
    """Hops with the distinct nodes in them. node_M: int64[M] ids, ascending."""

    node_M: A
    hops: tuple[NumberedHop[A], ...]


def renumbered(hops: Sequence[SampledHop[A]]) -> NumberedHops[A]:
    """Number the distinct nodes of all hops."""

    # Concatenate the nodes of all hops, so that each node gets one number. Padding counts as its
    # root, which adds no node.
    arrays: Any = arrays_of(hops[0].roots.node)
    parts: list[Any] = []
    for hop in hops:
        root: Any = hop.roots.node
        parts += [root, arrays.where(hop.found.mask, hop.found.neighbor, root[:, None]).ravel()]
    node_M, index = arrays.unique(arrays.concatenate(parts), return_inverse=True)

    # Split the numbers into hops again.
    at = 0
    numbered = []
    for hop in hops:
        found: Any = hop.found
        num_roots = len(found.mask)
        num_entries = found.mask.shape[0] * found.mask.shape[1]
        root_U = index[at : at + num_roots]
        at += num_roots
        neighbor_UK = index[at : at + num_entries].reshape(found.mask.shape)
        at += num_entries
        numbered.append(NumberedHop(root_U, neighbor_UK, found.event, found.mask))
    return NumberedHops(node_M, tuple(numbered))


def arrays_of(array: object) -> Any:
    """The module of an array: numpy or torch."""
    if isinstance(array, np.ndarray):
        return np

    # Imported here, so that a process with numpy arrays alone does not load torch.
    import torch

    return torch
