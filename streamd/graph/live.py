"""A role's view of the log: block graph, pair facts, label means and node features, without deleted
events and nodes."""

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
"""Minimum number of new events before the next pass over all directories of the graph."""
CATCH_UP_EDGES = 1_000_000
"""Events inserted together after a restart, before the role answers; this takes 0.2 s."""
OFFLOAD_SHARE = 0.125
"""Minimum share of new events in memory before the next pass, so that passes take little time."""


class LiveGraph:
    """The graph, facts, labels and node features of one role. Owner: one thread per role.

    The graph may be ahead of the facts; after a restart the facts are ahead. So queries have an
    event id up to which they use the graph. A delete hides events in the graph as soon as the log's
    reader has it; the facts apply it at its position in the log.
    """

    def __init__(
        self,
        reader: LogReader,
        graph: TemporalGraph,
        model: ModelSettings,
        keep_us: int = 0,
        features: FeatureRows | None = None,
    ) -> None:
        """graph: empty, starting at the log's first event. keep_us: microseconds of event time that
        stay in memory, 0 for all. features: empty; None for features of all nodes in this
        process."""
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

        # The oldest event in memory, and the graph's next event when it last offloaded.
        self._in_memory_from = self._offloaded_at = graph.first_event
        reader.follow(self)

    @property
    def edge(self) -> int:
        """Id of the facts' next event."""
        return self.facts.edge

    def insert(self, until_event: int) -> None:
        """Insert events into the graph up to an id; deleted ones are inserted as hidden."""
        first = self.graph.next_event
        if until_event <= first:
            return
        src, dst, time = self.log.edges(first, until_event)
        self.graph.insert(src, dst, self.log.edge_sets(first, until_event))

        # Hide events that the log deleted before they were inserted.
        dead = np.flatnonzero(self.log.deletions.hides(first, src, dst))
        if len(dead):
            self.graph.hide(src[dead], dst[dead], first + dead)

        # Offload older events.
        if self._keep_us:
            self._offload(int(time[-1]))
        metrics.graph_bytes.set(self.graph.num_bytes)
        metrics.nodes.set(self.log.num_nodes)
        metrics.pairs.set(self.facts.num_pairs)

    def _offload(self, newest_us: int) -> None:
        """Offload events older than `keep_us`, if there are enough new events."""

        # A pass visits all directories, so wait for enough new events.
        new = self.graph.next_event - self._offloaded_at
        held = self.graph.next_event - self._in_memory_from
        if new < max(OFFLOAD_EVENTS, OFFLOAD_SHARE * held):
            return
        self._offloaded_at = self.graph.next_event
        self._in_memory_from = self.log.lower_bound(newest_us - self._keep_us)
        self.graph.offload(self._in_memory_from)

    def step(self, until_event: int, slice_edges: int, catch_up_edges: int = CATCH_UP_EDGES) -> int:
        """Advance graph and facts by at most `slice_edges` events; if the facts are ahead of the
        graph, advance the graph alone by at most `catch_up_edges`. Returns: number of events."""

        # After a restart the facts are ahead, so the graph catches up first.
        at = self.graph.next_event
        if at < self.edge:
            self.insert(min(self.edge, at + catch_up_edges))
            return self.graph.next_event - at

        # Both advance together.
        end = max(self.edge, min(self.edge + slice_edges, until_event))
        self.insert(end)
        src, dst, time = self.log.edges(self.edge, end)
        self.advance(src, dst, time)
        return len(src)

    def advance(self, src_E: Int64, dst_E: Int64, time_E: Int64) -> None:
        """Advance the facts by the next events."""
        sets = self._next_sets(len(src_E))
        self.facts.advance(src_E, dst_E, time_E, sets, self.log.deletions.of_nodes)

    def _next_sets(self, count: int) -> Int64:
        """Edge sets of the facts' next events."""
        return self.log.edge_sets(self.edge, self.edge + count)

    def advance_scoring(
        self, src_E: Int64, dst_E: Int64, time_E: Int64, query_R: Int64, candidates_RC: Int64
    ) -> Float32:
        """Advance the facts by the next events, and return the facts of queries, as
        `SetFacts.advance_scoring` does: float32[R, C, F]."""
        sets = self._next_sets(len(src_E))
        return self.facts.advance_scoring(
            src_E, dst_E, time_E, sets, query_R, candidates_RC, self.log.deletions.of_nodes
        )

    def facts_now(
        self, event_R: Int64, src_R: Int64, time_R: Int64, candidates_RC: Int64
    ) -> Float32:
        """The facts of queries in the present state: float32[R, C, F]. event_R: int64[R], events of
        the log; each query is in the edge set of its event."""
        sets = self.log.edge_sets_of(event_R)
        return self.facts.compute(src_R, time_R, candidates_RC, sets)

    def take_features(self, until_event: int) -> None:
        """Apply the updates of node features before an event."""
        for nodes, values, events in self._feature_updates.until(until_event):
            self.features.take(nodes, values, events)

    def apply(self, changes: Changes) -> None:
        """Hide deleted nodes and events in the graph, and the events that the log dropped."""
        self.graph.drop_before(self.log.first_edge)
        if not changes.has_deletes:
            return

        # `insert` hides deleted events that are not in the graph yet.
        self.graph.hide_nodes(changes.nodes)
        events = changes.events
        known = events[(events >= self.log.first_edge) & (events < self.graph.next_event)]
        self.graph.hide(self.log.gather("src", known), self.log.gather("dst", known), known)

    def restore_facts(self, folder: Path, until_event: int) -> int:
        """Load the newest stored facts at or before an event. Returns: the id of their next event.

        Without stored facts they start at the log's first event, which is exact only if the log has
        dropped none.
        """
        # Without stored facts, compute them from the log, which retention may have shortened.
        if not load_stored_facts(self.facts, folder, until_event) and self.log.first_edge > 0:
            logger.warning(
                "facts_incomplete",
                first_edge=self.log.first_edge,
                meaning="facts are computed without the events that retention dropped",
            )
        return self.edge


