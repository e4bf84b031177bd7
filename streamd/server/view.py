"""The server's own view of the log: graph, facts and node features, sub-second fresh."""

import threading

import numpy as np
import structlog

from streamd.events import Int64, Key
from streamd.gpu import choose_device, make_graph
from streamd.graph import PairFacts
from streamd.graph.live import LiveGraph, save_facts
from streamd.models import Memory
from streamd.registry.registry import Manifest
from streamd.segments.holds import Hold, asked_to_compact, begin_hold, write_hold
from streamd.segments.reader import LogReader
from streamd.server.candidates import Candidates
from streamd.server.checkpoint import forget_memory, store_memory, stored_memory
from streamd.server.served import UNKNOWN, Served
from streamd.settings import ModelSettings, Settings

log = structlog.get_logger()
SLICE_EDGES = 20_000
MEMORY_EVERY = 20_000
ROLE, FACTS = "serve", "serve/facts"


class LogView:
    """Tails the log in slices and answers what is known of nodes. Owner: the engine."""

    def __init__(self, settings: Settings, reader: LogReader, model: ModelSettings) -> None:
        """model: of the version that is served; half-lives and bound of the facts are its."""
        self.log, self.model = reader, model
        self._began_at = reader.first_edge
        begin_hold(settings.data_dir, ROLE, reader.first_edge)
        self.live = LiveGraph(reader, make_graph(settings, choose_device(settings.server.device), reader.first_edge), model)
        self.candidates = Candidates(self.live, settings.server.max_candidates)
        self._data_dir = settings.data_dir
        self._facts_edge = self.live.restore_facts(self._data_dir / FACTS, reader.num_edges)
        self._hold = Hold(-1, -1)
        stored = stored_memory(self._data_dir)
        self._memory_stored = ("", -1) if stored is None else (stored.version, stored.memory.edge)
        self._storing: threading.Thread | None = None
        self.newest_us = 0
        self._began = False

    def suits(self, model: ModelSettings) -> bool:
        """Whether a version of such settings can be answered for with these facts."""
        return (model.half_lives_seconds, model.max_pairs) == (self.model.half_lives_seconds, self.model.max_pairs)

    @property
    def facts(self) -> PairFacts:
        return self.live.facts

    @property
    def edge(self) -> int:
        """Id of the next edge to take in."""
        return self.live.edge

    @property
    def taken_in(self) -> tuple[int, int]:
        """Edges in the graph, which the facts follow, and in the log, since this view began."""
        return self.live.graph.num_edges - self._began_at, self.log.num_edges - self._began_at

    def follow(self) -> tuple[int, bool]:
        """Take in up to one slice of new edges, and all deletes. Returns: how many edges, and whether there were deletes.

        What the reader knows is read to its end before it looks for more: its segments stay mapped until then, while
        retention may drop them.
        """
        if self.caught_up and not self.log.refresh() and self._began:
            return 0, False
        self._began = True
        deleted = self.live.hide_deleted()
        took = self.live.step(self.log.num_edges, SLICE_EDGES)
        if took:
            self.newest_us = int(self.log.time_of(np.array([self.edge - 1]))[0])
        self.live.take_features(self.edge)
        return took, deleted

    def keep(self, served: Served | None) -> None:
        """Say what of the log a restart needs; once a segment is behind, or compaction asks, facts are stored first. The
        memory of what serves is stored every MEMORY_EVERY edges.

        Both are stored from copies by a thread of their own, since requests do not wait for a disk.
        """
        if self._storing is not None and self._storing.is_alive():
            return
        wish = asked_to_compact(self._data_dir)
        if self._facts_edge < max(self.log.sealed_until(self.edge), min(wish or 0, self.edge)):
            self._storing = threading.Thread(target=self._store, args=(self.facts.copy(),), name="facts", daemon=True)
            self._storing.start()
            return
        if wish is not None and self._memory_stored[1] < wish:
            forget_memory(self._data_dir)
            self._memory_stored = ("", -1)
        elif served is not None and self._memory_is_due(served):
            name, memory = served.manifest.name, served.memory.copy()
            self._storing = threading.Thread(target=self._store_memory, args=(name, memory), name="memory", daemon=True)
            self._storing.start()
        hold = Hold(self._facts_edge, self.edge)
        if hold.edge != self._hold.edge or (wish is not None and hold != self._hold):
            write_hold(self._data_dir, ROLE, hold)
            self._hold = hold

    def memory_edge(self, manifest: Manifest) -> int:
        """Edge at which a version's memory is stored last: by the version itself, or here since."""
        version, edge = self._memory_stored
        return max(manifest.edge, edge if version == manifest.name else -1)

    def _memory_is_due(self, served: Served) -> bool:
        return served.memory.edge - self.memory_edge(served.manifest) >= MEMORY_EVERY

    def _store_memory(self, version: str, memory: Memory) -> None:
        try:
            store_memory(self._data_dir, version, memory)
        except OSError as error:
            log.error("memory_not_stored", error=str(error), meaning="a restart replays more; tried again in a second")
        else:
            self._memory_stored = (version, memory.edge)

    def _store(self, facts: PairFacts) -> None:
        try:
            save_facts(facts, self._data_dir / FACTS)
        except OSError as error:
            log.error("facts_not_stored", error=str(error), meaning="the log is kept for longer; tried again in a second")
        else:
            self._facts_edge = facts.edge

    @property
    def caught_up(self) -> bool:
        return self.edge == self.log.num_edges == self.live.graph.num_edges

    @property
    def watermark(self) -> int:
        """Event time up to which what was taken in is complete."""
        return self.log.watermark if self.caught_up else self.newest_us

    def ids(self, keys: list[Key]) -> Int64:
        """Dense ids, UNKNOWN for a key never seen."""
        known = self.log.ids
        return np.array([known.get(k, UNKNOWN) for k in keys], np.int64)
