"""Facts about pairs in a log with several edge sets: those in the edge set of the query, and those
in all edge sets together. With one edge set they are those of `PairFacts`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from streamd.eventlog.tguf.growing import GrowingArray
from streamd.events import NO_DELETES, Bools, Float32, Int64, NodeDeletes
from streamd.graph.facts.columns import NUM_FACTS, num_facts
from streamd.graph.facts.pair_facts import PairFacts
from streamd.schema import Schema
from streamd.tensors import metadata_of

NUM_SETS = "edge_sets"
"""Metadata of a file of facts: the number of edge sets, each with a file in the same folder."""
NodeSetOf = Callable[[Int64], Int64]
"""Node ids -> numbers of their node sets, int64 of the same shape."""


class Destinations:
    """The destinations of one node set, in order of their first event as a destination, with the
    part of the interface of `PairFacts` that a pool of negatives uses. Owner: the facts."""

    def __init__(self) -> None:
        self._order = GrowingArray(np.int64)
        self._rank = np.zeros(0, np.int64)

    @property
    def destination_order(self) -> Int64:
        """Ids in this order, deleted nodes too: int64."""
        return self._order.values

    def add(self, nodes: Int64) -> None:
        """Add new destinations, int64, in order."""
        if not len(nodes):
            return
        first = len(self._order.values)
        self._order.append(nodes)
        if int(nodes.max()) >= len(self._rank):
            grown = np.full(max(int(nodes.max()) + 1, 2 * len(self._rank)), -1, np.int64)
            grown[: len(self._rank)] = self._rank
            self._rank = grown
        self._rank[nodes] = np.arange(first, first + len(nodes))

    def truncate(self, count: int) -> None:
        """Drop the nodes after the first `count`."""
        self._rank[self.destination_order[count:]] = -1
        self._order.truncate(count)

    def ranks_of(self, nodes: Int64) -> Int64:
        """Index of each node in `destination_order`, -1 for others: int64 of the same shape."""
        inside = (nodes >= 0) & (nodes < len(self._rank))
        ranks = np.full(nodes.shape, -1, np.int64)
        ranks[inside] = self._rank[nodes[inside]]
        return ranks


class SetFacts:
    """The facts of all edge sets of a log. Owner: one thread per role.

    A row of facts has F = `num_facts(schema)` columns. With several edge sets these are the facts
    in the query's set, the facts in all sets together, and a one-hot of the query's set.

    all: facts of all events. per_set: facts of each set; event ids in these count the events of the
    set only. Empty if there is one set.
    """

    def __init__(
        self,
        schema: Schema,
        half_lives_seconds: Sequence[float],
        max_pairs: int,
        edge: int,
        node_set_of: NodeSetOf,
    ) -> None:
        """max_pairs: maximum number of pairs in `all`, and in each of `per_set`. edge: id of the
        next event. node_set_of: maps node ids to their node sets."""
        self.schema = schema
        self._node_set_of = node_set_of
        self.all = PairFacts(half_lives_seconds, max_pairs, edge)
        several = schema.num_edge_sets > 1
        self.per_set = [
            PairFacts(half_lives_seconds, max_pairs)
            for _ in range(schema.num_edge_sets if several else 0)
        ]
        # For each set, the number of its events before each node delete of the log.
        self._places = [GrowingArray(np.int64) for _ in self.per_set]
        self._by_node_set = [Destinations() for _ in range(schema.num_node_sets)]
        self._num_sorted = 0

    def fresh(self, edge: int) -> "SetFacts":
        """Facts with the same settings and no events, starting at event `edge`."""
        one = self.all
        return SetFacts(self.schema, one.half_lives_seconds, one.max_pairs, edge, self._node_set_of)

    @property
    def edge(self) -> int:
        """Id of the next event."""
        return self.all.edge

    @property
    def num_forgotten(self) -> int:
        """Number of applied node deletes."""
        return self.all.num_forgotten

    @property
    def num_pairs(self) -> int:
        """Number of pairs in memory, in `all` and in each set."""
        return self.all.num_pairs + sum(one.num_pairs for one in self.per_set)

    def advance(
        self,
        src_E: Int64,
        dst_E: Int64,
        time_E: Int64,
        set_E: Int64,
        deletes: NodeDeletes = NO_DELETES,
    ) -> None:
        """Add events, as `PairFacts.advance` does. set_E: int64[E], their edge sets."""
        for number, one in enumerate(self.per_set):
            own = np.flatnonzero(set_E == number)
            due = self._own_deletes(number, set_E, deletes)
            one.advance(src_E[own], dst_E[own], time_E[own], due)
        self.all.advance(src_E, dst_E, time_E, deletes)

    @contextmanager
    def supposing(self, src_E: Int64, dst_E: Int64, time_E: Int64, set_E: Int64) -> Iterator[None]:
        """Add events inside the block, and remove them at its end, as `PairFacts.supposing`. set_E:
        as in `advance`."""
        num_sorted = self._num_sorted
        counts = [len(one.destination_order) for one in self._by_node_set]
        with ExitStack() as undo:
            for number, one in enumerate(self.per_set):
                own = np.flatnonzero(set_E == number)
                undo.enter_context(one.supposing(src_E[own], dst_E[own], time_E[own]))
            undo.enter_context(self.all.supposing(src_E, dst_E, time_E))
            try:
                yield
            finally:
                self._num_sorted = num_sorted
                for destinations, count in zip(self._by_node_set, counts, strict=True):
                    destinations.truncate(count)

    def advance_scoring(
        self,
        src_E: Int64,
        dst_E: Int64,
        time_E: Int64,
        set_E: Int64,
        query_R: Int64,
        candidates_RC: Int64,
        deletes: NodeDeletes = NO_DELETES,
    ) -> Float32:
        """Add events and return facts, as `PairFacts.advance_scoring` does, each query in its
        event's edge set.

        Returns: float32[R, C, F].
        """
        if not self.per_set:
            return self.all.advance_scoring(src_E, dst_E, time_E, query_R, candidates_RC, deletes)
        out = self._rows(candidates_RC, set_E[query_R])
        for number, one in enumerate(self.per_set):
            own = np.flatnonzero(set_E == number)
            rows = np.flatnonzero(set_E[query_R] == number)
            at = np.searchsorted(own, query_R[rows])
            due = self._own_deletes(number, set_E, deletes)
            out[rows, :, :NUM_FACTS] = one.advance_scoring(
                src_E[own], dst_E[own], time_E[own], at, candidates_RC[rows], due
            )
        out[..., NUM_FACTS : 2 * NUM_FACTS] = self.all.advance_scoring(
            src_E, dst_E, time_E, query_R, candidates_RC, deletes
        )
        return out

    def compute(self, src_R: Int64, time_R: Int64, candidates_RC: Int64, set_R: Int64) -> Float32:
        """The facts of queries in the present state, as from `PairFacts.compute`.

        set_R: int64[R], edge sets of the queries; with -1 the facts in the query's set are zeros.
        Returns: float32[R, C, F].
        """
        if not self.per_set:
            return self.all.compute(src_R, time_R, candidates_RC)
        out = self._rows(candidates_RC, set_R)
        for number, one in enumerate(self.per_set):
            rows = np.flatnonzero(set_R == number)
            out[rows, :, :NUM_FACTS] = one.compute(src_R[rows], time_R[rows], candidates_RC[rows])
        out[..., NUM_FACTS : 2 * NUM_FACTS] = self.all.compute(src_R, time_R, candidates_RC)
        return out

    def _rows(self, candidates_RC: Int64, set_R: Int64) -> Float32:
        """Rows of zeros with the one-hot of their edge sets, float32[R, C, F]."""
        out = np.zeros((*candidates_RC.shape, num_facts(self.schema)), np.float32)
        asked = np.flatnonzero(set_R >= 0)
        out[asked, :, 2 * NUM_FACTS + set_R[asked]] = 1.0
        return out

    def _own_deletes(self, number: int, set_E: Int64, deletes: NodeDeletes) -> NodeDeletes:
        """The deletes up to the end of the next events, with positions that count the events of one
        set."""
        due = deletes.until(self.edge + len(set_E))
        places = self._places[number]
        new = due.edge[len(places.values) :]
        if len(new):
            # Clip positions before these events to 0: those deletes were applied already, or hide
            # no event of this set.
            before = np.concatenate([[0], np.cumsum(set_E == number)])
            at = np.maximum(new - self.edge, 0)
            places.append(self.per_set[number].edge + before[at])
        return NodeDeletes(due.node, places.values[: len(due.node)])

    def of_set(self, edge_set: int) -> PairFacts:
        """The facts of one edge set."""
        return self.per_set[edge_set] if self.per_set else self.all

    @property
    def has_one_destination(self) -> bool:
        """Whether each node set has had at most one destination, deleted ones included."""
        numbers = range(len(self._by_node_set))
        return all(len(self.destinations_in(number).destination_order) < 2 for number in numbers)

    def destinations_in(self, node_set: int) -> PairFacts | Destinations:
        """The destinations of a node set, in order of their first event as a destination."""
        if len(self._by_node_set) == 1:
            return self.all
        new = self.all.destination_order[self._num_sorted :].astype(np.int64)
        if len(new):
            numbers = self._node_set_of(new)
            for number, one in enumerate(self._by_node_set):
                one.add(new[numbers == number])
            self._num_sorted += len(new)
        return self._by_node_set[node_set]

    def node_set_of(self, nodes: Int64) -> Int64:
        """Number of each node's node set: int64 of the same shape."""
        if len(self._by_node_set) == 1:
            return np.zeros(nodes.shape, np.int64)
        return self._node_set_of(nodes)

    def is_known(self, node_N: Int64) -> Bools:
        """Whether each id is a node with events, bool[N]."""
        return self.all.is_known(node_N)

    def partners(self, node: int, edge_set: int) -> Int64:
        """Distinct last partners of a node in an edge set, at most 16, int64."""
        return self.of_set(edge_set).partners(node)

    def save(self, path: Path) -> None:
        """Write the state durably to a file for `restore`, and to one more file for each set in the
        same folder:

        1. Write the files of the sets.
        2. Write the file of all sets: if it exists, the others are complete. After a kill before
           this step, the older facts are used.

        Raises: OSError.
        """
        for number, one in enumerate(self.per_set):
            one.save(set_file(path, number))
        more = {NUM_SETS: str(len(self.per_set))} if self.per_set else None
        self.all.save(path, more)

    def restore(self, path: Path) -> bool:
        """Replace the state by that of a file and of the sets' files, all or none.

        A set that was added to the log since has no facts yet. If the file is of a log with one
        set, its facts are also those of set 0. Returns, raises: as `PairFacts.restore`.
        """
        # Read every file into new facts first, since any may be damaged or have other settings.
        read = self.fresh(0)
        num_stored = int(metadata_of(path).get(NUM_SETS, "0")) if self.per_set else 0
        stored = [set_file(path, n) for n in range(num_stored)] or [path]
        parts = [(read.all, path), *zip(read.per_set, stored, strict=False)]
        if not all(one.restore(file) for one, file in parts):
            return False
        self._replace_by(read)
        return True

    def map(self, path: Path) -> None:
        """Replace the state by memory-mapped files that `save` wrote for these sets, as
        `PairFacts.map`."""
        mapped = self.fresh(0)
        for number, one in enumerate(mapped.per_set):
            one.map(set_file(path, number))
        mapped.all.map(path)
        self._replace_by(mapped)

    def _replace_by(self, other: "SetFacts") -> None:
        """Replace the state by that of other facts, which have no other user."""
        self.all = other.all
        self.per_set = other.per_set
        self._places = other._places
        self._by_node_set = other._by_node_set
        self._num_sorted = other._num_sorted

    @property
    def num_bytes_of_slots(self) -> int:
        """Bytes of the hash tables of pairs."""
        return sum(one.num_bytes_of_slots for one in (self.all, *self.per_set))


def set_file(path: Path, number: int) -> Path:
    """Path of the facts of one edge set, in the folder of the facts of all sets."""
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
