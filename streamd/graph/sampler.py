"""Temporal sampling over several hops: which neighbours each root had strictly before its time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streamd.eventlog.columns import EdgeColumns
from streamd.events import Bools, Int64
from streamd.graph.blocks.draws import Direction, Draw, HopDraws, Neighbors, NeighborSampler
from streamd.graph.blocks.gather import edge_times, edges_before, next_roots
from streamd.graph.blocks.hops import NextRoots, Roots, SampledHop, sample_hops

Strategy = Literal["recent", "uniform", "window", "static"]
SPLIT_ROOTS = 4096
"""Fewer roots than this are not worth another thread."""


@dataclass(frozen=True)
class Compact:
    """A layer as message passing takes it: E sampled events between the M distinct (node, time)
    pairs among roots and neighbours.

    node: int64[M] ids; time: int64[M], the time each is looked at; root: int64[R], where in
    `node` the roots are; edge_index: int64[2, E] places in `node`, from neighbour to root, as in
    PyG; eid: int64[E].
    """

    node: Int64
    time: Int64
    root: Int64
    edge_index: Int64
    eid: Int64


@dataclass(frozen=True)
class Layer:
    """One hop. root: int64[R] and root_time: int64[R], its roots and their times; neighbor, eid,
    time: int64[R, k], mask: bool[R, k]; padding is 0. The next layer's roots are `root`, then the
    sampled neighbours in row order without padding; with strategy window they are `root` alone."""

    root: Int64
    root_time: Int64
    neighbor: Int64
    eid: Int64
    time: Int64
    mask: Bools

    def compact(self, prop_time: bool = False) -> Compact:
        """Distinct (node, time) pairs and the sampled events between them. prop_time: neighbours at
        their event's time."""

        # A node at two times counts as two nodes.
        row = np.nonzero(self.mask)[0]
        reached = self.time[self.mask] if prop_time else self.root_time[row]
        nodes = np.concatenate([self.root, self.neighbor[self.mask]])
        pairs = np.stack([nodes, np.concatenate([self.root_time, reached])])
        distinct, place = np.unique(pairs, axis=1, return_inverse=True)
        place = place.reshape(-1)
        roots = place[: len(self.root)]
        edge_index = np.stack([place[len(self.root) :], roots[row]])
        return Compact(distinct[0], distinct[1], roots, edge_index, self.eid[self.mask])


