"""The restart point of a role: its stored facts, and its retention lease (a `Hold` of
`streamd.eventlog.upkeep.holds`), which keeps the log from their next event on."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamd.eventlog.deletions import deletes_until
from streamd.eventlog.upkeep.holds import (
    RENEW_SECONDS,
    Hold,
    asked_to_compact,
    begin_hold,
    read_hold,
    renew_hold,
    write_hold,
)
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.live import LiveGraph, load_stored_facts, save_facts
from streamd.roles import FACTS, folder_of, take_over


class RestartPoint:
    """Stores facts and moves the retention lease, in this order:

    1. `store` writes facts durably.
    2. `hold` moves the lease, so that the log may drop the events before these facts.

    In the other order, a kill between the two would leave older facts, and a log without the events
    after them. So `hold` never moves the lease past the facts stored last. Owner: the role.
    """

    def __init__(self, data_dir: Path, name: str, live: LiveGraph) -> None:
        """name: of the role. Moves the role's files of an older release to their new paths."""
        self._data_dir = data_dir
        self._name = name
        self._live = live
        self._folder = folder_of(data_dir, name) / FACTS
        take_over(data_dir, name)
        begin_hold(data_dir, name, live.log.first_edge)
        renew_hold(data_dir, name)
        self._renewed = time.monotonic()
        self._facts_edge = live.edge
        found = read_hold(data_dir, name)
        self.facts_seq = None if found is None else found.purged_until_seq
        """Commit up to which the stored facts have applied deletes; None if unknown."""
        # Differs from every lease, so that the first one is written.
        self.written = Hold(-1, -1)
        """The lease that was written last."""

    def resume(self, until_event: int) -> None:
        """Load the newest stored facts at or before an event, if there are any."""
        self._facts_edge = self._live.restore_facts(self._folder, until_event)

    def compaction_request(self) -> int | None:
        """The event id of the request to compact the log before it; None without a request."""
        return asked_to_compact(self._data_dir)

    def is_due(self, edge: int) -> bool:
        """Whether facts at event `edge` should be stored: they have passed the end of a sealed
        segment since the last store, or a compaction waits for them."""
        request = self.compaction_request()
        log = self._live.log
        if self._facts_edge < max(log.sealed_until(edge), min(request or 0, edge)):
            return True
        # Several deletes may come between two events, so compare their commits too.
        if request is None or request > edge:
            return False
        newest = deletes_until(log.data_dir, log.state, request)[1]
        is_behind = self.facts_seq is not None and self.facts_seq < newest
        return is_behind and self._has_taken_deletes(self._live.facts)

    def _has_taken_deletes(self, facts: SetFacts) -> bool:
        """Whether facts have applied all of the log's deletes before their next event."""
        return facts.num_forgotten == len(self._live.log.deletions.of_nodes.until(facts.edge).node)

    def store(self, facts: SetFacts) -> None:
        """Store facts durably. They must not change meanwhile. Raises: OSError."""
        seq = self._live.log.state.seq if self._has_taken_deletes(facts) else 0
        self._save(facts, seq)

    def _save(self, facts: SetFacts, seq: int) -> None:
        """Store facts. seq: commit up to which they have applied deletes."""
        save_facts(facts, self._folder)
        self._facts_edge, self.facts_seq = facts.edge, seq

    def prepare_store(self, edge: int) -> Callable[[], None]:
        """Return a function that stores the facts at event `edge`, as `store`; another thread may
        call it.

        It computes them from the facts stored last and the log, as a restart does: the live facts
        advance meanwhile, and a copy of them would take long. This method uses the log's reader;
        the function does not.
        """
        # Views of the mapped segments stay readable while the reader advances.
        log = self._live.log
        begin, first_edge, deletes = self._facts_edge, log.first_edge, log.deletions.of_nodes
        seq = log.state.seq
        ranges = [
            (max(begin, s.first_edge), min(edge, s.first_edge + s.num_edges))
            for s in log.state.segments
            if s.first_edge < edge and begin < s.first_edge + s.num_edges
        ]
        parts = [(*log.edges(a, b), log.edge_sets(a, b)) for a, b in ranges]
        facts = self._live.facts.fresh(first_edge)
        nothing = np.zeros(0, np.int64)

        def store() -> None:
            load_stored_facts(facts, self._folder, begin)
            if facts.edge != begin:
                # The facts stored last cannot be read: the next try starts at older facts, or at
                # the log's first event.
                self._facts_edge, self.facts_seq = facts.edge, 0
                return
            for src_E, dst_E, time_E, set_E in parts:
                facts.advance(src_E, dst_E, time_E, set_E, deletes)
            # Apply the deletes after the last event.
            facts.advance(nothing, nothing, nothing, nothing, deletes)
            self._save(facts, seq)

        return store

    def hold(
        self, edge: int, purged_before_event: int, purged_until_seq: int | None = None
    ) -> None:
        """Write the lease: a restart needs the log from event `edge` on, and from the next event of
        the stored facts on.

        purged_before_event, purged_until_seq: as in `Hold`, for the role's files other than facts.
        """
        seq = self.facts_seq
        if seq is not None and purged_until_seq is not None:
            seq = min(seq, purged_until_seq)
        hold = Hold(min(self._facts_edge, edge), purged_before_event, seq)

        # If only the purged_ fields differ, write the lease only while a compaction waits for it.
        if hold.edge != self.written.edge or (
            hold != self.written and self.compaction_request() is not None
        ):
            write_hold(self._data_dir, self._name, hold)
            self.written = hold
            self._renewed = time.monotonic()
        elif time.monotonic() - self._renewed >= RENEW_SECONDS:
            try:
                renew_hold(self._data_dir, self._name)
            except FileNotFoundError:
                # The folder of the role was removed while it runs.
                write_hold(self._data_dir, self._name, hold)
            self._renewed = time.monotonic()
