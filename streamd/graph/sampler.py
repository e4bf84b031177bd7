"""Temporal sampling over k hops: which neighbours each root had strictly before its time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamd.events import Bools, Int64
from streamd.graph.blocks import BlockGraph, Neighbors
from streamd.graph.gather import edge_times, edges_before, next_roots
from streamd.segments.columns import EdgeColumns

Strategy = Literal["recent", "uniform", "window", "static"]
SPLIT_ROOTS = 4096
"""Fewer roots than this are not worth another thread."""


@dataclass(frozen=True)
class Compact:
    """A layer as message passing takes it: E sampled edges, the distinct nodes among roots and neighbours.

    node: int64[M] ids; time: int64[M], the time each is looked at; root: int64[R] places of the roots; edge_index:
    int64[2, E] places, from neighbour to root, as PyG has it; eid: int64[E].
    """

    node: Int64
    time: Int64
    root: Int64
    edge_index: Int64
    eid: Int64


@dataclass(frozen=True)
class Layer:
    """One hop. root: int64[R] and root_time: int64[R], what was asked; neighbor, eid, time: int64[R, k], mask: bool[R, k];
    padding is 0. Next hop's roots are `root` itself, then the sampled neighbours in row order, padding left out."""

    root: Int64
    root_time: Int64
    neighbor: Int64
    eid: Int64
    time: Int64
    mask: Bools

    def compact(self, prop_time: bool = False) -> Compact:
        """Distinct (node, time) pairs and the sampled edges between them. prop_time: neighbours at their edge's time."""
        row = np.nonzero(self.mask)[0]
        reached = self.time[self.mask] if prop_time else self.root_time[row]
        pairs = np.stack([np.concatenate([self.root, self.neighbor[self.mask]]), np.concatenate([self.root_time, reached])])
        distinct, place = np.unique(pairs, axis=1, return_inverse=True)
        place = place.reshape(-1)
        roots = place[: len(self.root)]
        return Compact(distinct[0], distinct[1], roots, np.stack([place[len(self.root):], roots[row]]), self.eid[self.mask])


class TemporalSampler:
    """Samples `fanouts[h]` neighbours a root at hop h. Owner: the thread that owns the graph, between its inserts.

    strategy: recent, the newest first; uniform, each edge as likely; window, `snapshots` windows of `width_us` back from
    the root's time, the newest of each (DySAT); static, uniform over all edges of the snapshot whatever their time.
    prop_time: a sampled neighbour is asked at its edge's time in the next hop, else at its root's.
    seed: a draw is a function of it, the root, its cutoff and the hop, whatever the batch and the number of threads.
    """

    def __init__(
        self, graph: BlockGraph, fanouts: Sequence[int], strategy: Strategy = "recent", *, columns: EdgeColumns,
        replace: bool = False, prop_time: bool = False, seed: int = 0, snapshots: int = 1, width_us: int = 0,
        threads: int = 1
    ) -> None:
        """columns: the mapped times of the graph's edges; hand over newer ones by `follow`. Raises: ValueError."""
        if strategy not in ("recent", "uniform", "window", "static"):
            raise ValueError(f"there is no strategy {strategy!r}; there are recent, uniform, window, static")
        if strategy == "window" and (width_us <= 0 or snapshots <= 0 or len(fanouts) != 1):
            raise ValueError("strategy window needs width_us and snapshots above 0, and one fanout")
        if not fanouts or min(fanouts) <= 0:
            raise ValueError("fanouts must be one or more numbers above 0")
        self.graph, self.fanouts, self.strategy, self.columns = graph, tuple(fanouts), strategy, columns
        self.replace, self.prop_time, self.seed = replace, prop_time, seed
        self.snapshots, self.width_us = snapshots, width_us
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._threads = threads

    def follow(self, columns: EdgeColumns) -> None:
        """Use the mapped columns of a log that has grown."""
        self.columns = columns

    def sample(self, nodes: Int64, times: Int64, before_edge: int | None = None) -> list[Layer]:
        """One layer a hop; for strategy window one a snapshot, the newest first.

        Args: nodes: int64[R]; times: int64[R] microseconds, each root sees edges strictly before its own; before_edge: the
            snapshot, edges below this id only, None for all the graph has.
        """
        snapshot = self.graph.num_edges if before_edge is None else before_edge
        if self.strategy == "window":
            starts = [self._before(times - number * self.width_us) for number in range(self.snapshots + 1)]
            return [self._layer(nodes, times, self.fanouts[0], number, snapshot, starts[number + 1], starts[number])
                    for number in range(self.snapshots)]
        layers: list[Layer] = []
        everything = self.strategy == "static"
        cutoff = np.full(len(nodes), snapshot) if everything else self._before(times)
        for hop, k in enumerate(self.fanouts):
            layer = self._layer(nodes, times, k, hop, snapshot, np.zeros(len(nodes), np.int64), cutoff)
            layers.append(layer)
            if hop + 1 < len(self.fanouts):
                first, total = len(nodes), len(nodes) + int(np.count_nonzero(layer.mask))
                roots = np.empty((3, total), np.int64)
                next_roots(nodes, times, cutoff, layer.neighbor, layer.mask, *roots)
                nodes, times, cutoff = roots
                if self.prop_time:
                    times[first:] = layer.time[layer.mask]
                    if not everything:
                        cutoff[first:] = self._before(times[first:])
        return layers

    def _before(self, times: Int64) -> Int64:
        return edges_before(self.columns, times)

    def _layer(
        self, nodes: Int64, times: Int64, k: int, number: int, snapshot: int, since: Int64, cutoff: Int64
    ) -> Layer:
        cutoff = np.minimum(cutoff, snapshot)
        parts = self._parts(len(nodes))
        if len(parts) == 1 or self._pool is None:
            found = [self._draw(nodes, since, cutoff, k, number, a, b) for a, b in parts]
        else:
            found = list(self._pool.map(lambda part: self._draw(nodes, since, cutoff, k, number, *part), parts))
        neighbor, eid, time, mask = (np.concatenate(c) if len(found) > 1 else c[0] for c in zip(*found, strict=True))
        return Layer(nodes, times, neighbor, eid, time, mask)

    def _parts(self, count: int) -> list[tuple[int, int]]:
        number = min(self._threads, max(1, count // SPLIT_ROOTS))
        edges = np.linspace(0, count, number + 1).astype(int).tolist()
        return list(zip(edges[:-1], edges[1:], strict=True))

    def _draw(
        self, nodes: Int64, since: Int64, cutoff: Int64, k: int, number: int, a: int, b: int
    ) -> tuple[Int64, Int64, Int64, Bools]:
        """Roots [a, b): neighbours, edges, times, mask."""
        part: Neighbors
        if self.strategy in ("recent", "window"):
            part = self.graph.recent(nodes[a:b], cutoff[a:b], k, since[a:b])
        else:
            part = self.graph.uniform(nodes[a:b], cutoff[a:b], k, self.seed + number, self.replace, since[a:b])
        return part.neighbor, part.eid, edge_times(self.columns, part.eid, part.mask), part.mask
