"""What a server stores for its next start: facts, the hold behind them, and the memory of the
version that serves."""

import threading
from pathlib import Path

import structlog

from streamd.graph import PairFacts
from streamd.graph.live import LiveGraph
from streamd.graph.restart import RestartPoint
from streamd.models import Memory
from streamd.registry.registry import Manifest
from streamd.roles import folder_of
from streamd.server.checkpoint import StoredMemory, forget_memory, store_memory, stored_memory
from streamd.server.loaded_version import LoadedVersion

logger = structlog.get_logger()
MEMORY_EVERY = 20_000
"""Edges: a restart replays no more of them into memory, and a store of a million nodes takes a
second."""


class RetentionHold:
    """Stores from copies by a thread of its own, since requests do not wait for a disk. Owner: the
    view of the log."""

    def __init__(self, data_dir: Path, name: str, live: LiveGraph) -> None:
        """name: of this server. Takes over the facts that were stored last."""
        self.name = name
        self._live = live
        self._folder = folder_of(data_dir, name)
        self._restart = RestartPoint(data_dir, name, live)
        self._restart.resume(live.log.num_edges)
        stored = self.memory()
        self._memory_stored = ("", -1) if stored is None else (stored.version, stored.memory.edge)
        self._storing: threading.Thread | None = None

    def keep(self, served: LoadedVersion | None) -> None:
        """Store what is due, and say what of the log a restart needs: facts once a segment is
        behind or compaction asks, the memory of what serves every MEMORY_EVERY edges. Not while it
        still stores."""
        edge = self._live.edge
        if self._storing is not None and self._storing.is_alive():
            return
        if self._restart.is_due(edge):
            self._storing = threading.Thread(
                target=self.store_facts, args=(self._live.facts.copy(),), name="facts", daemon=True
            )
            self._storing.start()
            return
        compaction_request = self._restart.compaction_request()
        if compaction_request is not None and self._memory_stored[1] < compaction_request:
            forget_memory(self._folder)
            self._memory_stored = ("", -1)
        elif served is not None and self._memory_is_due(served):
            name = served.manifest.name
            memory = served.memory.copy()
            self._storing = threading.Thread(
                target=self.store_memory, args=(name, memory), name="memory", daemon=True
            )
            self._storing.start()
        self._restart.hold(edge, edge)

    def memory(self) -> StoredMemory | None:
        """What was stored last of the version that served then."""
        return stored_memory(self._folder)

    def memory_edge(self, manifest: Manifest) -> int:
        """Edge at which a version's memory is stored last: by the version itself, or here since."""
        version, edge = self._memory_stored
        return max(manifest.edge, edge if version == manifest.name else -1)

    def _memory_is_due(self, served: LoadedVersion) -> bool:
        return served.memory.edge - self.memory_edge(served.manifest) >= MEMORY_EVERY

    def store_memory(self, version: str, memory: Memory) -> None:
        """Store a copy of a version's memory; what fails is said."""
        try:
            store_memory(self._folder, version, memory)
        except OSError as error:
            logger.error(
                "memory_not_stored",
                error=str(error),
                meaning="a restart replays more; tried again in a second",
            )
        else:
            self._memory_stored = (version, memory.edge)

    def store_facts(self, facts: PairFacts) -> None:
        """Store a copy of the facts; what fails is said."""
        try:
            self._restart.store(facts)
        except OSError as error:
            logger.error(
                "facts_not_stored",
                error=str(error),
                meaning="the log is kept for longer; tried again in a second",
            )
