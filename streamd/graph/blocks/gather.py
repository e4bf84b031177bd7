"""Kernels that read the times and features of events by id, straight from the mapped segments."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streamd.eventlog.columns import ColumnArrays, EdgeColumns
from streamd.eventlog.layout import ROW_BITS, SET_SHIFT
from streamd.events import Bools, Float32, Int64
from streamd.graph.jit import compiled_for, inner
from streamd.graph.kernel_types import (
    ADDRESSES,
    FLAG,
    FLAGS,
    FLAGS_2D,
    INT,
    INTS,
    INTS_2D,
    WRITTEN_INTS,
    WRITTEN_ROWS,
    record,
    writes,
)

COLUMNS = record(
    ColumnArrays,
    WRITTEN_INTS,
    writes(np.uint64),
    WRITTEN_INTS,
    *[writes(np.uint64)] * 2,
    *[WRITTEN_INTS] * 3,
)


@intrinsic
def _int64_at(_: Any, address: Any) -> Any:
    """Load the int64 at an address."""

    def build(__: Any, builder: Any, ___: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(types.uint64), build


@intrinsic
def _floats_at(_: Any, address: Any) -> Any:
    """Make a pointer to float32 of an address."""

    def build(__: Any, builder: Any, ___: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.uint64), build


@inner
def segment_of(first: NDArray[Any], edge: int, near: int) -> Any:
    """The segment of an event; segment `near` is tried first."""
    # Consecutive queries are mostly for events in the same segment.
    if edge >= first[near] and (near + 1 == len(first) or edge < first[near + 1]):
        return near

    # Otherwise find the last segment that starts at or before the event.
    low, high = 0, len(first)
    while low < high:
        middle = (low + high) // 2
        if first[middle] <= edge:
            low = middle + 1
        else:
            high = middle
    return low - 1


@inner
def code_at(order: Any, row: Any) -> Any:
    """The position of an event in a segment of several sets: (index of the file in the segment, row
    in that file). order: uint64, address of the segment's array of positions. row: uint64, index of
    the event in the segment."""
    code = np.uint64(_int64_at(order + np.uint64(8) * row))
    return np.int64(code >> np.uint64(SET_SHIFT)), code & np.uint64(ROW_BITS)


@inner
def time_of(
    plain: bool,
    first: NDArray[Any],
    order: NDArray[Any],
    file: NDArray[Any],
    time: NDArray[Any],
    edge: int,
    near: int,
) -> Any:
    """Return (time of an event, its segment). plain: whether each segment is one file."""
    segment = segment_of(first, edge, near)
    row = np.uint64(edge - first[segment])
    at = segment
    if not plain:
        at = file[segment]
        if order[segment] != 0:
            number, row = code_at(order[segment], row)
            at += number
    return _int64_at(time[at] + np.uint64(8) * row), segment


# These kernels have arrays as separate arguments: with a named tuple, each call of an inner
# function would update the reference counts of all its arrays.


@compiled_for(INTS, ADDRESSES, INT, INTS, FLAGS, WRITTEN_INTS)
def gather_times(
    first: NDArray[Any],
    time: NDArray[Any],
    end: int,
    edge: NDArray[Any],
    mask: NDArray[Any],
    out: NDArray[Any],
) -> Any:
    """Write out[i] = time of event edge[i] if mask[i], else 0, for segments of one file each.
    Returns: False if an event is not in the log."""
    # Events [low, high) of the segment of the last query; empty at first.
    low = first[0]
    high = first[0]
    base = time[0]
    for i in range(len(edge)):
        out[i] = 0
        if mask[i]:
            if edge[i] < low or edge[i] >= high:
                if edge[i] < first[0] or edge[i] >= end:
                    return False
                segment = segment_of(first, edge[i], np.int64(0))
                low = first[segment]
                base = time[segment]
                high = first[segment + 1] if segment + 1 < len(first) else end
            out[i] = _int64_at(base + np.uint64(8) * np.uint64(edge[i] - low))
    return True


@compiled_for(COLUMNS, INT, INTS, FLAGS, WRITTEN_INTS)
def gather_set_times(
    c: ColumnArrays, end: int, edge: NDArray[Any], mask: NDArray[Any], out: NDArray[Any]
) -> Any:
    """As `gather_times`, for segments with a file for each set."""
    first, order, file, time = c.first, c.order, c.file, c.time
    segment = np.int64(0)
    for i in range(len(edge)):
        out[i] = 0
        if mask[i]:
            if edge[i] < first[0] or edge[i] >= end:
                return False
            out[i], segment = time_of(False, first, order, file, time, edge[i], segment)
    return True


@compiled_for(INTS, INTS, INTS, INTS_2D, FLAGS_2D, WRITTEN_INTS, WRITTEN_INTS, WRITTEN_INTS)
def next_roots(
    nodes: NDArray[Any],
    times: NDArray[Any],
    cutoff: NDArray[Any],
    neighbor: NDArray[Any],
    mask: NDArray[Any],
    to_nodes: NDArray[Any],
    to_times: NDArray[Any],
    to_cutoff: NDArray[Any],
) -> None:
    """Write the next hop's roots: the roots themselves, then their neighbors in row order, each at
    its root's time and cutoff."""
    # Neighbors are written after all roots.
    at = len(nodes)
    for r in range(len(nodes)):
        to_nodes[r], to_times[r], to_cutoff[r] = nodes[r], times[r], cutoff[r]
        for i in range(neighbor.shape[1]):
            if mask[r, i]:
                to_nodes[at], to_times[at], to_cutoff[at] = neighbor[r, i], times[r], cutoff[r]
                at += 1


