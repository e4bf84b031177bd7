"""The log as one role sees it: block graph, pair facts and node features at one place, less what
deletes hide."""

from pathlib import Path

import numpy as np
import structlog

from streamd.errors import CorruptionError
from streamd.eventlog.log_changes import Changes
from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks.block_store import ReadBack
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.label_history import LabelHistory
from streamd.graph.node_features import FeatureRows, NodeFeatures
from streamd.graph.temporal import TemporalGraph
from streamd.settings.loading import ModelSettings
from streamd.storage import remove_scratch
from streamd.telemetry import metrics

logger = structlog.get_logger()
OFFLOAD_EVENTS = 65_536
"""Fewer new events than this are not worth a pass over all directories of the graph."""
CATCH_UP_EDGES = 1_000_000
"""Edges inserted together after a restart, while nobody waits: 0.2 s."""
OFFLOAD_SHARE = 0.125
"""A pass waits until so many of the events in memory are new, so that passes cost little."""


class LiveGraph:
    """Owner: one thread per role. The graph may be ahead of `edge`, the place of the facts; queries
    name what they see.

    A delete hides edges in the graph as soon as the log's reader knows it; facts take it in at its
    place in the log.
    """

    def __init__(
        self,
        reader: LogReader,
        graph: TemporalGraph,
        model: ModelSettings,
        keep_us: int = 0,
        features: FeatureRows | None = None,
    ) -> None:
        """graph: empty, from the log's first event on. keep_us: microseconds of event time that
        stay in memory, 0 for all. features: empty, of all nodes here where None."""
        self.log = reader
        self.graph = graph
        self.facts = SetFacts(
            reader.state.schema,
            model.half_lives_seconds,
            model.max_pairs,
            reader.first_edge,
            reader.node_sets_of,
        )
        self.labels = LabelHistory(reader)
        self.features: FeatureRows = features or NodeFeatures(
            reader.state.schema, reader.node_sets_of
        )
        self._feature_updates = reader.feature_updates()

        self._keep_us = keep_us

        # The oldest event in memory, and where the graph ended at the last pass.
        self._in_memory_from = self._offloaded_at = graph.first_event
        reader.follow(self)

    @property
    def edge(self) -> int:
        """Id of the next edge that the facts take in."""
        return self.facts.edge

    def insert(self, until_event: int) -> None:
        """Put edges into the graph, hidden ones as hidden."""
        first = self.graph.next_event
        if until_event <= first:
            return
        src, dst, time = self.log.edges(first, until_event)
        self.graph.insert(src, dst, self.log.edge_sets(first, until_event))

        # Events that the log already hides go in as hidden.
        dead = np.flatnonzero(self.log.deletions.hides(first, src, dst))
        if len(dead):
            self.graph.hide(src[dead], dst[dead], first + dead)

        # Older events leave memory.
        if self._keep_us:
            self._offload(int(time[-1]))
        metrics.graph_bytes.set(self.graph.num_bytes)
        metrics.nodes.set(self.log.num_nodes)
        metrics.pairs.set(self.facts.num_pairs)

    def _offload(self, newest_us: int) -> None:
        """Take what is too old out of memory, now and then."""

        # A pass over all directories is worth it once enough is new.
        new = self.graph.next_event - self._offloaded_at
        held = self.graph.next_event - self._in_memory_from
        if new < max(OFFLOAD_EVENTS, OFFLOAD_SHARE * held):
            return
        self._offloaded_at = self.graph.next_event
        self._in_memory_from = self.log.lower_bound(newest_us - self._keep_us)
        self.graph.offload(self._in_memory_from)

    def step(self, until_event: int, slice_edges: int, catch_up_edges: int = CATCH_UP_EDGES) -> int:
        """Move graph and facts on by at most a slice, or the graph alone by `catch_up_edges` where
        it is behind the facts. Returns: edges moved over."""

        # After a restart the facts are ahead: the graph catches up first.
        at = self.graph.next_event
        if at < self.edge:
            self.insert(min(self.edge, at + catch_up_edges))
            return self.graph.next_event - at

        # Both move on together.
        end = max(self.edge, min(self.edge + slice_edges, until_event))
        self.insert(end)
        src, dst, time = self.log.edges(self.edge, end)
        self.advance(src, dst, time)
        return len(src)

    def advance(self, src_E: Int64, dst_E: Int64, time_E: Int64) -> None:
        """Move the facts over the next edges."""
        sets = self._next_sets(len(src_E))
        self.facts.advance(src_E, dst_E, time_E, sets, self.log.deletions.of_nodes)

    def _next_sets(self, count: int) -> Int64:
        """Edge sets of the next events that the facts take in."""
        return self.log.edge_sets(self.edge, self.edge + count)

    def advance_scoring(
        self, src_E: Int64, dst_E: Int64, time_E: Int64, asked_R: Int64, candidates_RC: Int64
    ) -> Float32:
        """Move the facts over the next edges, as `SetFacts.advance_scoring` does."""
        sets = self._next_sets(len(src_E))
        return self.facts.advance_scoring(
            src_E, dst_E, time_E, sets, asked_R, candidates_RC, self.log.deletions.of_nodes
        )

    def facts_now(
        self, event_R: Int64, src_R: Int64, time_R: Int64, candidates_RC: Int64
    ) -> Float32:
        """The facts on the present state of what events of the log ask, each in its edge set:
        float32[R, C, F]."""
        sets = self.log.edge_sets_of(event_R)
        return self.facts.compute(src_R, time_R, candidates_RC, sets)

    def take_features(self, until_event: int) -> None:
        """Put the node features in force that were updated before an edge."""
        for nodes, values in self._feature_updates.until(until_event):
            self.features.take(nodes, values)

    def apply(self, changes: Changes) -> None:
        """Hide what was deleted and what the log dropped."""
        self.graph.drop_before(self.log.first_edge)
        if not changes.has_deletes:
            return

        # Events that come later are hidden as they are inserted.
        self.graph.hide_nodes(changes.nodes)
        events = changes.events
        known = events[(events >= self.log.first_edge) & (events < self.graph.next_event)]
        self.graph.hide(self.log.gather("src", known), self.log.gather("dst", known), known)

    def restore_facts(self, folder: Path, until_event: int) -> int:
        """Take over the newest stored facts at or before an edge. Returns: the id of the next
        edge that they take in.

        Without any they begin at the log's first edge, which is exact only where nothing lay before
        it.
        """
        # Where none fits they are made from the log, which retention may have shortened.
        if not take_stored(self.facts, folder, until_event) and self.log.first_edge > 0:
            logger.warning(
                "facts_incomplete",
                first_edge=self.log.first_edge,
                meaning="facts know nothing of the events that retention dropped",
            )
        return self.edge


