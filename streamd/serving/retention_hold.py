"""Stores the facts of a server, the memory of the version that serves, and the server's hold: the
part of the log that a restart needs.

The next start reads facts and memory, and the log from the hold on.
"""

import threading
from collections.abc import Callable

import structlog

from streamd.eventlog.deletions import deletes_until
from streamd.graph.live import LiveGraph
from streamd.graph.restart_point import RestartPoint
from streamd.models import Memory
from streamd.registry.manifest import Manifest
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.memory_store import MemoryStore
from streamd.settings.paths import Paths

logger = structlog.get_logger()
MEMORY_EVERY = 20_000
"""Number of events between two stores of the memory: the most that a restart replays."""


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
        self._memory_seq = self._restart.facts_seq
        """Commit up to which the deletes are applied to the stored memory; None if unknown."""
        self._storing: threading.Thread | None = None

    def keep(self, served: LoadedVersion | None) -> None:
        """Store what is due, then write the hold. Nothing happens while a thread still stores.

        1. Store the facts once they are past a whole segment or compaction waits for them; the call
           ends here.
        2. Remove the stored memory if it may contain data that compaction must purge; otherwise
           store the memory of the version that serves every MEMORY_EVERY events.
        3. Write the hold last, from the facts that are durable by then. With a newer hold,
           retention could drop events that a restart needs, and compaction would end while files
           still have deleted data.
        """
        # 1. Facts first: the hold follows them.
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

        # 2. Remove memory that may contain deleted data; otherwise store it if due.
        log = self._live.log
        if self._memory_is_stale(edge):
            self.memory.forget()
            self._memory_stored = ("", -1)
        elif served is not None and self._memory_is_due(served):
            name = served.manifest.name
            memory = served.memory.copy()
            memory.forget(log.deletions.of_nodes)
            self._storing = threading.Thread(
                target=self.store_memory,
                args=(name, memory, log.state.seq),
                name="memory",
                daemon=True,
            )
            self._storing.start()

        # 3. The hold. Without stored memory, all deleted data is purged from it.
        is_stored = bool(self._memory_stored[0])
        self._restart.hold(edge, edge, self._memory_seq if is_stored else log.state.seq)

    def _memory_is_stale(self, edge: int) -> bool:
        """Whether the stored memory may contain data whose deletion a compaction up to `edge` waits
        for."""
        request = self._restart.compaction_request()
        version, stored_edge = self._memory_stored
        if request is None or not version:
            return False
        log = self._live.log
        newest = deletes_until(log.data_dir, log.state, min(request, edge))[1]
        is_behind = self._memory_seq is not None and self._memory_seq < newest
        return stored_edge < request or is_behind

    def memory_edge(self, manifest: Manifest) -> int:
        """Event id of a version's newest stored memory: of the version itself, or stored here
        since."""
        version, edge = self._memory_stored
        return max(manifest.edge, edge if version == manifest.name else -1)

    def _memory_is_due(self, served: LoadedVersion) -> bool:
        return served.memory.edge - self.memory_edge(served.manifest) >= MEMORY_EVERY

    def store_memory(self, version: str, memory: Memory, seq: int) -> None:
        """Store a copy of a version's memory. seq: commit up to which deletes are applied to it. A
        failure is logged."""
        try:
            self.memory.store(version, memory)
        except OSError as error:
            logger.error(
                "memory_not_stored",
                error=str(error),
                meaning="a restart replays more events; retried in a second",
            )
        else:
            self._memory_seq = seq
            self._memory_stored = (version, memory.edge)

    def store_facts(self, store: Callable[[], None]) -> None:
        """Store the facts by the function that `RestartPoint.prepare_store` returned. A failure is
        logged."""
        try:
            store()
        except OSError as error:
            logger.error(
                "facts_not_stored",
                error=str(error),
                meaning="retention keeps more of the log; retried in a second",
            )