@compiled_for(INTS, ADDRESSES, INT, INTS, FLAGS, WRITTEN_ROWS)
def gather_rows(
    first: NDArray[Any],
    msg: NDArray[Any],
    end: int,
    edge: NDArray[Any],
    mask: NDArray[Any],
    out: NDArray[Any],
) -> Any:
    """Write out[i] = features of event edge[i] if mask[i], else zeros, for segments of one file
    each, with all features. out: float32[n, dim]. Returns: False if an event is not in the log."""
    segment = np.int64(0)
    dim = out.shape[1]
    for i in range(len(edge)):
        if mask[i]:
            if edge[i] < first[0] or edge[i] >= end:
                return False
            segment = segment_of(first, edge[i], segment)
            row = carray(
                _floats_at(msg[segment] + np.uint64(4 * dim) * np.uint64(edge[i] - first[segment])),
                (dim,),
            )
            for d in range(dim):
                out[i, d] = row[d]
        else:
            for d in range(dim):
                out[i, d] = 0.0
    return True


@compiled_for(COLUMNS, INT, INTS, FLAGS, WRITTEN_ROWS)
def gather_set_rows(
    c: ColumnArrays, end: int, edge: NDArray[Any], mask: NDArray[Any], out: NDArray[Any]
) -> Any:
    """As `gather_rows`, for segments with a file for each set: a row has the one-hot of its set,
    and zeros in the columns of other sets and of features that were declared after its file."""
    first, order, file, msg = c.first, c.order, c.file, c.msg
    width_F, place_F, set_F = c.width, c.place, c.edge_set
    segment = np.int64(0)
    dim = out.shape[1]
    for i in range(len(edge)):
        for d in range(dim):
            out[i, d] = 0.0
        if mask[i]:
            if edge[i] < first[0] or edge[i] >= end:
                return False
            segment = segment_of(first, edge[i], segment)
            at = file[segment]
            place = np.uint64(edge[i] - first[segment])
            if order[segment] != 0:
                number, place = code_at(order[segment], place)
                at += number
            width = width_F[at]
            row = carray(_floats_at(msg[at] + np.uint64(4 * width) * place), (width,))
            for d in range(width):
                out[i, place_F[at] + d] = row[d]
            if set_F[at] >= 0:
                out[i, set_F[at]] = 1.0
    return True


