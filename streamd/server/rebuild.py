"""How far a server is with graph, facts and memory until it can answer."""

from streamd.server.server_graph import ServerGraph
from streamd.server.swap import CatchingUp, State
from streamd.telemetry import metrics
from streamd.telemetry.progress import Reading, RoleProgress


class Rebuild:
    """Counts edges in graph and facts, and edges that memory was carried over. Owner: the engine."""

    def __init__(self, memory_edge: int | None) -> None:
        """memory_edge: where the first version's memory will go on, as far as known; None without
        one."""
        self._memory_edge = memory_edge
        self._progress = RoleProgress("rebuilding", metrics.rebuild_ratio)

    def at(self, view: ServerGraph, swap: State) -> Reading:
        """Say where it is."""
        done, total = view.taken_in
        if isinstance(swap, CatchingUp):
            self._memory_edge = swap.from_edge
            done += swap.served.memory.edge - swap.from_edge
            if swap.view is not view:
                done = done + swap.view.taken_in[0]
                total = total + swap.view.taken_in[1]
        if self._memory_edge is not None:
            total += max(0, view.log.num_edges - self._memory_edge)
        return self._progress.at(done, total)

    def done(self) -> None:
        """Say that it is over."""
        metrics.rebuild_ratio.set(1)
