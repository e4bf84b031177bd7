"""Exports a range of the log as one TGUF file that other tools can train on.

The file has no deleted rows. It can have splits and negatives.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.format import TGUFSchema
from streamd.eventlog.tguf.writer import TGUFWriter
from streamd.events import Bools, Float32, Int64, SetKey

CHUNK_EDGES = 262_144
"""Edges in memory at a time: with 100 features their values take 105 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """The rows to export: edges with start_us <= time < end_us, in microseconds.

    edge_set: number of the set to export: its edges with its own features, and the labels and node
    features of the node sets at its ends; None for all sets. Rows of edge features identify the set
    if all sets are exported; rows of node features do if the nodes are of several sets. val_share,
    test_share: shares of the edges; the test edges are the last ones. negatives: wrong destinations
    drawn for each validation and test edge, or for each edge without splits.
    """

    start_us: int = 0
    end_us: int = 2**62
    val_share: float = 0.15
    test_share: float = 0.15
    negatives: int = 0
    seed: int = 0
    edge_set: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """Counts of the rows that were written. Node ids are those of the log, all below
    `num_nodes`."""

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
    """Write the edges, labels and node features of a range of event time to a new file.

    Args: progress: called with (edges read, edges to read); each edge is read twice.
    Raises: StreamdError for a range without edges, too few destinations, or an existing file.
    """
    # Count first: a TGUF file has its capacities in its header.
    first, end = log.lower_bound(options.start_us), log.lower_bound(options.end_us)
    counts, pool = _survey(log, first, end, options, progress)
    if not counts.any():
        raise StreamdError(
            "The log has no edge in that range of time.",
            "look at its times with `streamd tguf inspect`.",
        )
    if options.negatives and len(pool) < 2:
        raise StreamdError(
            "Negatives need at least two destinations.", "export a longer range, or none."
        )

    # Plan and create the file.
    labels = _labels(log, options, _node_sets(log, options))
    features = _node_features(log, end, _node_sets(log, options))
    splits = _splits(log, first, end, counts, options)
    plan = _plan(log, options, int(counts.sum()), len(labels[0]), features, splits)
    try:
        writer = TGUFWriter.create(path, plan)
    except FileExistsError:
        raise StreamdError(f"{path} exists already.", "name a new file.") from None

    # Write, and commit. An error removes the partial file.
    try:
        with writer:
            for src, dst, time, rows in _chunks(log, first, end, options, progress):
                negatives = None
                if options.negatives:
                    row = max(plan.negatives_start, writer.num_edges)
                    wrong = dst[row - writer.num_edges :]
                    negatives = _negatives(pool, wrong, options, row)
                writer.append_edges(src, dst, time, rows, negatives)
            # The header has a width of labels only if there are labels.
            if len(labels[0]):
                writer.append_labels(*labels)
            if len(features):
                writer.append_node_features(np.arange(len(features)), features)
            writer.commit()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Exported(
        num_edges=plan.edge_capacity,
        num_labels=plan.label_capacity,
        num_nodes=log.num_nodes,
        val_start=plan.val_start,
        test_start=plan.test_start,
    )


def _plan(
    log: LogReader,
    options: ExportOptions,
    num_edges: int,
    num_labels: int,
    features: Float32,
    splits: tuple[int, int],
) -> TGUFSchema:
    """Make the header of the file.

    features: of nodes, float32[nodes, D]. splits: rows at which validation and test begin; the
    negatives begin with the validation.
    """
    return TGUFSchema(
        edge_capacity=num_edges,
        msg_dim=len(range(log.state.schema.edge_feature_dim)[_edge_columns(log, options)]),
        label_capacity=num_labels,
        label_dim=log.state.schema.label_dim,
        node_capacity=len(features),
        node_feat_dim=features.shape[1],
        val_start=splits[0],
        test_start=splits[1],
        negatives_per_edge=options.negatives,
        negatives_start=splits[0] if options.negatives else 0,
    )


def _edge_columns(log: LogReader, options: ExportOptions) -> slice:
    """The columns of edge features to export."""
    of = options.edge_set
    return slice(None) if of is None else log.state.schema.edge_columns(of)