@compiled_for(FLAG, INTS, ADDRESSES, INTS, ADDRESSES, INT, INT, INTS, WRITTEN_INTS)
def cutoffs(
    plain: bool,
    first: NDArray[Any],
    order: NDArray[Any],
    file: NDArray[Any],
    time: NDArray[Any],
    begin: int,
    end: int,
    query: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Write out[i] = first event id in [begin, end) at time query[i] or later, or end.

    The results of consecutive queries are close together, so the search first gallops from the last
    result in doubling steps, then bisects.
    """
    at = begin
    segment = np.int64(0)
    for i in range(len(query)):
        # Bracket the result, forwards or backwards from the last one.
        wanted = query[i]
        low, high = begin, end
        step = 1
        if at < end and at >= begin:
            here, segment = time_of(plain, first, order, file, time, at, segment)
            if here < wanted:
                low = at + 1
                while low + step < end:
                    there, segment = time_of(plain, first, order, file, time, low + step, segment)
                    if there >= wanted:
                        high = low + step
                        break
                    low += step + 1
                    step *= 2
            else:
                high = at
                while high - step >= begin:
                    there, segment = time_of(plain, first, order, file, time, high - step, segment)
                    if there < wanted:
                        low = high - step + 1
                        break
                    high -= step
                    step *= 2

        # Bisect the bracket.
        while low < high:
            middle = (low + high) // 2
            there, segment = time_of(plain, first, order, file, time, middle, segment)
            if there < wanted:
                low = middle + 1
            else:
                high = middle
        out[i] = at = low


def edge_features(
    columns: EdgeColumns, edge: Int64, mask: Bools, out: Float32 | None = None
) -> Float32:
    """Read the features of events: float32[..., dim].

    edge: int64[...] event ids. mask: bool[...], False for rows of zeros. out: array to write to,
    None for a new one. Raises: IndexError if an event is not in the log.
    """
    if out is None:
        out = np.empty((*edge.shape, columns.dim), np.float32)

    # A log without segments has no rows: only padding is valid.
    if not columns.num_segments:
        _check(columns, not mask.any())
        out[:] = 0
    elif columns.dim:
        c = columns.arrays
        asked = edge.reshape(-1), mask.reshape(-1), out.reshape(-1, columns.dim)
        if columns.is_plain:
            inside = gather_rows(c.first, c.msg, columns.end, *asked)
        else:
            inside = gather_set_rows(c, columns.end, *asked)
        _check(columns, inside)
    return out


def edge_times(columns: EdgeColumns, edge: Int64, mask: Bools) -> Int64:
    """Read the times of events: int64[...] microseconds. edge: int64[...] event ids. mask:
    bool[...], False for 0. Raises: IndexError if an event is not in the log."""
    if not columns.num_segments:
        _check(columns, not mask.any())
        return np.zeros(edge.shape, np.int64)
    out = np.empty(edge.shape, np.int64)
    c = columns.arrays
    asked = edge.reshape(-1), mask.reshape(-1), out.reshape(-1)
    if columns.is_plain:
        inside = gather_times(c.first, c.time, columns.end, *asked)
    else:
        inside = gather_set_times(c, columns.end, *asked)
    _check(columns, inside)
    return out


def _check(columns: EdgeColumns, inside: bool) -> None:
    if not inside:
        raise IndexError(f"an event id is not in the log, whose next event is {columns.end}")


def edges_before(columns: EdgeColumns, time: Int64) -> Int64:
    """Id of the first event at or after each time: int64[...]. time: int64[...] microseconds."""
    out = np.full(time.shape, columns.end, np.int64)
    if columns.num_segments:
        c = columns.arrays
        arrays = columns.is_plain, c.first, c.order, c.file, c.time
        cutoffs(*arrays, int(c.first[0]), columns.end, time.reshape(-1), out.reshape(-1))
    return out
