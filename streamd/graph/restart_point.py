"""The restart point of a role: the facts it stored, and the hold that keeps the log from there
on."""

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
from streamd.graph.live import LiveGraph, save_facts, take_stored
from streamd.roles import FACTS, folder_of, take_over


class RestartPoint:
    """Stores facts, then moves the hold, in this order: the log is kept until facts that cover it
    are durable. Owner: the role."""

    def __init__(self, data_dir: Path, name: str, live: LiveGraph) -> None:
        """name: of the role. Takes over what an older release left."""
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
        """Commit up to which the stored facts took deletes in; None if that is not known."""
        # No hold is like this one, so the first is written.
        self.written = Hold(-1, -1)
        """The hold as it was written last."""

    def resume(self, until_event: int) -> None:
        """Take over the newest stored facts at or before an event, where there are any."""
        self._facts_edge = self._live.restore_facts(self._folder, until_event)

    def compaction_request(self) -> int | None:
        """Return the event before which compaction was asked for, None where it was not."""
        return asked_to_compact(self._data_dir)

    def is_due(self, edge: int) -> bool:
        """Whether facts that have reached event `edge` should be stored: they are past a whole
        segment, or compaction waits for them."""
        request = self.compaction_request()
        log = self._live.log
        if self._facts_edge < max(log.sealed_until(edge), min(request or 0, edge)):
            return True
        # Several deletes may come between two events, so the event alone is not enough.
        if request is None or request > edge:
            return False
        newest = deletes_until(log.data_dir, log.state, request)[1]
        is_behind = self.facts_seq is not None and self.facts_seq < newest
        return is_behind and self._has_taken_deletes(self._live.facts)

    def _has_taken_deletes(self, facts: SetFacts) -> bool:
        """Whether facts took in all deletes before their next event."""
        return facts.num_forgotten == len(self._live.log.deletions.of_nodes.until(facts.edge).node)

    def store(self, facts: SetFacts) -> None:
        """Store facts that nobody changes meanwhile durably. Raises: OSError."""
        seq = self._live.log.state.seq if self._has_taken_deletes(facts) else 0
        self._save(facts, seq)

    def _save(self, facts: SetFacts, seq: int) -> None:
        """Store facts. seq: commit up to which they took deletes in."""
        save_facts(facts, self._folder)
        self._facts_edge, self.facts_seq = facts.edge, seq

    def prepare_store(self, edge: int) -> Callable[[], None]:
        """Return what stores the facts as of event `edge`, as `store` does, in another thread.

        It makes them from those stored last and the log, as a restart does: the live ones move on
        meanwhile, and a copy of them would take long. The reader is used in this call only.
        """
        # Views of the mapped segments, which stay readable whatever the reader does.
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
            take_stored(facts, self._folder, begin)
            if facts.edge != begin:
                # What was stored is lost: the next try begins there.
                self._facts_edge, self.facts_seq = facts.edge, 0
                return
            for src_E, dst_E, time_E, set_E in parts:
                facts.advance(src_E, dst_E, time_E, set_E, deletes)
            # Deletes may have come without any event.
            facts.advance(nothing, nothing, nothing, nothing, deletes)
            self._save(facts, seq)

        return store

    def hold(
        self, edge: int, purged_before_event: int, purged_until_seq: int | None = None
    ) -> None:
        """Write the hold: a restart needs the log from event `edge` and from the stored facts on.

        purged_before_event, purged_until_seq: as in `Hold`, of the role's other files.
        """
        seq = self.facts_seq
        if seq is not None and purged_until_seq is not None:
            seq = min(seq, purged_until_seq)
        hold = Hold(min(self._facts_edge, edge), purged_before_event, seq)

        # A hold that differs in what was purged alone is written only while compaction waits.
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
                # Somebody removed the folder of a role that runs.
                write_hold(self._data_dir, self._name, hold)
            self._renewed = time.monotonic()