def write_keys(log: LogReader, path: Path) -> None:
    """Write node ids and keys as CSV to a new file, with the node set if there are several. Deleted
    nodes are left out."""
    names = log.state.schema.node_set_names
    with path.open("x", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(("id", "key", "node_set")[: 2 + (len(names) > 1)])
        for node, key in enumerate(log.keys):
            if isinstance(key, SetKey):
                writer.writerow((node, key.key, names[key.node_set]))
            elif key is not None:
                writer.writerow((node, key, names[0])[: 2 + (len(names) > 1)])


def parts_of(first: int, end: int) -> list[tuple[int, int]]:
    """Split a range of event ids into parts [a, b) of at most CHUNK_EDGES."""
    return [(a, min(a + CHUNK_EDGES, end)) for a in range(first, end, CHUNK_EDGES)]


def _is_kept(log: LogReader, a: int, b: int, options: ExportOptions) -> Bools:
    """Whether each of the edges [a, b) is exported: bool[b - a]."""
    kept = ~log.hidden(a, b)
    if options.edge_set is not None:
        kept &= log.edge_sets(a, b) == options.edge_set
    return kept


def _survey(
    log: LogReader,
    first: int,
    end: int,
    options: ExportOptions,
    progress: Callable[[int, int], None],
) -> tuple[Int64, Int64]:
    """Count the exported edges of each part, and collect their distinct destinations.

    Returns: int64[parts], and int64[destinations], ascending.
    """
    counts = []
    pool = np.zeros(0, np.int64)
    for a, b in parts_of(first, end):
        dst = log.edges(a, b)[1][_is_kept(log, a, b, options)]
        counts.append(len(dst))
        pool = np.union1d(pool, dst)
        progress(b - first, 2 * (end - first))
    return np.array(counts, np.int64), pool


def _chunks(
    log: LogReader,
    first: int,
    end: int,
    options: ExportOptions,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[Int64, Int64, Int64, Float32]]:
    """Yield the exported edges part by part: src, dst and time, int64[E] each, and feature rows,
    float32[E, D]."""
    columns = _edge_columns(log, options)
    for a, b in parts_of(first, end):
        rows = np.flatnonzero(_is_kept(log, a, b, options))
        src, dst, time = log.edges(a, b)
        yield (
            np.ascontiguousarray(src[rows]),
            np.ascontiguousarray(dst[rows]),
            np.ascontiguousarray(time[rows]),
            np.ascontiguousarray(log.features_of(a + rows)[:, columns]),
        )
        # The survey was the first half of the reads.
        progress(end - first + b - first, 2 * (end - first))


def _node_sets(log: LogReader, options: ExportOptions) -> list[int]:
    """Numbers of the node sets of which labels and features are exported, ascending."""
    schema = log.state.schema
    if options.edge_set is None:
        return list(range(schema.num_node_sets))
    return sorted(set(schema.ends_of(options.edge_set)))


def _labels(
    log: LogReader, options: ExportOptions, node_sets: list[int]
) -> tuple[Int64, Int64, Float32]:
    """Node, time and target of the labels in the range, without those of deleted nodes: int64[L]
    twice, float32[L, D]."""
    node, time, target = log.labels()
    kept = (time >= options.start_us) & (time < options.end_us) & ~log.deletions.is_gone(node)
    kept &= np.isin(log.node_sets_of(node), node_sets)
    return (
        np.ascontiguousarray(node[kept]),
        np.ascontiguousarray(time[kept]),
        np.ascontiguousarray(target[kept]),
    )


def features_before(log: LogReader, end: int) -> tuple[Float32, Bools]:
    """The features in force before the event `end`, by node id; zeros for a node without any.

    Returns: float32[nodes, D], and bool[nodes], which nodes have some.
    """
    updates = log.feature_updates()
    out = np.zeros((log.num_nodes, updates.dim), np.float32)
    known = np.zeros(log.num_nodes, np.bool_)
    for node, values, _ in updates.until(end):
        out[node] = values
        known[node] = True
    return out, known


def _node_features(log: LogReader, end: int, node_sets: list[int]) -> Float32:
    """The features in force at the end of the range, by node id; zeros for a node without any.

    Returns: float32[nodes, D]: of one node set its own features, of several the log's rows, which
    identify the set. Rows after the last node that has features and is not deleted are left out.
    """
    out, known = features_before(log, end)
    nodes = np.arange(log.num_nodes)
    known &= ~log.deletions.is_gone(nodes) & np.isin(log.node_sets_of(nodes), node_sets)
    out[~known] = 0
    if len(node_sets) == 1:
        out = out[:, log.state.schema.node_columns(node_sets[0])]
    count = int(np.flatnonzero(known)[-1]) + 1 if known.any() and out.shape[1] else 0
    return np.ascontiguousarray(out[:count])


def _splits(
    log: LogReader, first: int, end: int, counts: Int64, options: ExportOptions
) -> tuple[int, int]:
    """The rows at which validation and test begin, or 0 and 0 without splits.

    Each is moved back to the first edge of the same time, so that no time is in two splits.
    """
    if not options.val_share and not options.test_share:
        return 0, 0
    parts = parts_of(first, end)
    ends = np.cumsum(counts)
    kept = int(counts.sum())

    def begin(share: float) -> int:
        """The row at which the last `share` of the edges begins."""
        # Convert the row to its event id, move to the first event of that time, and convert back.
        row = min(int(kept * (1 - share)), kept - 1)
        number = int(np.searchsorted(ends, row, side="right"))
        a, b = parts[number]
        within = row - int(ends[number] - counts[number])
        event = a + np.flatnonzero(_is_kept(log, a, b, options))[within]
        event = max(first, log.lower_bound(int(log.time_of(np.array([event]))[0])))
        number = (event - first) // CHUNK_EDGES
        before = _is_kept(log, parts[number][0], event, options)
        return int(ends[number] - counts[number] + before.sum())

    val = begin(options.val_share + options.test_share)
    return val, begin(options.test_share) if options.test_share else kept


def _negatives(pool: Int64, dst: Int64, options: ExportOptions, first_row: int) -> Int64:
    """Draw negatives uniformly from the pool without the true destination: int64[E, negatives].

    first_row: part of the seed, so that each part of the edges gets other draws.
    """
    rng = np.random.default_rng([options.seed, first_row])
    drawn = rng.integers(0, len(pool) - 1, (len(dst), options.negatives))
    # Skip the true destination: draws from its index on move up by one.
    true = np.searchsorted(pool, dst)[:, None]
    out: Int64 = pool[drawn + (drawn >= true)]
    return out
