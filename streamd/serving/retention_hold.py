"""A server stores facts, the memory of the version that serves, and its hold on the log.

Its next start reads facts and memory, and the log from the hold on.
"""

import threading
from collections.abc import Callable

import structlog

from streamd.graph.live import LiveGraph
from streamd.graph.restart_point import RestartPoint
from streamd.models import Memory
from streamd.registry.manifest import Manifest
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.memory_store import MemoryStore
from streamd.settings.paths import Paths

logger = structlog.get_logger()
MEMORY_EVERY = 20_000
"""Events between two stores of memory. A restart replays no more of them."""


class ServingHold:
    """Stores facts and memory in a thread of its own, since requests must not wait for a disk.

    Owner: the server's graph.
    """

    def __init__(self, paths: Paths, live: LiveGraph) -> None:
        """Load the facts that were stored last."""
        self._live = live
        self._restart = RestartPoint(paths.log, paths.role, live)
        self._restart.resume(live.log.num_edges)
        self.memory = MemoryStore(paths.folder)
        """The memory that was stored last, with the name of its version."""
        stored = self.memory.stored()
        self._memory_stored = ("", -1) if stored is None else (stored.version, stored.edge)
        self._storing: threading.Thread | None = None

    def keep(self, served: LoadedVersion | None) -> None:
        """Store what is due, and write what of the log a restart needs.

        Facts are due once a segment lies behind them or compaction asks, the memory of the version
        that serves every MEMORY_EVERY events. Nothing happens while something is still stored.
        """
        # Facts first: the hold follows them.
        edge = self._live.edge
        if self._storing is not None and self._storing.is_alive():
            return
        if self._restart.is_due(edge):
            self._storing = threading.Thread(
                target=self.store_facts,
                args=(self._restart.prepare_store(edge),),
                name="facts",
                daemon=True,
            )
            self._storing.start()
            return

        # Memory that may hold what was deleted goes; else it is stored if due.
        compaction_request = self._restart.compaction_request()
        if compaction_request is not None and self._memory_stored[1] < compaction_request:
            self.memory.forget()
            self._memory_stored = ("", -1)
        elif served is not None and self._memory_is_due(served):
            name = served.manifest.name
            memory = served.memory.copy()
            memory.forget(self._live.log.deletions.of_nodes)
            self._storing = threading.Thread(
                target=self.store_memory, args=(name, memory), name="memory", daemon=True
            )
            self._storing.start()

        self._restart.hold(edge, edge)

    def memory_edge(self, manifest: Manifest) -> int:
        """Event id of a version's newest stored memory: the version's own, or stored here since."""
        version, edge = self._memory_stored
        return max(manifest.edge, edge if version == manifest.name else -1)

    def _memory_is_due(self, served: LoadedVersion) -> bool:
        return served.memory.edge - self.memory_edge(served.manifest) >= MEMORY_EVERY

    def store_memory(self, version: str, memory: Memory) -> None:
        """Store a copy of a version's memory. A failure is logged."""
        try:
            self.memory.store(version, memory)
        except OSError as error:
            logger.error(
                "memory_not_stored",
                error=str(error),
                meaning="a restart replays more; tried again in a second",
            )
        else:
            self._memory_stored = (version, memory.edge)

    def store_facts(self, store: Callable[[], None]) -> None:
        """Store the facts by what `RestartPoint.prepare_store` returned. A failure is logged."""
        try:
            store()
        except OSError as error:
            logger.error(
                "facts_not_stored",
                error=str(error),
                meaning="the log is kept for longer; tried again in a second",
            )
