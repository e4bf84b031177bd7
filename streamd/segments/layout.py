"""Where the parts of a log lie in the data directory, and the rows of its append-only files."""

from typing import Any

import numpy as np

EDGES = "edges/default"
KEYS = "nodes.keys"
FEATURES = "node_features/updates.rows"
LATE = f"{EDGES}/late.rows"
DELETIONS = "deletions.log"
APPENDED = (KEYS, FEATURES, LATE, DELETIONS)

LATE_ROW = np.dtype([("edge", "<i8"), ("time", "<i8")])
"""A late edge: its id and the event time it came with, microseconds."""


def feature_row(dim: int) -> np.dtype[Any]:
    """A feature update on disk: commit, row in it, edges in the log before it, node, values."""
    return np.dtype(
        [
            ("seq", "<i8"),
            ("row", "<i8"),
            ("edge", "<i8"),
            ("node", "<i8"),
            ("values", "<f4", (dim,)),
        ]
    )
