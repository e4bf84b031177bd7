"""Facts about (source, candidate) pairs: every event of the log updates them, in bounded memory.

`streamd.graph.facts.columns` names the columns of a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import CapacityError
from streamd.events import NO_DELETES, Float32, Float64, Int64, NodeDeletes
from streamd.graph.blocks.arena import Arena
from streamd.graph.facts.columns import NUM_FACTS, NUM_HALF_LIVES
from streamd.graph.facts.fact_arrays import (
    HASHED_ARRAYS,
    NEVER,
    NODE_ARRAYS,
    PAIR_ARRAYS,
    PARTNERS,
    POWERS,
    RATES,
    SPARE_PAIRS,
    FactArrays,
)
from streamd.graph.facts.kernels import LN2, NEVER_LOG_SECONDS, advance, fill_many
from streamd.graph.facts.pair_table import insert_all_slots
from streamd.graph.facts.supposed_facts import supposing
from streamd.tensors import map_arrays, unpack, write_arrays

MAX_NODES = 2**28
"""The node table reserves 53 GB of address space; only rows in use take memory."""
NODE_STEP = 16_384
"""Number of rows by which the node table grows, which writes 448 KB."""
NEVER_ARRAYS = ("last", "last_dst", "pop_at")
"""Arrays over nodes with NEVER in new rows; `log_gap` has NEVER_LOG_SECONDS, all others zeros."""


class PairFacts:
    """The state of the pair facts after the events so far. Owner: one thread per role.

    half_lives_seconds: five. max_pairs: maximum number of pairs in memory, the most recently
    updated ones, about 94 bytes each. edge: id of the next event. The facts of a deleted node are
    dropped at the position of its delete among the events; no later event has this node.
    """

    def __init__(self, half_lives_seconds: Sequence[float], max_pairs: int, edge: int = 0) -> None:
        if len(half_lives_seconds) != NUM_HALF_LIVES:
            raise ValueError(
                f"{NUM_HALF_LIVES} half-lives are needed, not {len(half_lives_seconds)}"
            )
        self.half_lives_seconds = half_lives_seconds
        self.max_pairs = max_pairs
        self.edge = edge
        self.num_forgotten = 0

        # The decay of a pair's weight, by rate and age in events.
        power = np.array([[r**age for age in range(POWERS)] for r in RATES], np.float32)

        # Tables start empty: `_grow` makes room before events are added.
        self._arenas = _arenas(max_pairs)
        self._f = FactArrays(
            **_over_nodes(self._arenas, 0),
            **{name: self._arenas[name] for name in PAIR_ARRAYS},
            slots=np.zeros(2, np.int32),
            **{name: _empty(name) for name in HASHED_ARRAYS},
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
        """Add events in log order, and apply the log's deletes up to their end. src_E, dst_E,
        time_E: int64[E]; times in microseconds. Raises: CapacityError; ValueError after `map`.

        Events of equal times may be in different calls, since no facts are returned.
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
        query_R: Int64,
        candidates_RC: Int64,
        deletes: NodeDeletes = NO_DELETES,
    ) -> Float32:
        """As `advance`, and return the facts of the candidates of some events, strictly before the
        time of each.

        query_R: int64[R], indices of these events. candidates_RC: int64[R, C] node ids. All events
        of equal times must be in one call. Returns: float32[R, C, NUM_FACTS].
        """
        row_of = np.full(len(src_E), -1, np.int64)
        row_of[query_R] = np.arange(len(query_R))
        return self._run(src_E, dst_E, time_E, row_of, candidates_RC, deletes)

    @contextmanager
    def supposing(self, src_E: Int64, dst_E: Int64, time_E: Int64) -> Iterator[None]:
        """Add events inside the block, and remove them at its end: at most SPARE_PAIRS, of one
        source without events. No other pair is dropped for theirs."""
        if not len(src_E):
            yield
            return
        assert len(src_E) <= SPARE_PAIRS and not self.is_known(src_E).any()
        self._grow(int(max(src_E.max(), dst_E.max())) + 1, self.num_pairs)

        # The table may become fuller than usual, so that it need not move for a few pairs.
        if len(self._f.slots) < self.num_pairs + 2 * len(src_E):
            self._grow_slots(self.num_pairs + len(src_E))
        edge = self.edge
        try:
            with supposing(self._f, src_E, dst_E, time_E):
                self.edge += len(src_E)
                yield
        finally:
            self.edge = edge

    def compute(self, src_R: Int64, time_R: Int64, candidates_RC: Int64) -> Float32:
        """Return the facts of queries in the present state: float32[R, C, NUM_FACTS]. src_R,
        candidates_RC: int64 node ids, which may be unknown. time_R: int64[R] microseconds."""
        out = np.zeros((*candidates_RC.shape, NUM_FACTS), np.float32)
        fill_many(self._f, src_R, time_R, candidates_RC, out)
        return out

    def destinations(self) -> Int64:
        """Ids of the destinations so far that are not deleted: int64, ascending."""
        return np.flatnonzero(self._f.pop_at != NEVER)

    @property
    def destination_order(self) -> NDArray[np.int32]:
        """Ids of all destinations so far, deleted ones too, in order of their first event as a
        destination: int32."""
        return self._f.order[: int(self._f.size[4])]

    def ranks_of(self, nodes: Int64) -> Int64:
        """Index of each node in `destination_order`, -1 if it never was a destination: int64 of the
        same shape."""
        inside = (nodes >= 0) & (nodes < self.num_nodes)
        ranks = np.full(nodes.shape, -1, np.int64)
        ranks[inside] = self._f.rank[nodes[inside]] - 1
        return ranks

    def partners(self, node: int) -> Int64:
        """Distinct last partners of a node, at most 16: int64; empty for a node without events."""
        if not 0 <= node < self.num_nodes:
            return np.zeros(0, np.int64)
        return np.unique(self._f.ring[node, : min(int(self._f.ring_count[node]), PARTNERS)]).astype(
            np.int64
        )

    def partners_of(self, nodes: Int64) -> tuple[Int64, Int64]:
        """The partners of several nodes, node after node, and the number of each node's partners:
        int64[P] and int64[N]. nodes: int64[N], all with events."""
        held_N = np.minimum(self._f.ring_count[nodes], PARTNERS)
        partner_NK = np.where(np.arange(PARTNERS) < held_N[:, None], self._f.ring[nodes], -1)
        partner_NK.sort(axis=1)

        # Equal ones are adjacent now.
        is_first = partner_NK >= 0
        is_first[:, 1:] &= partner_NK[:, 1:] != partner_NK[:, :-1]
        return partner_NK[is_first].astype(np.int64), is_first.sum(1)

    def is_known(self, node_N: Int64) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each id is a node with events, bool[N]."""
        inside = (node_N >= 0) & (node_N < self.num_nodes)
        known = np.zeros(len(node_N), np.bool_)
        known[inside] = self._f.seen[node_N[inside]] > 0
        return known

    def is_source(self, node_N: Int64) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each id was the source of an event whose destination is not deleted, bool[N]."""
        inside = (node_N >= 0) & (node_N < self.num_nodes)
        sources = np.zeros(len(node_N), np.bool_)
        sources[inside] = self._f.visited[node_N[inside], 0] > 0
        return sources

    def popularity(self, nodes: Int64) -> Float64:
        """A number that orders nodes by their decayed share of all destinations, for each
        half-life: float64[N, 5], -inf for a node that never was a destination.

        It is the log of a count in which events do not decay, but an event at time t has the weight
        2 ** (t / half-life). So only a node's own events change it.
        """
        out = np.full((len(nodes), NUM_HALF_LIVES), -np.inf)
        inside = np.flatnonzero((nodes >= 0) & (nodes < self.num_nodes))
        inside = inside[self._f.pop_at[nodes[inside]] != NEVER]
        at_us = self._f.pop_at[nodes[inside]]
        out[inside] = self._f.log_pop[nodes[inside]] + at_us[:, None] * self._f.decay
        return out

    def fresh(self, edge: int) -> "PairFacts":
        """Return facts with the same settings and no events, starting at event `edge`."""
        return PairFacts(self.half_lives_seconds, self.max_pairs, edge)

    def save(self, path: Path, more: Mapping[str, str] | None = None) -> None:
        """Write the state durably to a file for `restore`. more: metadata to add. Raises:
        OSError."""
        write_arrays(path, self.tensors(), more=more)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The state by name, with `edge`, for `save`."""
        # Do not store rows after the last node in use.
        used = np.flatnonzero((self._f.seen > 0) | (self._f.rank > 0))
        nodes = int(used[-1]) + 1 if len(used) else 0

        # Do not store slots either, since they can be computed from the keys.
        held = {n: getattr(self._f, n)[:nodes] for n in NODE_ARRAYS}
        held |= {n: getattr(self._f, n)[: self.num_pairs] for n in PAIR_ARRAYS}
        return held | {
            "totals": self._f.totals,
            **{name: getattr(self._f, name) for name in HASHED_ARRAYS},
            "size": self._f.size,
            "decay": self._f.decay,
            "edge": np.array([self.edge]),
        }

    def restore(self, path: Path) -> bool:
        """Replace the state by that of a file. Returns: False, without a change, if the file has
        other half-lives or more than `max_pairs` pairs. Raises: FileNotFoundError, CorruptionError,
        KeyError or ValueError (arrays are missing, or have another type or shape), without a
        change."""
        # Read the arrays directly into arenas, so that no array is in memory twice.
        arenas = _arenas(self.max_pairs)
        missing = set(arenas)

        def allocate(name: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> NDArray[Any]:
            rows = arenas[name][: shape[0]] if name in arenas and shape else np.zeros(())
            if (rows.shape, rows.dtype) != (shape, dtype):
                return np.empty(shape, dtype)
            missing.discard(name)
            return rows

        tensors, _ = unpack(path, allocate)
        if (
            # Popularity by other half-lives has another meaning.
            not np.array_equal(tensors["decay"], self._f.decay)
            or len(tensors["key"]) > self.max_pairs
        ):
            return False

        # Fill the arrays that a file of an older release lacks.
        for names, fill in OLDER_FACTS.items():
            if names[0] not in tensors:
                tensors |= fill(tensors, arenas)
                missing -= set(names)
        missing |= {
            name
            for name, (kind, *shape) in HASHED_ARRAYS.items()
            if name not in tensors
            or (tensors[name].dtype, tensors[name].shape) != (kind, tuple(shape))
        }
        if missing:
            lacking = ", ".join(sorted(missing))
            raise ValueError(f"arrays are missing, or have another type or shape: {lacking}")

        # Replace the state, now that all of the file was read and checked.
        edge = int(tensors["edge"][0])
        self._arenas = arenas
        self._f = self._f._replace(
            **_over_nodes(arenas, len(tensors["seen"])),
            **{name: arenas[name] for name in PAIR_ARRAYS},
            totals=tensors["totals"],
            **{name: tensors[name] for name in HASHED_ARRAYS},
            size=tensors["size"],
            slots=np.zeros(0, np.int32),
        )
        self.edge = edge

        # The next call applies all deletes again; a second delete of a node changes nothing.
        self.num_forgotten = 0
        self._grow_slots(self.num_pairs)
        return True

    def map(self, path: Path) -> None:
        """Replace the state by a memory-mapped file that `save` of this release wrote with the same
        half-lives. It uses the page cache, and 8 to 16 bytes of memory per pair. The state is
        read-only from then on. Raises: FileNotFoundError, CorruptionError, KeyError."""
        tensors = map_arrays(path)
        names = (*NODE_ARRAYS, *PAIR_ARRAYS, *HASHED_ARRAYS, "totals", "size")
        self._f = self._f._replace(
            **{name: tensors[name] for name in names}, slots=np.zeros(0, np.int32)
        )
        self._arenas = {}
        self.edge = int(tensors["edge"][0])
        self._grow_slots(self.num_pairs)

    @property
    def num_bytes_of_slots(self) -> int:
        """Bytes of the hash table of pairs."""
        return self._f.slots.nbytes

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
        if not self._arenas:
            raise ValueError("Facts that were mapped from a file are read-only.")

        # Make room for all nodes and pairs of these events, since kernels cannot grow tables.
        if len(src):
            self._grow(int(max(src.max(), dst.max())) + 1, self.num_pairs + len(src))

        # Deletes up to the end of these events, with positions relative to the first event.
        due = deletes.until(self.edge + len(src))
        gone = due.node[self.num_forgotten :]
        gone_at = due.edge[self.num_forgotten :] - self.edge
        self.num_forgotten = len(due.node)
        advance(self._f, src, dst, time, row_of, candidates, out, self.max_pairs, gone, gone_at)
        self.edge += len(src)
        return out

    def _grow(self, nodes: int, pairs: int) -> None:
        """Make room for nodes and pairs; only the table of slots moves. Raises: CapacityError."""
        known = self.num_nodes
        if nodes > known:
            size = -(-nodes // NODE_STEP) * NODE_STEP
            if size > MAX_NODES:
                raise CapacityError(
                    f"The facts cannot hold node {nodes - 1}.",
                    "lower retention, or shard the topic.",
                )
            for name in NEVER_ARRAYS:
                self._arenas[name][known:size] = NEVER
            self._arenas["log_gap"][known:size] = NEVER_LOG_SECONDS
            self._f = self._f._replace(**_over_nodes(self._arenas, size))

        # From max_pairs on, a new pair replaces the least recently updated one.
        self._grow_slots(min(pairs, self.max_pairs))

    def _grow_slots(self, pairs: int) -> None:
        """Rehash all pairs if there are fewer than two slots for each of `pairs`."""
        # A power of two, and at most half full, so that probes stay short.
        slots = 1 << (2 * pairs - 1).bit_length() if pairs else 2
        if slots > len(self._f.slots):
            self._f = self._f._replace(slots=np.zeros(slots, np.int32))
            insert_all_slots(self._f)


def _arenas(max_pairs: int) -> dict[str, NDArray[Any]]:
    """All arrays over nodes and pairs, at their largest size."""
    return {
        name: Arena(kind, rows, *width).array
        for arrays, rows in ((NODE_ARRAYS, MAX_NODES), (PAIR_ARRAYS, max_pairs + SPARE_PAIRS))
        for name, (kind, *width) in arrays.items()
    }


def _over_nodes(arenas: dict[str, NDArray[Any]], num_nodes: int) -> dict[str, NDArray[Any]]:
    """The first `num_nodes` rows of the arrays over nodes, by name."""
    return {name: arenas[name][:num_nodes] for name in NODE_ARRAYS}


def _with_order(
    tensors: dict[str, NDArray[Any]], arenas: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """For facts of a release without the order of destinations: use the order of ids, which is that
    of a node's first event as source or destination."""
    known = np.flatnonzero(tensors["pop_at"] != NEVER)
    rank, order = (arenas[name][: len(tensors["seen"])] for name in ("rank", "order"))
    rank[known] = np.arange(1, len(known) + 1)
    order[: len(known)] = known
    return {"rank": rank, "order": order, "size": np.append(tensors["size"], len(known))}


