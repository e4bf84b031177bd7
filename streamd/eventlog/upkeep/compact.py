"""Compaction makes deletes physical: it overwrites the rows, keys and features that deletes hide,
and changes no id."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streamd.eventlog.journal.journal import NOTHING, SegmentState
from streamd.eventlog.layout import KEYS
from streamd.eventlog.node_keys import KeySlice, key_slices
from streamd.eventlog.reader import LogReader
from streamd.eventlog.segment_files import SegmentFiles
from streamd.eventlog.sets_writer import new_segment
from streamd.eventlog.upkeep.prune import pruning
from streamd.eventlog.writer import LogWriter
from streamd.events import Bools, Key, empty_batch

PurgeLetters = Callable[[Collection[Key]], Iterable[None]]
"""Removes the dead letters that contain any of the given keys, some letters per step."""


@dataclass(frozen=True)
class Compaction:
    """The progress of a compaction.

    segments, edges, keys: number of each that was rewritten. waiting: hidden rows that must wait,
    because a role still replays them, or because they are labels in a segment that has no edge yet.
    passed: segments handled, of `total`.
    """

    segments: int = 0
    edges: int = 0
    keys: int = 0
    waiting: int = 0
    passed: int = 0
    total: int = 0


def no_letters(_: Collection[Key]) -> Iterable[None]:
    """Purge the dead letters of a log that has none."""
    return ()


def compaction(
    log: LogWriter, reader: LogReader, before_event: int, purge_letters: PurgeLetters = no_letters
) -> Iterator[Compaction]:
    """Overwrite deleted edges with ids below `before_event`, and all labels, node features and keys
    of deleted nodes:

    1. Find the keys to remove.
    2. Remove the dead letters that contain them.
    3. Remove the keys. A crash before that leaves them, so the next run searches the letters again.
    4. Remove node features of deleted nodes, and those that no reader needs (`pruning`).
    5. Rewrite the segments. A deleted row keeps its time; both its endpoints become a reserved node
       without a key, its features zero. The segment in progress is sealed first.

    Each iteration does a small part. After a crash the log is consistent, and running it again
    finishes the rest. Between iterations the log may be appended to, but no segment be dropped.
    """
    # 1. Find the keys to remove, and the reserved node.
    reader.refresh()
    is_gone = reader.deletions.is_gone
    done = Compaction(total=len(log.state.segments))
    keys: dict[int, Key] = {}
    reserved = -1
    for rows in _key_slices(log):
        keys |= rows.stored(is_gone)
        reserved = rows.reserved() if reserved < 0 else reserved
        yield done

    # 2. Remove the dead letters. 3. Remove the keys.
    done = replace(done, keys=len(keys))
    if keys:
        for _ in purge_letters(set(keys.values())):
            yield done
        for _ in log.replacing(KEYS, (rows.without(is_gone) for rows in _key_slices(log))):
            yield done
    keys.clear()

    # 4. Remove node features at once: nothing replays them.
    for _ in pruning(log, is_gone):
        yield done

    # 5. List the segments before the loop: sealing adds one, which has no deleted rows.
    done = replace(done, total=len(log.state.segments))
    for first in [s.first_edge for s in log.state.segments]:
        state = next(s for s in log.state.segments if s.first_edge == first)
        dead_E, dead_L, left = _dead(log, reader, state, reserved, before_event)
        done = replace(done, waiting=done.waiting + left, passed=done.passed + 1)

        # Rewrite the segment without deleted rows, no larger than its rows.
        if dead_E.any() or dead_L.any():
            if log.state.last is not None and first == log.state.last.first_edge:
                log.seal()
            reserved = _reserve(log) if reserved < 0 else reserved
            smaller = replace(state, capacity=max(state.num_edges, 1))
            log.replace_segment(
                smaller, functools.partial(_copy, log, state, dead_E, dead_L, reserved)
            )
            done = replace(done, segments=done.segments + 1, edges=done.edges + int(dead_E.sum()))
        yield done
    reader.refresh()
    yield done


def _key_slices(log: LogWriter) -> Iterator[KeySlice]:
    """Read all committed rows of the log's keys, slice by slice."""
    return key_slices(log.data_dir / KEYS, lambda: log.state.files.get(KEYS, NOTHING).num_bytes)


def _dead(
    log: LogWriter, reader: LogReader, state: SegmentState, reserved: int, before_event: int
) -> tuple[Bools, Bools, int]:
    """Mark the edges and labels to overwrite: bool[num_edges], bool[num_labels]. Returns also the
    number of deleted rows that have to wait."""
    files = SegmentFiles(log.data_dir / state.path, state, log.schema)
    src, dst, _ = files.edges(0, state.num_edges)
    dead_E = reader.deletions.hides(state.first_edge, src, dst) & (src != reserved)
    dead_L = np.zeros(0, np.bool_)
    if state.num_labels:
        label_node = files.label_columns(state.num_labels)[0]
        dead_L = reader.deletions.is_gone(label_node) & (label_node != reserved)

    # Leave rows that a role still replays, and labels of a segment that cannot be sealed.
    since = max(before_event - state.first_edge, 0)
    left = int(dead_E[since:].sum())
    dead_E[since:] = False
    if not state.num_edges:
        left += int(dead_L.sum())
        dead_L = dead_L[:0]
    return dead_E, dead_L, left


def _copy(
    log: LogWriter, state: SegmentState, dead_E: Bools, dead_L: Bools, reserved: int, path: Path
) -> int:
    """Write the compacted copy of a segment at a path. Returns: the CRC32C of its rows."""
    old = SegmentFiles(log.data_dir / state.path, state, log.schema)
    schema = old.schema(log.schema)
    room = max(state.num_edges, 1), log.files.disk, max(state.num_labels, 1)
    with new_segment(path, schema, *room) as new:
        # Rows and times stay, and so event ids and order: only endpoints and features are
        # overwritten.
        rows = np.arange(state.num_edges)
        src, dst, time = old.edges(0, len(rows))
        msg = old.features(rows, schema)
        first_feature = schema.num_edge_sets if schema.num_edge_sets > 1 else 0
        msg[dead_E, first_feature:] = 0
        new.append_edges(
            np.where(dead_E, reserved, src), np.where(dead_E, reserved, dst), time, msg
        )
        if state.num_labels:
            node, when, target = old.label_columns(state.num_labels)
            new.append_labels(
                np.where(dead_L, reserved, node),
                when,
                np.where(dead_L[:, None], np.float32(0), target),
            )
        new.commit()
    return SegmentFiles(path, state, schema).rows_crc((0, state.num_edges), (0, state.num_labels))


def _reserve(log: LogWriter) -> int:
    """Allocate the node id that overwritten rows point to; only the first compaction does this."""
    node = log.num_nodes
    log.commit(replace(empty_batch(log.schema), new_keys=(None,)), log.progress, log.watermark)
    return node
