"""The public sampler: neighbors over several hops, strictly before the time of each root."""

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
"""Minimum number of roots per thread."""


@dataclass(frozen=True)
class Compact:
    """A layer in the form of message passing: E sampled events between M distinct (node, time)
    pairs of roots and neighbors.

    node: int64[M] node ids. time: int64[M] microseconds, the query time of each. root: int64[R],
    indices of the roots in `node`. edge_index: int64[2, E] indices into `node`, from neighbor to
    root, as in PyG. eid: int64[E] event ids.
    """

    node: Int64
    time: Int64
    root: Int64
    edge_index: Int64
    eid: Int64


@dataclass(frozen=True)
class Layer:
    """One hop of R roots with at most k neighbors each.

    root: int64[R] node ids. root_time: int64[R] microseconds. neighbor, eid, time: int64[R, k],
    neighbors with the ids and times of their events; padding is 0. mask: bool[R, k], False for
    padding. The next layer's roots are `root`, then the sampled neighbors in row order without
    padding; with strategy window they are `root` alone.
    """

    root: Int64
    root_time: Int64
    neighbor: Int64
    eid: Int64
    time: Int64
    mask: Bools

    def compact(self, prop_time: bool = False) -> Compact:
        """Make the distinct (node, time) pairs and the events between them. prop_time: whether a
        neighbor has the time of its event, not of its root."""

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
    """A sampler that splits the roots among threads, with the same results as one thread."""

    def __init__(self, sampler: NeighborSampler[Int64], threads: int) -> None:
        self._sampler = sampler
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def sample(
        self, root_R: Int64, since: int | Int64, before: int | Int64, draws: HopDraws
    ) -> Neighbors[Int64]:
        # For few roots, sample in the calling thread.
        num_parts = min(self._threads, len(root_R) // SPLIT_ROOTS)
        if num_parts <= 1:
            return self._sampler.sample(root_R, since, before, draws)

        # Split the roots in order, so that the results need only be concatenated.
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
    """Samples neighbors over several hops. Owner: the thread that owns the graph, between its
    inserts.

    A draw is a function of seed, root, cut (the first event that the root does not see) and hop; it
    does not depend on the batch or the number of threads.

    Args:
        graph: NeighborSampler, such as a `BlockGraph`.
        fanouts: Sequence[int], the number of neighbors per root of each hop; one for strategy
            window.
        strategy: str, "recent": the newest events first; "uniform": each event is equally likely;
            "window": the newest events of each of `snapshots` windows of `width_us` back from the
            root's time (DySAT); "static": uniform over all events before `before_event`, whatever
            their time. Default "recent".
        columns: EdgeColumns, the mapped times of the graph's events; `follow` replaces them as the
            log grows.
        direction: str, "out", "in" or "both", for which the graph must have a store. Default
            "both".
        replace: bool, uniform draws may draw an event twice. Default False.
        prop_time: bool, the next hop's query time of a sampled neighbor is its event's time;
            False: its root's. Default False.
        seed: int, of uniform draws. Default 0.
        snapshots: int, number of windows of strategy window. Default 1.
        width_us: int, microseconds of a window of strategy window. Default 0.
        threads: int, among which large batches are split. Default 1.

    Raises:
        ValueError: `strategy` is unknown.
        ValueError: strategy window lacks `width_us` or `snapshots` above 0, or has several fanouts.
        ValueError: `fanouts` is empty, or has a number below 1.
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

        # Each hop has another seed, so that a root of two hops has different draws in both.
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
        """Use the columns of a log that has grown. Call it before a query about events that were
        inserted since."""
        self.columns = columns

    def sample(self, nodes: Int64, times: Int64, before_event: int | None = None) -> list[Layer]:
        """Sample one layer per hop; for strategy window one per time window, the newest first.

        Args:
            nodes: int64[R].
            times: int64[R] microseconds. Each root sees only events strictly before its own time,
                except with strategy static.
            before_event: no root sees events from this id on. Default None: all events of the
                columns.

            Raises:
                OffloadedError: a sample needs events that are no longer in memory and cannot be
                    read back.
                IndexError: a sampled event is not in the columns.
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
            # Static ignores times; the other strategies see only events before the root's time.
            if self.strategy == "static":
                before = np.full(len(nodes), cut)
            else:
                before = np.minimum(edges_before(self.columns, times), cut)
            roots = Roots(nodes, 0, before)

            def roots_after(number: int, hop: SampledHop[Int64]) -> Roots[Int64]:
                reached, reached_times = self._deeper(hop, root_times[-1], cut)
                root_times.append(reached_times)
                return reached

        # `roots_after` also appends the times of each hop's roots.
        hops = sample_hops(self._sampler, roots, self._draws, roots_after)
        return [self._layer(hop, when) for hop, when in zip(hops, root_times, strict=True)]

    def walk(self, nodes: Int64, times: Int64, steps: int) -> Int64:
        """Random walks back in time, one from each root. A step goes to the neighbor of an event
        strictly before the time of the last step's event: the newest such event (strategies recent
        and window) or a uniformly drawn one (uniform and static). Windows are ignored, and static
        walks go back in time too.

        Args:
            nodes: int64[R], the roots.
            times: int64[R] microseconds; the first step goes to an event strictly before it.
            steps: number of steps, at least 1.

        Returns: int64[R, steps + 1] node ids, the roots first, -1 after the end of a walk.
        """
        # Each step draws one neighbor, with another seed.
        draw = replace(self._draws[0], fanout=1)
        draws = [replace(draw, seed=draw.seed + step) for step in range(steps)]

        def step_back(_: int, hop: SampledHop[Int64]) -> Roots[Int64]:
            # A walk that has ended goes to node -1, which has no neighbors.
            found = hop.found
            reached = np.where(found.mask, found.neighbor, -1)[:, 0]
            when = edge_times(self.columns, found.event, found.mask)[:, 0]
            return Roots(reached, 0, edges_before(self.columns, when))

        roots = Roots(nodes, 0, edges_before(self.columns, times))
        hops = sample_hops(self._sampler, roots, draws, step_back)
        last = np.where(hops[-1].found.mask, hops[-1].found.neighbor, -1)[:, 0]
        return np.stack([*(hop.roots.node for hop in hops), last], 1)

    def _deeper(self, hop: SampledHop[Int64], times: Int64, cut: int) -> tuple[Roots[Int64], Int64]:
        """The next hop's roots (this hop's roots, then its neighbors in row order), and their
        times."""
        roots = hop.roots
        found = hop.found
        num_roots = len(roots.node)
        total = num_roots + int(np.count_nonzero(found.mask))
        nodes, next_times, before = np.empty((3, total), np.int64)
        next_roots(
            roots.node, times, roots.before, found.neighbor, found.mask, nodes, next_times, before
        )

        # With prop_time a neighbor sees only events before the time of its own event.
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