def read_back(reader: LogReader) -> ReadBack:
    """Make the function by which a graph reads offloaded events back from the log."""

    def read(first: int, end: int) -> tuple[Int64, Int64, Bools]:
        src_E, dst_E, _ = reader.edges(first, end)
        return src_E, dst_E, reader.deletions.hides(first, src_E, dst_E)

    return read


def load_stored_facts(facts: SetFacts, folder: Path, until_event: int) -> bool:
    """Load the newest stored facts, from `facts.edge` up to `until_event`, into empty facts.
    Returns: whether there were any. A file that cannot be loaded is logged."""
    for path in _stored_facts(folder):
        # Facts before the log's first event lack events that it dropped; later ones than
        # `until_event` have too many.
        if facts.edge <= int(path.stem) <= until_event:
            try:
                if facts.restore(path):
                    return True
                reason = "they have other half-lives, or more pairs than model.max_pairs"
            except (CorruptionError, FileNotFoundError, KeyError, ValueError) as error:
                reason = str(error)
            logger.warning(
                "facts_not_loaded",
                file=str(path),
                reason=reason,
                meaning="older stored facts or the log replace them, so the start takes longer",
            )
    return False


def save_facts(facts: SetFacts, folder: Path) -> None:
    """Store facts.

    1. Write them durably as `folder/<edge>.safetensors`.
    2. Delete older facts. In the other order, a kill would leave no facts at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_scratch(folder)
    path = folder / f"{facts.edge:020d}.safetensors"
    facts.save(path)

    # 2. A kill here leaves older facts or parts of them, which the next call deletes. The file of
    # all sets goes first, since its existence means that the facts are complete.
    for old in sorted(folder.glob("*.safetensors"), reverse=True):
        edge, *number = old.stem.split("-", 1)
        if all(part.isdigit() for part in (edge, *number)) and edge < path.stem:
            old.unlink()


def _stored_facts(folder: Path) -> list[Path]:
    """The files of facts in a folder, newest first, without files of other names."""
    return sorted((p for p in folder.glob("*.safetensors") if p.stem.isdigit()), reverse=True)