class Threads:
    """A sampler that shares the roots among threads; the answers do not depend on how."""

    def __init__(self, sampler: NeighborSampler[Int64], threads: int) -> None:
        self._sampler = sampler
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def sample(
        self, root_R: Int64, since: int | Int64, before: int | Int64, draws: HopDraws
    ) -> Neighbors[Int64]:
        # Few roots are answered by the thread that asks.
        num_parts = min(self._threads, len(root_R) // SPLIT_ROOTS)
        if num_parts <= 1:
            return self._sampler.sample(root_R, since, before, draws)

        # Cut the roots in their order, so that the parts' answers need only be joined.
        bounds = np.linspace(0, len(root_R), num_parts + 1).astype(int).tolist()

        def part(a: int, b: int) -> Neighbors[Int64]:
            low, high = (x if isinstance(x, int) else x[a:b] for x in (since, before))
            return self._sampler.sample(root_R[a:b], low, high, draws)

        found = list(self._pool.map(part, bounds[:-1], bounds[1:]))
        return Neighbors(
            np.concatenate([f.neighbor for f in found]),
            np.concatenate([f.event for f in found]),
            np.concatenate([f.mask for f in found]),
        )


class TemporalSampler:
    """Samples `fanouts[h]` neighbours per root at hop h. Owner: the thread that owns the graph,
    between its inserts.

    strategy: recent, the newest first; uniform, each event as likely; window, `snapshots` windows
    of `width_us` back from the root's time, the newest of each (DySAT); static, uniform over all
    events of the graph below `before_event` whatever their time.
    prop_time: in the next hop a sampled neighbour is asked at its event's time, else at its root's.
    seed: a draw is a function of it, the root, the root's cut and the hop, whatever the batch and
    the number of threads.
    """

    def __init__(
        self,
        graph: NeighborSampler[Int64],
        fanouts: Sequence[int],
        strategy: Strategy = "recent",
        *,
        columns: EdgeColumns,
        direction: Direction = "both",
        replace: bool = False,
        prop_time: bool = False,
        seed: int = 0,
        snapshots: int = 1,
        width_us: int = 0,
        threads: int = 1,
    ) -> None:
        """columns: the mapped times of the graph's events; hand over newer ones by `follow`.
        direction: one that the graph has a store for. Raises: ValueError."""
        if strategy not in ("recent", "uniform", "window", "static"):
            raise ValueError(
                f"there is no strategy {strategy!r}; there are recent, uniform, window, static"
            )
        if strategy == "window" and (width_us <= 0 or snapshots <= 0 or len(fanouts) != 1):
            raise ValueError("strategy window needs width_us and snapshots above 0, and one fanout")
        if not fanouts or min(fanouts) <= 0:
            raise ValueError("fanouts must be one or more numbers above 0")
        self.strategy = strategy
        self.columns = columns
        self.prop_time = prop_time
        self.width_us = width_us
        self._sampler = Threads(graph, threads) if threads > 1 else graph

        # Each hop has a seed of its own: with one seed, a node that is a root in two hops would get
        # the same draws in both.
        self._draws = [
            Draw(
                direction=direction,
                fanout=k,
                strategy="uniform" if strategy in ("uniform", "static") else "recent",
                replace=replace,
                seed=seed + hop,
            )
            for hop, k in enumerate(list(fanouts) * snapshots if strategy == "window" else fanouts)
        ]

    def follow(self, columns: EdgeColumns) -> None:
        """Use the mapped columns of a log that has grown."""
        self.columns = columns

    def sample(self, nodes: Int64, times: Int64, before_event: int | None = None) -> list[Layer]:
        """Sample one layer per hop; for strategy window one per window of time, the newest first.

        Args:
            nodes: int64[R].
            times: int64[R] microseconds; each root sees only events strictly before its own time,
            except with strategy static.
            before_event: no root sees events from this id on; None for all of the log.
        """
        cut = self.columns.end if before_event is None else before_event
        root_times = [times]
        roots_after: NextRoots[Int64]
        if self.strategy == "window":
            # A root's window n, from 0 for the newest, holds its events [starts[n + 1], starts[n]).
            starts = [
                np.minimum(edges_before(self.columns, times - number * self.width_us), cut)
                for number in range(len(self._draws) + 1)
            ]
            roots = Roots(nodes, starts[1], starts[0])

            def roots_after(number: int, hop: SampledHop[Int64]) -> Roots[Int64]:
                root_times.append(times)
                return Roots(nodes, starts[number + 2], starts[number + 1])
        else:
            # Static sees events of any time, the others only those before the root's time.
            if self.strategy == "static":
                before = np.full(len(nodes), cut)
            else:
                before = np.minimum(edges_before(self.columns, times), cut)
            roots = Roots(nodes, 0, before)

            def roots_after(number: int, hop: SampledHop[Int64]) -> Roots[Int64]:
                reached, reached_times = self._deeper(hop, root_times[-1], cut)
                root_times.append(reached_times)
                return reached

        # One loop for all strategies; `root_times` gains the times of each hop's roots.
        hops = sample_hops(self._sampler, roots, self._draws, roots_after)
        return [self._layer(hop, when) for hop, when in zip(hops, root_times, strict=True)]

    def walk(self, nodes: Int64, times: Int64, steps: int) -> Int64:
        """Random walks back in time, one from each root: each step goes to a neighbour of an event
        strictly before the event that led here, drawn as the newest event (recent, window) or
        uniformly (uniform, static); always back in time, without windows.

        Returns: int64[R, steps + 1], the roots first, -1 behind a walk's end.
        """
        # One neighbour per step, each step with a seed of its own.
        draw = replace(self._draws[0], fanout=1)
        draws = [replace(draw, seed=draw.seed + step) for step in range(steps)]

        def step_back(_: int, hop: SampledHop[Int64]) -> Roots[Int64]:
            # A walk that has ended goes on from node -1, which has no neighbours.
            found = hop.found
            reached = np.where(found.mask, found.neighbor, -1)[:, 0]
            when = edge_times(self.columns, found.event, found.mask)[:, 0]
            return Roots(reached, 0, edges_before(self.columns, when))

        roots = Roots(nodes, 0, edges_before(self.columns, times))
        hops = sample_hops(self._sampler, roots, draws, step_back)
        last = np.where(hops[-1].found.mask, hops[-1].found.neighbor, -1)[:, 0]
        return np.stack([*(hop.roots.node for hop in hops), last], 1)

    def _deeper(self, hop: SampledHop[Int64], times: Int64, cut: int) -> tuple[Roots[Int64], Int64]:
        """The next hop's roots, this hop's and then its neighbours in row order, and their
        times."""
        roots = hop.roots
        found = hop.found
        num_roots = len(roots.node)
        total = num_roots + int(np.count_nonzero(found.mask))
        nodes, next_times, before = np.empty((3, total), np.int64)
        next_roots(
            roots.node, times, roots.before, found.neighbor, found.mask, nodes, next_times, before
        )

        # A neighbour asked at its event's time sees only what was before that time.
        if self.prop_time:
            next_times[num_roots:] = edge_times(self.columns, found.event, found.mask)[found.mask]
            if self.strategy != "static":
                earlier = edges_before(self.columns, next_times[num_roots:])
                before[num_roots:] = np.minimum(earlier, cut)
        return Roots(nodes, 0, before), next_times

    def _layer(self, hop: SampledHop[Int64], root_time: Int64) -> Layer:
        found = hop.found
        time = edge_times(self.columns, found.event, found.mask)
        return Layer(hop.roots.node, root_time, found.neighbor, found.event, time, found.mask)