def _with_newer_facts(
    tensors: dict[str, NDArray[Any]], arenas: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """For facts of a release without repeats, gaps and transitions: these start empty. The partners
    of a node are counted from the stored pairs."""
    count = len(tensors["seen"])
    arenas["log_gap"][:count] = NEVER_LOG_SECONDS
    key = tensors["key"]
    for side, node in enumerate((key >> np.uint64(32), key & np.uint64(2**32 - 1))):
        met = tensors["met_at"][:, side] >= 0
        np.add.at(arenas["num_partners"], node[met].astype(np.int64), 1)
    return {name: _empty(name) for name in HASHED_ARRAYS if name.startswith("step")}


def _with_hours(
    tensors: dict[str, NDArray[Any]], arenas: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """For facts of a release without hours of the day: these start empty. A pair's number of events
    is estimated by its slowest weight."""
    slowest = tensors["weight"][:, :, -1].max(axis=1)
    arenas["num_met"][: len(slowest)] = np.ceil(slowest)
    return {"hours": _empty("hours")}


def _with_covisits(
    tensors: dict[str, NDArray[Any]], arenas: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """For facts of a release without co-visits: these start empty. The sources of a node are
    counted from the stored pairs."""
    key = tensors["key"]
    ends = key >> np.uint64(32), key & np.uint64(2**32 - 1)
    for side in range(2):
        # On side 0 are the events from the smaller id to the larger.
        sent = tensors["sent"][:, side] != NEVER
        np.add.at(arenas["num_sources"], ends[1 - side][sent].astype(np.int64), 1)
    return {"covisits": _empty("covisits")}


OLDER_FACTS = {
    ("rank", "order"): _with_order,
    ("log_gap", "repeats", "num_partners"): _with_newer_facts,
    ("num_met",): _with_hours,
    ("num_sources", "visited"): _with_covisits,
}
"""Arrays over nodes and pairs that older releases lacked -> the function that fills them in the
arenas, and returns other missing arrays."""


def _empty(name: str) -> NDArray[Any]:
    """An empty table."""
    kind, *shape = HASHED_ARRAYS[name]
    return np.zeros(shape, kind)
