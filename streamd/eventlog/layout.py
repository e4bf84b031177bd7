"""The paths of a log's parts in the data directory, and the row types of its append-only files."""

from typing import Any

import numpy as np

# Paths relative to the data directory.
EDGES = "edges/default"
EDGE_FOLDERS = "edges"
KEYS = "nodes.keys"
FEATURES = "node_features/updates.rows"
LATE = f"{EDGES}/late.rows"
DELETIONS = "deletions.log"
MOVES = "learned/moves.jsonl"
WINDOWS = "learned/windows.jsonl"
VERSIONS = "learned/versions.jsonl"
LEARNED = (MOVES, WINDOWS, VERSIONS)
"""The files of learned lines: moves of the champion, records of windows, versions that were made or
removed. A line is a JSON object with the number of its commit as `seq`."""
APPENDED = (KEYS, FEATURES, LATE, DELETIONS, *LEARNED)
"""The files that commits append to, besides the segments."""

ORDER = "_order"
LABELS = "_labels.tguf"
"""Files of a segment of several edge sets, next to one TGUF file for each set; names of sets begin
with a letter. `_order` holds 8 bytes an event: number of the set << 48 | row in the set's file."""
SET_SHIFT = 48
ROW_BITS = (1 << SET_SHIFT) - 1

LATE_ROW = np.dtype([("edge", "<i8"), ("time", "<i8")])
"""Row of a late edge: its event id, and its original event time in microseconds."""


def segment_path(first_edge: int, num_edge_sets: int) -> str:
    """Path of a segment in the data directory: a file, or of several edge sets a folder."""
    if num_edge_sets == 1:
        return f"{EDGES}/{first_edge:020d}.tguf"
    return f"{EDGE_FOLDERS}/{first_edge:020d}"


def feature_row(dim: int) -> np.dtype[Any]:
    """Row type of a node feature update on disk: commit, row in it, edges in the log before it,
    node, and float32[dim] values.

    Commits count from 1: a row of zeros is an update that was pruned.
    """
    return np.dtype(
        [
            ("seq", "<i8"),
            ("row", "<i8"),
            ("edge", "<i8"),
            ("node", "<i8"),
            ("values", "<f4", (dim,)),
        ]
    )
