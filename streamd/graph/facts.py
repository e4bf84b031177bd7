"""Facts about (source, candidate) pairs: exact functions of the log, bounded in memory, that change
with every event.

`streamd.graph.fact_columns` names the columns of a row.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import NO_DELETES, Float32, Int64, NodeDeletes
from streamd.graph.fact_columns import LOG_SHARES, NUM_FACTS, NUM_HALF_LIVES
from streamd.graph.facts_kernels import (
    LN2,
    NEVER,
    NUM_RATES,
    PARTNERS,
    POWERS,
    RATES,
    FactArrays,
    advance,
    fill_many,
    place_all,
)

# Fields of `FactArrays` with a row per node, and with a row per pair.
NODE_ARRAYS = (
    "seen",
    "last",
    "last_dst",
    "log_pop",
    "pop_at",
    "ring",
    "ring_count",
    "mark",
    "rank",
    "order",
)
PAIR_ARRAYS = ("key", "weight", "met_at", "sent", "before", "after")
# Rows of new nodes are zero, but for times, which begin as never.
NODE_FILL: dict[str, int] = {"last": int(NEVER), "last_dst": int(NEVER), "pop_at": int(NEVER)}


class PairFacts:
    """The state of the pair facts after the events taken in so far. Owner: one thread per role.

    half_lives_seconds: five; max_pairs: the most recently touched pairs kept, about 90 bytes each.
    edge: id of the next event. A deleted node is forgotten at the position of its delete among the
    events; no later event names it.
    """

    def __init__(self, half_lives_seconds: Sequence[float], max_pairs: int, edge: int = 0) -> None:
        if len(half_lives_seconds) != NUM_HALF_LIVES:
            raise ValueError(
                f"{NUM_HALF_LIVES} half-lives are needed, not {len(half_lives_seconds)}"
            )
        self.max_pairs = max_pairs
        self.edge = edge
        self._forgotten = 0

        # Decay of a pair's weight by its age in events, looked up rather than computed.
        power = np.array([[r**age for age in range(POWERS)] for r in RATES], np.float32)

        # Tables begin empty: `_grow` makes room before events are taken in.
        self._f = FactArrays(
            seen=np.zeros(0, np.int64),
            last=np.zeros(0, np.int64),
            last_dst=np.zeros(0, np.int64),
            log_pop=np.zeros((0, NUM_HALF_LIVES)),
            pop_at=np.zeros(0, np.int64),
            ring=np.zeros((0, PARTNERS), np.int32),
            ring_count=np.zeros(0, np.int64),
            mark=np.zeros(0, np.int32),
            rank=np.zeros(0, np.int32),
            order=np.zeros(0, np.int32),
            key=np.zeros(0, np.uint64),
            weight=np.zeros((0, 2, NUM_RATES), np.float32),
            met_at=np.zeros((0, 2), np.int64),
            sent=np.zeros((0, 2), np.int64),
            before=np.zeros(0, np.int32),
            after=np.zeros(0, np.int32),
            slots=np.zeros(2, np.int32),
            totals=np.zeros(NUM_HALF_LIVES),
            power=power,
            decay=LN2 / (np.array(half_lives_seconds, np.float64) * 1e6),
            size=np.array([0, -1, -1, 0, 0], np.int64),
        )

    @property
    def num_nodes(self) -> int:
        return len(self._f.seen)

    @property
    def num_pairs(self) -> int:
        return int(self._f.size[0])

    def advance(
        self, src_E: Int64, dst_E: Int64, time_E: Int64, deletes: NodeDeletes = NO_DELETES
    ) -> None:
        """Take in events, in log order, and all of the log's deletes up to their end.

        A run of equal times may be cut between calls: no row is asked for here.
        """
        self._run(
            src_E,
            dst_E,
            time_E,
            np.full(len(src_E), -1, np.int64),
            np.zeros((0, 1), np.int64),
            deletes,
        )

    def advance_scoring(
        self,
        src_E: Int64,
        dst_E: Int64,
        time_E: Int64,
        asked_R: Int64,
        candidates_RC: Int64,
        deletes: NodeDeletes = NO_DELETES,
    ) -> Float32:
        """Take in events, writing for each event asked_R[r] the facts of its candidates from
        strictly before it.

        Runs of equal times must be whole. Returns: float32[R, C, NUM_FACTS].
        """
        row_of = np.full(len(src_E), -1, np.int64)
        row_of[asked_R] = np.arange(len(asked_R))
        return self._run(src_E, dst_E, time_E, row_of, candidates_RC, deletes)

    def compute(self, src_R: Int64, time_R: Int64, candidates_RC: Int64) -> Float32:
        """Return the facts of queries at given times on the present state: float32[R, C,
        NUM_FACTS]. Node ids that were never seen are allowed."""
        out = np.zeros((*candidates_RC.shape, NUM_FACTS), np.float32)
        fill_many(self._f, src_R, time_R, candidates_RC, out)
        return out

    def destinations(self) -> Int64:
        """Ids of all nodes that were a destination, ascending."""
        return np.flatnonzero(self._f.pop_at != NEVER)

    @property
    def sighted(self) -> NDArray[np.int32]:
        """int32, ids of all nodes that ever were a destination in order of first sight, deleted
        ones among them."""
        return self._f.order[: int(self._f.size[4])]

    def ranks_of(self, nodes: Int64) -> Int64:
        """Index of each node in `sighted`, -1 for one that never was a destination: int64, same
        shape."""
        inside = (nodes >= 0) & (nodes < self.num_nodes)
        ranks = np.full(nodes.shape, -1, np.int64)
        ranks[inside] = self._f.rank[nodes[inside]] - 1
        return ranks

    def partners(self, node: int) -> Int64:
        """Distinct last partners of a node, at most 16; none for a node never seen."""
        if not 0 <= node < self.num_nodes:
            return np.zeros(0, np.int64)
        return np.unique(self._f.ring[node, : min(int(self._f.ring_count[node]), PARTNERS)]).astype(
            np.int64
        )

    def is_known(self, node_N: Int64) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each id took part in an event before."""
        inside = (node_N >= 0) & (node_N < self.num_nodes)
        known = np.zeros(len(node_N), np.bool_)
        known[inside] = self._f.seen[node_N[inside]] > 0
        return known

    def log_shares(self, nodes: Int64, time_us: int) -> Float32:
        """Log share among destinations of known nodes at the five half-lives: float32[n, 5]."""
        # Shares do not depend on the source, so one that was never seen is asked about.
        return self.compute(np.array([-1]), np.array([time_us]), nodes[None])[0, :, LOG_SHARES]

    def copy(self) -> "PairFacts":
        """Return an independent copy, which does not change when this one does."""
        twin = copy.copy(self)
        twin._f = FactArrays(*(a.copy() for a in self._f))
        return twin

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The state by name, for storing; `edge` among it."""
        # Rows behind the last node in use say nothing and are not stored.
        used = np.flatnonzero((self._f.seen > 0) | (self._f.rank > 0))
        nodes = int(used[-1]) + 1 if len(used) else 0

        # Slots are not stored either: they follow from the keys.
        held = {n: getattr(self._f, n)[:nodes] for n in NODE_ARRAYS}
        held |= {n: getattr(self._f, n)[: self.num_pairs] for n in PAIR_ARRAYS}
        return held | {
            "totals": self._f.totals,
            "size": self._f.size,
            "decay": self._f.decay,
            "edge": np.array([self.edge]),
        }

    def restore(self, tensors: dict[str, NDArray[Any]]) -> bool:
        """Take over a stored state. Returns: False, and nothing is taken over, where it was made
        with other half-lives or with more pairs."""
        if (
            # Popularity that decayed by other half-lives means something else.
            not np.array_equal(tensors["decay"], self._f.decay)
            or len(tensors["key"]) > self.max_pairs
        ):
            return False

        # The release before stored no order of destinations.
        if "rank" not in tensors:
            tensors = _with_order(tensors)
        self._f = self._f._replace(
            **{n: tensors[n] for n in (*NODE_ARRAYS, *PAIR_ARRAYS, "totals", "size")},
            slots=np.zeros(2, np.int32),
        )
        self.edge = int(tensors["edge"][0])

        # Deletes are taken in from the first on; forgetting a node twice changes nothing.
        self._forgotten = 0
        self._place_pairs()
        return True

    def _run(
        self,
        src: Int64,
        dst: Int64,
        time: Int64,
        row_of: Int64,
        candidates: Int64,
        deletes: NodeDeletes,
    ) -> Float32:
        out = np.zeros((*candidates.shape, NUM_FACTS), np.float32)
        # Kernels cannot grow tables: make room for all that these events can add.
        if len(src):
            self._grow(int(max(src.max(), dst.max())) + 1, self.num_pairs + len(src))

        # Deletes that lie among these events, at their places relative to the first one.
        due = deletes.until(self.edge + len(src))
        gone = due.node[self._forgotten :]
        gone_at = due.edge[self._forgotten :] - self.edge
        self._forgotten = len(due.node)
        advance(self._f, src, dst, time, row_of, candidates, out, self.max_pairs, gone, gone_at)
        self.edge += len(src)
        return out

    def _grow(self, nodes: int, pairs: int) -> None:
        # Arrays double in size, so that growing costs little per event.
        f = self._f
        changed = {}
        if nodes > len(f.seen):
            size = max(nodes, 2 * len(f.seen), 1024)
            for name in NODE_ARRAYS:
                changed[name] = _grown(getattr(f, name), size, NODE_FILL.get(name, 0))

        # Beyond max_pairs a new pair takes the entry of the least recently touched one.
        pairs = min(pairs, self.max_pairs)
        if pairs > len(f.key):
            size = min(max(pairs, 2 * len(f.key), 1024), self.max_pairs)
            for name in PAIR_ARRAYS:
                changed[name] = _grown(getattr(f, name), size, 0)
        if changed:
            self._f = f._replace(**changed)
        self._place_pairs()

    def _place_pairs(self) -> None:
        # A power of two, and at most half full, so that probes stay short.
        slots = 1 << (2 * len(self._f.key) - 1).bit_length() if len(self._f.key) else 2
        if slots > len(self._f.slots):
            self._f = self._f._replace(slots=np.zeros(slots, np.int32))
            place_all(self._f)


def _with_order(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Facts stored by the release before, which kept no order of destinations: they are taken in
    order of their ids, which were given out in order of first sight, be it as a source."""
    known = np.flatnonzero(tensors["pop_at"] != NEVER)
    rank, order = np.zeros((2, len(tensors["seen"])), np.int32)
    rank[known] = np.arange(1, len(known) + 1)
    order[: len(known)] = known
    return tensors | {"rank": rank, "order": order, "size": np.append(tensors["size"], len(known))}


def _grown(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], size: int, fill: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    out = np.full((size, *array.shape[1:]), fill, array.dtype)
    out[: len(array)] = array
    return out
