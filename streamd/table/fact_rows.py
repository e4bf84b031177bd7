"""The table of facts: of each event all facts about its pair strictly before it, by the kernels
that the trainer and the server use."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamd.clock import utc
from streamd.errors import FactsError
from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.graph.facts.columns import FACT_NAMES
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.live import load_stored_facts
from streamd.roles import FACTS, folder_of, names_in
from streamd.settings.loading import ModelSettings
from streamd.table.arrow_columns import TIME, array_over

PIECE_EVENTS = 32_768
"""Most events of a batch: their facts take 5 MB in a log of one edge set."""
ALL = "all_"
"""Beginning of the columns of facts in all edge sets together, in a log of several."""
EVENTS = pa.schema(
    [
        ("event", pa.int64()),
        ("edge_set", pa.string()),
        ("src", pa.int64()),
        ("dst", pa.int64()),
        ("time", TIME),
    ]
)


class FactRows:
    """The facts of the events that are not deleted, in event order: in the event's edge set, and in
    a log of several sets also in all sets together.

    Each read is one pass over the log, from the newest stored facts before its first event, or from
    the log's first event. Several threads may read it.
    """

    def __init__(self, log: LogReader, model: ModelSettings, edge_set: int | None = None) -> None:
        """model: half-lives and bound of pairs. edge_set: number of the set; None for all."""
        self._log = log
        self._model = model
        self._number = edge_set
        schema = log.state.schema
        self._set_names = pa.array(schema.edge_set_names)
        names = list(FACT_NAMES)
        if schema.num_edge_sets > 1:
            names += [ALL + name for name in FACT_NAMES]
        self._index = {name: number for number, name in enumerate(names)}
        self.schema = pa.schema([*EVENTS, *(pa.field(name, pa.float32()) for name in names)])
        self.default_columns: Sequence[str] = self.schema.names

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name) of the events with times in [since_us,
        until_us). Raises: FactsError if their facts cannot be computed exactly."""
        log = self._log
        first, end = log.lower_bounds(np.array([since_us, until_us])).tolist()
        if first == end:
            return
        # Advance to the first event, then compute piece by piece.
        facts = self._facts_before(first)
        self._check_whole(facts.edge, end)
        while facts.edge < first:
            self._advance(facts, min(facts.edge + PIECE_EVENTS, first))
        for a, b, rows_EF in self._pieces(facts, end):
            src, dst, time = log.edges(a, b)
            # Deleted events count in the facts of later ones, but have no row.
            kept = np.flatnonzero(self._has_row(a, b))
            if not len(kept):
                continue
            numbers = {"event": a + kept, "src": src[kept], "dst": dst[kept], "time": time[kept]}
            yield (
                len(kept),
                {name: self._make(name, numbers, rows_EF[kept]) for name in columns},
            )

    def _make(self, name: str, numbers: dict[str, Int64], rows_EF: Float32) -> Any:
        if name == "edge_set":
            return self._set_names.take(pa.array(self._log.edge_sets_of(numbers["event"])))
        if name in numbers:
            return array_over(numbers[name], EVENTS.field(name).type)
        return array_over(rows_EF[:, self._index[name]], pa.float32())

    def _has_row(self, a: int, b: int) -> Bools:
        """Whether each of the events [a, b) has a row: bool[b - a]."""
        asked = ~self._log.hidden(a, b)
        if self._number is not None:
            asked &= self._log.edge_sets(a, b) == self._number
        return asked

    def _pieces(self, facts: SetFacts, end: int) -> Iterator[tuple[int, int, Float32]]:
        """Yield (a, b, facts of the events [a, b) before each, float32[b - a, F]) up to an event.

        Events of equal times must not see each other, so pieces end between different times.
        """
        log = self._log
        while (a := facts.edge) < end:
            b = min(a + PIECE_EVENTS, end)
            # Move the end back to the first event of its time.
            if b < end:
                b = log.lower_bound(int(log.time_of(np.array([b]))[0]))
            if b > a:
                yield a, b, self._score(facts, b)
                continue

            # More events than a piece have one time: all see the facts before the first of them.
            last = log.lower_bound(int(log.time_of(np.array([a]))[0]) + 1)
            for first in range(a, last, PIECE_EVENTS):
                until = min(first + PIECE_EVENTS, last)
                src, dst, time = log.edges(first, until)
                sets = log.edge_sets(first, until)
                yield first, until, facts.compute(src, time, dst[:, None], sets)[:, 0]
            while facts.edge < last:
                self._advance(facts, min(facts.edge + PIECE_EVENTS, last))

    def _score(self, facts: SetFacts, until: int) -> Float32:
        """Advance to an event. Returns: the facts before each event on the way, float32[E, F]."""
        log = self._log
        a = facts.edge
        src, dst, time = log.edges(a, until)
        rows = facts.advance_scoring(
            src,
            dst,
            time,
            log.edge_sets(a, until),
            np.arange(until - a),
            np.ascontiguousarray(dst[:, None]),
            log.deletions.of_nodes,
        )
        return rows[:, 0]

    def _advance(self, facts: SetFacts, until: int) -> None:
        """Advance to an event without facts of the events on the way."""
        log = self._log
        a = facts.edge
        facts.advance(*log.edges(a, until), log.edge_sets(a, until), log.deletions.of_nodes)

    def _facts_before(self, event: int) -> SetFacts:
        """The newest stored facts at or before an event, or none at the log's beginning. Raises:
        FactsError if events before it were dropped and no stored facts have them."""
        log = self._log
        facts = SetFacts(
            log.state.schema,
            self._model.half_lives_seconds,
            self._model.max_pairs,
            log.first_edge,
            log.node_sets_of,
        )
        # The folder with the newest facts that are not too new comes first.
        stored = self._stored_facts()
        usable = sorted({(edge, name) for edge, name in stored if edge <= event}, reverse=True)
        for _, name in usable:
            if load_stored_facts(facts, folder_of(log.data_dir, name) / FACTS, event):
                return facts
        if log.first_edge > 0:
            raise FactsError(
                f"Facts from event {event:,} on cannot be computed: the log has dropped the events "
                f"before {log.first_edge:,}, and no stored facts have them.",
                self._later(edge for edge, _ in stored),
            )
        return facts

    def _stored_facts(self) -> list[tuple[int, str]]:
        """Event id and role of all stored facts that the log continues."""
        log = self._log
        return [
            (int(path.stem), name)
            for name in names_in(log.data_dir)
            for path in (folder_of(log.data_dir, name) / FACTS).glob("*.safetensors")
            if path.stem.isdigit() and log.first_edge <= int(path.stem) <= log.num_edges
        ]

    def _later(self, stored: Iterator[int]) -> str:
        """The action for a user: the time from which stored facts may serve."""
        log = self._log
        edges = [edge for edge in stored if edge < log.num_edges]
        if not edges:
            return "keep more of the log (retention), or start the trainer, which stores facts."
        time = int(log.time_of(np.array([min(edges)]))[0])
        return f"ask for later times only, from {utc(time)} on."

    def _check_whole(self, first: int, end: int) -> None:
        """Check that no event in [first, end) was overwritten. Raises: FactsError."""
        log = self._log
        # Compacted rows point to a node that is gone but was never deleted.
        gone = log.deletions.is_gone(np.arange(log.num_nodes))
        gone[log.deletions.of_nodes.node] = False
        reserved = np.flatnonzero(gone)
        if not len(reserved):
            return
        for a in range(first, end, PIECE_EVENTS):
            b = min(a + PIECE_EVENTS, end)
            if np.isin(log.edges(a, b)[0], reserved).any():
                raise FactsError(
                    f"Facts of events [{first:,}, {end:,}) cannot be computed: a compaction has "
                    "overwritten deleted events among them, and no stored facts begin after those.",
                    self._later(edge for edge, _ in self._stored_facts() if edge > a),
                )
