"""Turns merged events into the columns of one commit.

Keys become dense node ids, and late events get the watermark as their time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.decode.block import Block
from streamd.events import (
    DELETE,
    DELETION,
    EDGE,
    LABEL,
    MICROSECONDS,
    NODE,
    EventBatch,
    Int64,
    Key,
    Schema,
    split_key,
)
from streamd.number_texts import span

UNSEEN = -2
"""In the cache: the key has not been looked up in the log's table."""
NONE = -1
"""No node id: the log does not hold the key, or the event has no second endpoint."""
CountEdges = Callable[[Int64, Int64, Int64, Int64], Int64]


@dataclass(frozen=True)
class Refused:
    """A valid event that the log cannot accept in its present state. row: its index in the block.
    is_skipped: whether it is only counted, such as a tombstone of a row that is gone already."""

    row: int
    reason: str
    error: str
    is_skipped: bool = False


class BatchBuilder:
    """Turns blocks of merged events into commits. Owner: the poll thread.

    ids: the log's key table. New keys are added to it and deleted ones removed here, before the
    commit; a commit that fails ends the process, so no id is orphaned. A cache maps the decoder's
    key numbers to node ids.
    """

    def __init__(
        self,
        schema: Schema,
        ids: dict[Key, int],
        max_nodes: int,
        late_policy: str,
        count_edges: CountEdges,
    ) -> None:
        """count_edges: returns how many of each edge the log holds, by node ids of the endpoints,
        event times and numbers of the edge sets."""
        self._schema = schema
        self._ids = ids
        self._max_nodes = max_nodes
        self._late_policy = late_policy
        self._count_edges = count_edges
        self._cache = np.zeros(0, np.int64)
        self._epoch = -1

    def build(
        self, block: Block, keys: Sequence[Key], epoch: int, watermark: int, num_nodes: int
    ) -> tuple[EventBatch, int, list[Refused]]:
        """Make the columns of a commit from a block in log order.

        Args: keys: by number, as in the block's a and b; epoch: changes when those numbers do;
        watermark: newest time in the log, microseconds; num_nodes: node ids given out so far.
        Returns: the batch, the watermark after it, and the events left out.
        """
        # Late events get the watermark as their time, or are refused.
        self._prepare_cache(keys, epoch)
        rows = block.rows
        time, late = _find_late(rows, watermark)
        refused: list[Refused] = []
        if late.any() and self._late_policy == "dead_letter":
            refused = [
                Refused(
                    i,
                    "late",
                    f"time is {span((watermark - rows['time'][i]) / 1e6)} behind the watermark",
                )
                for i in np.flatnonzero(late).tolist()
            ]
            time = np.maximum.accumulate(np.where(late, watermark, time)) if len(time) else time

        # Number the keys. Events that the log cannot take are refused, and cleared in `kept`.
        kept = np.ones(len(rows), np.bool_)
        kept[[r.row for r in refused]] = False
        a, b, new_keys = self._number(rows, keys, kept, num_nodes, refused)
        self._refuse_stray_deletes(block, kept, a, b, refused)
        batch = self._columns(block, time, late & kept, kept, a, b, new_keys)

        # Only events with a time of their own move the watermark.
        moving = kept & ((rows["kind"] == EDGE) | (rows["kind"] == LABEL))
        return batch, max(watermark, int(time[moving][-1])) if moving.any() else watermark, refused

    def _prepare_cache(self, keys: Sequence[Key], epoch: int) -> None:
        """Clear the cache if the key numbers changed, and grow it to all of them."""
        if epoch != self._epoch:
            self._cache = np.zeros(0, np.int64)
            self._epoch = epoch
        if len(keys) > len(self._cache):
            grown = np.full(max(len(keys), 2 * len(self._cache)), UNSEEN, np.int64)
            grown[: len(self._cache)] = self._cache
            self._cache = grown

    def _number(
        self,
        rows: NDArray[np.void],
        keys: Sequence[Key],
        kept: NDArray[np.bool_],
        num_nodes: int,
        refused: list[Refused],
    ) -> tuple[Int64, Int64, list[Key]]:
        """Node ids of both endpoints, NONE if absent, and the new keys.

        Events with keys beyond `max_nodes` are added to `refused` and cleared in `kept`.
        """
        # Look up each key once.
        edge = rows["kind"] == EDGE
        b_number = np.where(rows["b"] >= 0, rows["b"], rows["a"])
        unseen = [column[self._cache[column] == UNSEEN] for column in (rows["a"], b_number)]
        for number in np.unique(np.concatenate(unseen)).tolist():
            self._cache[number] = self._ids.get(keys[number], NONE)

        # Handle the rows up to each delete of a node in turn: after it, its key is a new node.
        new_keys: list[Key] = []
        deletes = np.flatnonzero((rows["kind"] == DELETE) & (rows["b"] < 0))
        a = np.full(len(rows), NONE, np.int64)
        b = np.full(len(rows), NONE, np.int64)
        start = 0
        for stop in (*deletes.tolist(), len(rows)):
            part = slice(start, min(stop + 1, len(rows)))
            missing = (
                np.flatnonzero(
                    kept[part]
                    & (rows["kind"][part] != DELETE)
                    & (
                        (self._cache[rows["a"][part]] == NONE)
                        | (edge[part] & (self._cache[b_number[part]] == NONE))
                    )
                )
                + start
            )
            # Give ids to new keys in the order of events.
            for i in missing.tolist():
                ends = (int(rows["a"][i]), int(rows["b"][i])) if edge[i] else (int(rows["a"][i]),)
                if not self._add_keys(ends, keys, num_nodes, new_keys):
                    text = f"the log holds ingest.max_nodes = {self._max_nodes} keys"
                    refused.append(Refused(i, "node_limit", text))
                    kept[i] = False
            a[part] = self._cache[rows["a"][part]]
            b[part] = self._cache[b_number[part]]
            if stop < len(rows):
                number = int(rows["a"][stop])
                self._ids.pop(keys[number], None)
                self._cache[number] = NONE
            start = stop + 1
        return a, b, new_keys

    def _add_keys(
        self, ends: Sequence[int], keys: Sequence[Key], num_nodes: int, new_keys: list[Key]
    ) -> bool:
        """Give ids to the new ones among the keys of an event, and add them to `new_keys`.

        Returns: False if the log would hold too many; then none is added.
        """
        unknown = [n for n in dict.fromkeys(ends) if self._cache[n] == NONE]
        if num_nodes + len(new_keys) + len(unknown) > self._max_nodes:
            return False
        for n in unknown:
            self._cache[n] = self._ids[keys[n]] = num_nodes + len(new_keys)
            new_keys.append(keys[n])
        return True

    def _refuse_stray_deletes(
        self, block: Block, kept: NDArray[np.bool_], a: Int64, b: Int64, refused: list[Refused]
    ) -> None:
        """Refuse deletes of a node or edge that is neither in the log nor before them in the block.

        They are added to `refused` and cleared in `kept`.
        """
        rows = block.rows
        deletes = np.flatnonzero(rows["kind"] == DELETE)
        of_edges = deletes[rows["b"][deletes] >= 0]

        # Index the block's own edges, by the first row of each (src, dst, time, edge set).
        first_row: dict[tuple[int, int, int, int], int] = {}
        if len(of_edges):
            edges = np.flatnonzero(kept & (rows["kind"] == EDGE))
            for row, *edge in zip(
                edges.tolist(),
                a[edges].tolist(),
                b[edges].tolist(),
                rows["time"][edges].tolist(),
                self._schema.edge_sets_of(block.values[edges]).tolist(),
                strict=True,
            ):
                first_row.setdefault((edge[0], edge[1], edge[2], edge[3]), row)

        # A delete of an edge matches one of the block before it, or one of the log.
        matched = a >= 0
        named = [block.extras[i][:2] for i in rows["extra"][of_edges].tolist()]
        time_X, set_X = np.array(named, np.int64).reshape(-1, 2).T
        columns = a[of_edges], b[of_edges], time_X, set_X
        wanted = zip(*(column.tolist() for column in columns), strict=True)
        in_block_X = np.array(
            [
                first_row.get(w, len(rows)) < i
                for i, w in zip(of_edges.tolist(), wanted, strict=True)
            ],
            np.bool_,
        )
        asked_X = ~in_block_X & (a[of_edges] >= 0) & (b[of_edges] >= 0)
        matched[of_edges] = in_block_X
        if asked_X.any():
            held = self._count_edges(*(np.ascontiguousarray(c[asked_X]) for c in columns))
            matched[of_edges[asked_X]] = held > 0
        for i in deletes[~matched[deletes]].tolist():
            error = f"the log holds no such {'node' if rows['b'][i] < 0 else 'edge'}"
            extra = block.extras[rows["extra"][i]] if rows["extra"][i] >= 0 else ()
            refused.append(Refused(i, "unmatched_delete", error, is_skipped=len(extra) > 2))
            kept[i] = False

    def _columns(
        self,
        block: Block,
        time: Int64,
        late: NDArray[np.bool_],
        kept: NDArray[np.bool_],
        a: Int64,
        b: Int64,
        new_keys: list[Key],
    ) -> EventBatch:
        """Gather the columns of the kept events; node ids, times and `late` have one entry per
        row."""
        rows = block.rows
        schema = self._schema
        edge, node, label = (kept & (rows["kind"] == k) for k in (EDGE, NODE, LABEL))
        single = rows["b"] < 0
        delete = kept & (rows["kind"] == DELETE) & (a >= 0) & (single | (b >= 0))

        # `order` is the index of each event among the kept ones of all kinds; `edges_before` counts
        # the edges up to it.
        order = np.cumsum(edge | node | label | delete) - 1
        edges_before = np.cumsum(edge)
        deletions = np.zeros(int(delete.sum()), DELETION)
        deletions["row"] = order[delete]
        deletions["edge"] = edges_before[delete]
        deletions["src"] = a[delete]
        deletions["dst"] = np.where(single, NONE, b)[delete]
        named = [block.extras[x] if x >= 0 else (NONE, 0) for x in rows["extra"][delete].tolist()]
        deletions["time"] = [n[0] for n in named]
        deletions["edge_set"] = [n[1] for n in named]
        late_edges = np.flatnonzero(late & edge)

        def extras_of(chosen: NDArray[np.bool_], dim: int) -> NDArray[np.float32]:
            """The extras of the chosen rows, float32[n, dim]."""
            values = [block.extras[x] for x in rows["extra"][chosen].tolist()] if dim else []
            return np.array(values, np.float32).reshape(int(chosen.sum()), dim)

        return EventBatch(
            src_E=a[edge],
            dst_E=b[edge],
            time_E=time[edge],
            msg_ED=np.ascontiguousarray(block.values[edge]),
            label_node_L=a[label],
            label_time_L=time[label],
            label_target_L=extras_of(label, schema.label_dim),
            node_F=a[node],
            node_row_F=order[node],
            node_edge_F=edges_before[node],
            node_values_F=extras_of(node, schema.node_feature_dim),
            new_keys=tuple(new_keys),
            late_edge=tuple((edges_before[late_edges] - 1).tolist()),
            late_time=tuple(rows["time"][late_edges].tolist()),
            deletions_X=deletions,
            num_late_labels=int((late & label).sum()),
        )


