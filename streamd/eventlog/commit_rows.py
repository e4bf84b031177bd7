"""Encodes the rows of one commit: bytes for the append-only files, and rows of the segment with the
journal's entry for them. Also reads keys and deletes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import DataDirectoryError
from streamd.eventlog.journal.journal import NOTHING, LogState
from streamd.eventlog.layout import DELETIONS, FEATURES, KEYS, LATE, LATE_ROW, feature_row
from streamd.eventlog.node_keys import decode_keys, encode_keys
from streamd.eventlog.sets_writer import SegmentWriter
from streamd.eventlog.tguf.writer import columns_crc
from streamd.events import DELETION, EventBatch, Key, Schema


def appended_bytes(schema: Schema, state: LogState, batch: EventBatch) -> list[tuple[str, bytes]]:
    """The bytes that the commit after `state` appends, as (path in the data directory, bytes).

    A batch counts edges within itself; the rows on disk count them over the life of the log.
    """
    seq = state.seq + 1
    out = []
    if batch.new_keys:
        out.append((KEYS, encode_keys(batch.new_keys)))

    # Each update of node features has the number of edges in the log before it.
    if len(batch.node_F):
        rows = np.zeros(len(batch.node_F), feature_row(schema.node_feature_dim))
        rows["seq"] = seq
        rows["row"] = batch.node_row_F
        rows["node"] = batch.node_F
        rows["edge"] = batch.node_edge_F + state.num_edges
        rows["values"] = batch.node_values_F
        out.append((FEATURES, rows.tobytes()))

    # The segment has late edges at the watermark; this file has their original times.
    if batch.late_edge:
        rows = np.zeros(len(batch.late_edge), LATE_ROW)
        rows["edge"] = np.array(batch.late_edge) + state.num_edges
        rows["time"] = batch.late_time
        out.append((LATE, rows.tobytes()))
    if len(batch.deletions_X):
        rows = batch.deletions_X.copy()
        rows["seq"] = seq
        rows["edge"] += state.num_edges
        out.append((DELETIONS, rows.tobytes()))
    return out


def append_rows(segment: SegmentWriter, path: str, batch: EventBatch) -> dict[str, Any]:
    """Append a batch's edges and labels to a segment, without making them durable.

    path: of the segment, in the data directory. Returns: the journal's entry for the rows. Its
    CRC32C is the one that `SegmentFiles.rows_crc` computes.
    """
    rows = [segment.num_edges, segment.num_edges + batch.num_edges]
    labels = [segment.num_labels, segment.num_labels + len(batch.label_node_L)]
    crc = segment.append_edges(batch.src_E, batch.dst_E, batch.time_E, batch.msg_ED)
    label_columns = batch.label_node_L, batch.label_time_L, batch.label_target_L
    segment.append_labels(*label_columns)
    return {
        "path": path,
        "rows": rows,
        "labels": labels,
        "crc": columns_crc(label_columns, crc),
    }


def read_deletions(data_dir: Path, state: LogState) -> NDArray[np.void]:
    """Read all committed `DELETION` rows of a log."""
    with (data_dir / DELETIONS).open("rb") as file:
        return np.frombuffer(file.read(state.files.get(DELETIONS, NOTHING).num_bytes), DELETION)


def read_keys(data_dir: Path, state: LogState) -> dict[Key, int]:
    """Read the keys of the nodes that are not deleted, key -> node id. Raises:
    DataDirectoryError."""
    raw = (data_dir / KEYS).read_bytes()[: state.files.get(KEYS, NOTHING).num_bytes]
    rows = list(decode_keys(raw))
    if len(rows) != state.num_nodes:
        raise DataDirectoryError(
            f"{KEYS} holds {len(rows)} keys, the journal counts {state.num_nodes}.",
            "restore nodes.keys from a backup.",
        )
    deleted = read_deletions(data_dir, state)
    gone = set(deleted["src"][deleted["dst"] < 0].tolist())
    return {k: i for i, k in enumerate(rows) if k is not None and i not in gone}
