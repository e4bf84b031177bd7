"""A range of the log as one TGUF file that other tools can train on: no deleted rows, splits and
negatives included."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import StreamdError
from streamd.events import Float32, Int64
from streamd.segments.format import TGUFSchema
from streamd.segments.reader import LogReader
from streamd.segments.writer import TGUFWriter

CHUNK_EDGES = 262_144


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """What goes into the file. Times in microseconds, half open; shares of the edges, the last ones
    test.

    negatives: wrong destinations drawn for each validation and test edge (each edge, without
    splits), never the true one.
    """

    start_us: int = 0
    end_us: int = 2**62
    val_share: float = 0.15
    test_share: float = 0.15
    negatives: int = 0
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written: rows, and node ids below `num_nodes`, which are those of the log."""

    num_edges: int
    num_labels: int
    num_nodes: int
    val_start: int
    test_start: int


def export_range(
    log: LogReader,
    path: Path,
    options: ExportOptions,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Exported:
    """Write the edges, labels and node features of a range of event time. progress: told (edges
    looked at, in all).

    Raises: StreamdError where the range holds nothing, or the file exists; what was written is
    removed then.
    """
    schema = log.state.schema
    first, end = log.lower_bound(options.start_us), log.lower_bound(options.end_us)
    counts, pool = _survey(log, first, end, progress)
    kept = int(counts.sum())
    if not kept:
        raise StreamdError(
            "The log has no edge in that range of time.",
            "look at its times with `streamd tguf inspect`.",
        )
    if options.negatives and len(pool) < 2:
        raise StreamdError(
            "Negatives need at least two destinations.", "export a longer range, or none."
        )
    labels = _labels(log, options)
    features = _node_features(log, end)
    val_start, test_start = _splits(log, first, end, counts, options)
    start = val_start if val_start or test_start else 0
    plan = TGUFSchema(
        edge_capacity=kept,
        msg_dim=schema.edge_feature_dim,
        label_capacity=len(labels[0]),
        label_dim=schema.label_dim,
        node_capacity=len(features),
        node_feat_dim=schema.node_feature_dim,
        val_start=val_start,
        test_start=test_start,
        negatives_per_edge=options.negatives,
        negatives_start=start if options.negatives else 0,
    )
    try:
        writer = TGUFWriter(path, plan)
    except FileExistsError:
        raise StreamdError(f"{path} exists already.", "name a new file.") from None
    try:
        with writer:
            for src, dst, time, msg in _chunks(log, first, end, progress):
                row = writer.num_edges
                wrong = dst[max(start - row, 0) :]
                negatives = (
                    _negatives(pool, wrong, options, max(start, row)) if options.negatives else None
                )
                writer.append_edges(src, dst, time, msg, negatives)
            writer.append_labels(*labels)
            if len(features):
                writer.append_node_features(np.arange(len(features)), features)
            writer.commit()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Exported(
        num_edges=kept,
        num_labels=len(labels[0]),
        num_nodes=log.num_nodes,
        val_start=val_start,
        test_start=test_start,
    )


def write_keys(log: LogReader, path: Path) -> None:
    """Node ids and keys as CSV; a deleted node has no line."""
    with path.open("x", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(("id", "key"))
        writer.writerows((node, key) for node, key in enumerate(log.keys) if key is not None)


def _parts(first: int, end: int) -> list[tuple[int, int]]:
    return [(a, min(a + CHUNK_EDGES, end)) for a in range(first, end, CHUNK_EDGES)]


def _survey(
    log: LogReader, first: int, end: int, progress: Callable[[int, int], None]
) -> tuple[Int64, Int64]:
    """Edges of each part that are not deleted, and all their destinations."""
    counts = []
    pool = np.zeros(0, np.int64)
    for a, b in _parts(first, end):
        dst = log.edges(a, b)[1][~log.hidden(a, b)]
        counts.append(len(dst))
        pool = np.union1d(pool, dst)
        progress(b - first, 2 * (end - first))
    return np.array(counts, np.int64), pool


def _chunks(
    log: LogReader, first: int, end: int, progress: Callable[[int, int], None]
) -> Iterator[tuple[Int64, Int64, Int64, Float32]]:
    for a, b in _parts(first, end):
        rows = np.flatnonzero(~log.hidden(a, b))
        src, dst, time = log.edges(a, b)
        yield (
            np.ascontiguousarray(src[rows]),
            np.ascontiguousarray(dst[rows]),
            np.ascontiguousarray(time[rows]),
            log.features_of(a + rows),
        )
        progress(end - first + b - first, 2 * (end - first))


def _labels(log: LogReader, options: ExportOptions) -> tuple[Int64, Int64, Float32]:
    node, time, target = log.labels()
    kept = (time >= options.start_us) & (time < options.end_us) & ~log.deletions.is_gone(node)
    return (
        np.ascontiguousarray(node[kept]),
        np.ascontiguousarray(time[kept]),
        np.ascontiguousarray(target[kept]),
    )


def _node_features(log: LogReader, end: int) -> Float32:
    """The rows in force behind the range, by node id; zeros for a node without."""
    known = (log.feature_edge <= end) & ~log.deletions.is_gone(log.feature_node)
    node = log.feature_node[known]
    out = np.zeros(
        (int(node.max()) + 1 if len(node) else 0, log.feature_values.shape[1]), np.float32
    )
    out[node] = log.feature_values[known]
    return out


def _splits(
    log: LogReader, first: int, end: int, counts: Int64, options: ExportOptions
) -> tuple[int, int]:
    """Rows where validation and test begin, each moved back to the first edge of its time; 0 for
    none."""
    if not options.val_share and not options.test_share:
        return 0, 0
    parts = _parts(first, end)
    ends = np.cumsum(counts)
    kept = int(counts.sum())

    def begin(share: float) -> int:
        row = min(int(kept * (1 - share)), kept - 1)
        number = int(np.searchsorted(ends, row, side="right"))
        a, b = parts[number]
        edge = a + np.flatnonzero(~log.hidden(a, b))[row - int(ends[number] - counts[number])]
        edge = max(first, log.lower_bound(int(log.time_of(np.array([edge]))[0])))
        number = (edge - first) // CHUNK_EDGES
        return int(ends[number] - counts[number] + (~log.hidden(parts[number][0], edge)).sum())

    val = begin(options.val_share + options.test_share)
    return val, begin(options.test_share) if options.test_share else kept


def _negatives(pool: Int64, dst: Int64, options: ExportOptions, first_row: int) -> Int64:
    """Uniform over the pool less the true destination, seeded by the row: int64[E, negatives]."""
    rng = np.random.default_rng([options.seed, first_row])
    drawn = rng.integers(0, len(pool) - 1, (len(dst), options.negatives))
    true = np.searchsorted(pool, dst)[:, None]
    out: Int64 = pool[drawn + (drawn >= true)]
    return out