def _find_late(rows: NDArray[np.void], watermark: int) -> tuple[Int64, NDArray[np.bool_]]:
    """Times as the log stores them, never decreasing, and whether each edge or label is late."""
    moves = (rows["kind"] == EDGE) | (rows["kind"] == LABEL)
    if not len(rows):
        return rows["time"].copy(), moves
    time: Int64 = np.maximum.accumulate(
        np.where(moves, np.maximum(rows["time"], watermark), watermark)
    )
    return time, moves & (time > rows["time"])


def as_json(block: Block, row: int, keys: Sequence[Key], time_unit: str, schema: Schema) -> bytes:
    """Encode an event of a block as JSON, as its producer could have sent it."""
    r = block.rows[row]
    node_set, a = split_key(keys[int(r["a"])])
    b = split_key(keys[int(r["b"])])[1] if r["b"] >= 0 else None
    time = int(r["time"]) // MICROSECONDS[time_unit]
    carried = block.extras[int(r["extra"])] if r["extra"] >= 0 else ()
    # With several sets, an event names its own.
    of_node = {"node_set": schema.node_set_names[node_set]} if schema.num_node_sets > 1 else {}

    # The fields of each kind, without the type of an edge, which is the default.
    event: dict[str, object]
    if r["kind"] == EDGE:
        edge_set = int(schema.edge_sets_of(block.values[row : row + 1])[0])
        event = _of_edge(edge_set, schema) | {"src": a, "dst": b, "time": time}
        features = [float(v) for v in block.values[row, schema.edge_columns(edge_set)]]
        if features:
            event["features"] = features
    elif r["kind"] == LABEL:
        event = {"type": "label", **of_node, "node": a, "time": time, "target": list(carried)}
    elif r["kind"] == NODE:
        features = list(carried)[schema.node_columns(node_set)]
        event = {"type": "node", **of_node, "id": a, "features": features}
    elif r["b"] >= 0:
        of_edge, when = int(carried[1]), int(carried[0]) // MICROSECONDS[time_unit]
        event = {"type": "delete", **_of_edge(of_edge, schema), "src": a, "dst": b, "time": when}
    else:
        event = {"type": "delete", **of_node, "node": a}
    return msgspec.json.encode(event)


def _of_edge(edge_set: int, schema: Schema) -> dict[str, object]:
    """The field that names an edge set, if there are several."""
    return {"edge_set": schema.edge_set_names[edge_set]} if schema.num_edge_sets > 1 else {}