def read_back(reader: LogReader) -> ReadBack:
    """How a graph reads offloaded events back from the log, with what deletes hide."""

    def read(first: int, end: int) -> tuple[Int64, Int64, Bools]:
        src_E, dst_E, _ = reader.edges(first, end)
        return src_E, dst_E, reader.deletions.hides(first, src_E, dst_E)

    return read


def take_stored(facts: SetFacts, folder: Path, until_event: int) -> bool:
    """Put facts that took in nothing at the newest place stored, from their own edge up to
    `until_event`. Returns: whether there was any. A file that cannot be taken is logged."""
    for path in _stored_facts(folder):
        # Facts from before the log cannot be continued; later ones know too much.
        if facts.edge <= int(path.stem) <= until_event:
            try:
                if facts.restore(path):
                    return True
                reason = "they were made under other model settings"
            except (CorruptionError, FileNotFoundError, KeyError, ValueError) as error:
                reason = str(error)
            logger.warning(
                "facts_not_taken",
                file=str(path),
                reason=reason,
                meaning="they are made from the log again",
            )
    return False


def save_facts(facts: SetFacts, folder: Path) -> None:
    """Write facts durably as `folder/<edge>.safetensors`, then drop older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_scratch(folder)
    path = folder / f"{facts.edge:020d}.safetensors"
    facts.save(path)

    # A kill on the way leaves older facts or parts of them, which the next call removes. The file
    # that stands for the whole goes before its parts.
    for old in sorted(folder.glob("*.safetensors"), reverse=True):
        edge, *number = old.stem.split("-", 1)
        if all(part.isdigit() for part in (edge, *number)) and edge < path.stem:
            old.unlink()


def _stored_facts(folder: Path) -> list[Path]:
    """Files of facts, newest first; a file by any other name is a stranger's."""
    return sorted((p for p in folder.glob("*.safetensors") if p.stem.isdigit()), reverse=True)
