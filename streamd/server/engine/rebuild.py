"""The progress of a server's start, while graph, facts and memory are rebuilt from the log."""

from streamd.serving.following_graph import ServerGraph
from streamd.serving.swap import CatchingUp, State
from streamd.telemetry import metrics
from streamd.telemetry.progress import Reading, RoleProgress


class Rebuild:
    """Counts the events in graph and facts, and those over which memory has advanced. Owner: the
    engine."""

    def __init__(self, memory_edge: int | None) -> None:
        """memory_edge: event id at which the memory of the first version starts, as far as known;
        None without a version."""
        self._memory_edge = memory_edge
        self._progress = RoleProgress("rebuilding", metrics.rebuild_ratio)

    def at(self, view: ServerGraph, swap: State) -> Reading:
        """The present progress. swap: state of the swap of versions."""
        done, total = view.taken_in

        # The events over which memory has advanced, and those in the version's own graph.
        if isinstance(swap, CatchingUp):
            if swap.served is not None:
                self._memory_edge = swap.from_edge
                done += swap.served.memory.edge - swap.from_edge
            if swap.view is not view:
                done = done + swap.view.taken_in[0]
                total = total + swap.view.taken_in[1]

        # The events over which memory must advance in all.
        if self._memory_edge is not None:
            total += max(0, view.log.num_edges - self._memory_edge)
        return self._progress.at(done, total)


def share_caught_up(swap: CatchingUp, view: ServerGraph) -> float:
    """The share of the log's events that the next version has processed, from 0 to 1. view: the
    graph that answers; the next version uses it too unless it needs its own."""
    done, total = (0, 0) if swap.view is view else swap.view.taken_in
    if swap.served is not None:
        done += swap.served.memory.edge - swap.from_edge
        total += max(0, swap.view.log.num_edges - swap.from_edge)
    return min(1.0, max(0, done) / total) if total > 0 else 1.0
