"""Types of the data between Kafka and the log: events in columns, deletes, and positions in
Kafka."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.schema import DEFAULT_SET
from streamd.schema import Schema as Schema

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


class SetKey(NamedTuple):
    """Key of a node that is not in the first node set: number of its node set, and its key
    there."""

    node_set: int
    key: str | int


Key = str | int | SetKey
"""External key of a node. Keys are unique within a node set; those of the first node set have no
`SetKey`."""


def split_key(key: Key) -> tuple[int, str | int]:
    """The number of a key's node set, and the key in that set."""
    return key if isinstance(key, SetKey) else (0, key)


MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds in each unit of `stream.time_unit`."""
MAX_TIME_US = 2**62
"""Later times are refused, so that the sum of two times does not overflow int64."""

# The kinds of events.
EDGE = 0
NODE = 1
LABEL = 2
DELETE = 3

EDGE_SETS = (DEFAULT_SET,)
"""Names of the edge sets of a log without declared ones."""
DELETION = np.dtype(
    [
        ("seq", "<i8"),
        ("row", "<i4"),
        ("edge_set", "<i4"),
        ("edge", "<i8"),
        ("src", "<i8"),
        ("dst", "<i8"),
        ("time", "<i8"),
    ]
)
"""Row of a delete: the commit, the row in the commit, the number of an edge set, and the number of
events in the log before the delete. It deletes the events of that set with these node ids and this
event time in microseconds, or if `dst` is -1 the node `src`. `edge_set` was the upper half of an
int64 `row` in older releases, so logs of one edge set have always had 0 there."""


class NodeDeletes(NamedTuple):
    """D deleted nodes in log order. node: int64[D] ids. edge: int64[D], the number of events in the
    log before each delete."""

    node: Int64
    edge: Int64

    def until(self, edge: int) -> "NodeDeletes":
        """The deletes before the event with id `edge`."""
        # Deletes are in log order, so their positions ascend.
        end = int(np.searchsorted(self.edge, edge, side="right"))
        return NodeDeletes(self.node[:end], self.edge[:end])


NO_DELETES = NodeDeletes(np.zeros(0, np.int64), np.zeros(0, np.int64))


OffsetItem = tuple[int, int]
"""Offset and index of an event in its partition."""


class Run(NamedTuple):
    """Consecutive events of a partition: the positions of the first and the last, both
    inclusive."""

    first: OffsetItem
    last: OffsetItem


@dataclass(frozen=True)
class Position:
    """The next event to read of a partition: event `index` of the record at `offset`. Events in
    `ahead` are skipped.

    ahead: runs after the position that are in the log already, ascending. epoch: the partition's
    leader epoch at the position, by which the client detects a truncation of records that were read
    (KIP-320); -1 if unknown.
    """

    offset: int
    index: int = 0
    ahead: tuple[Run, ...] = ()
    epoch: int = -1


class Gap(NamedTuple):
    """Offsets [first, end) that Kafka no longer has; end is -1 if the partition's log was replaced
    by another one."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True)
class Progress:
    """The positions in Kafka up to which events are in the log: topic -> partition -> Position.

    cluster_id, topic_ids: of the Kafka that was read, to detect another cluster or a topic that was
    created again.
    """

    cluster_id: str = ""
    topic_ids: dict[str, str] = field(default_factory=dict)
    positions: dict[str, dict[int, Position]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EventBatch:
    """The columns of one commit, in log order, with dense node ids.

    Shapes: E edges, L labels, F feature rows, K new keys, X deletes.

    src_E, dst_E, time_E: int64, time in microseconds and sorted. msg_ED: float32 rows of edge
    features, with a one-hot of the edge set (`Schema`). label_*: int64[L], float32[L, dim]. node_F:
    int64, node_row_F: int64 index of each feature update among all rows of the commit, node_edge_F:
    int64 number of events of this commit before it, node_values_F: float32[F, dim]. new_keys: keys
    of new nodes, in order of their ids (None for a node without a key). late_edge, late_time: index
    in this commit and original time of the events whose time was set to the watermark. deletions_X:
    `DELETION` rows, with `seq` 0 and `edge` counted within the commit, as in node_edge_F.
    num_late_labels: labels whose time was set to the watermark.
    """

    src_E: Int64
    dst_E: Int64
    time_E: Int64
    msg_ED: Float32
    label_node_L: Int64
    label_time_L: Int64
    label_target_L: Float32
    node_F: Int64
    node_row_F: Int64
    node_edge_F: Int64
    node_values_F: Float32
    new_keys: tuple[Key | None, ...] = ()
    late_edge: tuple[int, ...] = ()
    late_time: tuple[int, ...] = ()
    deletions_X: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, DELETION))
    num_late_labels: int = 0

    @property
    def num_edges(self) -> int:
        return len(self.src_E)

    @property
    def num_rows(self) -> int:
        return len(self.src_E) + len(self.label_node_L) + len(self.node_F) + len(self.deletions_X)


def empty_batch(schema: Schema) -> EventBatch:
    """A batch without rows, for commits that only advance positions or the watermark."""
    # All columns can share one array, since it has no rows.
    none = np.zeros(0, np.int64)
    return EventBatch(
        src_E=none,
        dst_E=none,
        time_E=none,
        msg_ED=np.zeros((0, schema.edge_feature_dim), np.float32),
        label_node_L=none,
        label_time_L=none,
        label_target_L=np.zeros((0, schema.label_dim), np.float32),
        node_F=none,
        node_row_F=none,
        node_edge_F=none,
        node_values_F=np.zeros((0, schema.node_feature_dim), np.float32),
    )
