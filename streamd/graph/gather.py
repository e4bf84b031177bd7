"""Kernels that read the times and features of events by id, straight from the mapped segments."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streamd.events import Bools, Float32, Int64
from streamd.graph.jit import inner, kernel
from streamd.segments.columns import ColumnArrays, EdgeColumns
from streamd.segments.layout import ROW_BITS, SET_SHIFT


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
    """Return the segment that an event lies in; segment `near` is tried first."""
    # Events that are asked for one after the other mostly lie in the same segment.
    if edge >= first[near] and (near + 1 == len(first) or edge < first[near + 1]):
        return near

    # Else the last segment that begins at the event or before it.
    low, high = 0, len(first)
    while low < high:
        middle = (low + high) // 2
        if first[middle] <= edge:
            low = middle + 1
        else:
            high = middle
    return low - 1


@inner
def place_of(c: ColumnArrays, edge: int, segment: int) -> Any:
    """Return (file, row in it) of an event of a segment."""
    row = edge - c.first[segment]
    file = c.file[segment]
    if c.order[segment] != 0:
        code = _int64_at(c.order[segment] + np.uint64(8) * np.uint64(row))
        file += code >> SET_SHIFT
        row = code & ROW_BITS
    return file, row


@inner
def time_of(c: ColumnArrays, edge: int, near: int) -> Any:
    """Return (time of an event, its segment)."""
    segment = segment_of(c.first, edge, near)
    file, row = place_of(c, edge, segment)
    return _int64_at(c.time[file] + np.uint64(8) * np.uint64(row)), segment


@kernel
def gather_times(
    c: ColumnArrays, end: int, edge: NDArray[Any], mask: NDArray[Any], out: NDArray[Any]
) -> Any:
    """Write out[i] = time of event edge[i] where mask[i], else 0. Returns: False where an event is
    not in the log."""
    # The segment of the event before, [low, high); none at first.
    low = c.first[0]
    high = c.first[0]
    segment = np.int64(0)
    for i in range(len(edge)):
        out[i] = 0
        if mask[i]:
            if edge[i] < low or edge[i] >= high:
                if edge[i] < c.first[0] or edge[i] >= end:
                    return False
                segment = segment_of(c.first, edge[i], np.int64(0))
                low = c.first[segment]
                high = c.first[segment + 1] if segment + 1 < len(c.first) else end
            file, row = place_of(c, edge[i], segment)
            out[i] = _int64_at(c.time[file] + np.uint64(8) * np.uint64(row))
    return True


@kernel
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
    """Write the next hop's roots: the roots themselves, then their neighbours in row order, each at
    its root's time and cutoff."""
    # Neighbours are written behind all roots.
    at = len(nodes)
    for r in range(len(nodes)):
        to_nodes[r], to_times[r], to_cutoff[r] = nodes[r], times[r], cutoff[r]
        for i in range(neighbor.shape[1]):
            if mask[r, i]:
                to_nodes[at], to_times[at], to_cutoff[at] = neighbor[r, i], times[r], cutoff[r]
                at += 1


@kernel
def gather_rows(
    c: ColumnArrays, end: int, edge: NDArray[Any], mask: NDArray[Any], out: NDArray[Any]
) -> Any:
    """Write out[i] = row of features of event edge[i] where mask[i], else zeros. out: float32[n,
    dim]. Returns: False where an event is not in the log."""
    segment = np.int64(0)
    dim = out.shape[1]
    for i in range(len(edge)):
        filled = 0
        if mask[i]:
            if edge[i] < c.first[0] or edge[i] >= end:
                return False
            segment = segment_of(c.first, edge[i], segment)
            file, at = place_of(c, edge[i], segment)
            width = c.width[file]
            start = c.place[file]
            row = carray(_floats_at(c.msg[file] + np.uint64(4 * width) * np.uint64(at)), (width,))

            # Places of other sets, and features that a file is too old for, are zero.
            for d in range(start):
                out[i, d] = 0.0
            for d in range(width):
                out[i, start + d] = row[d]
            if c.edge_set[file] >= 0:
                out[i, c.edge_set[file]] = 1.0
            filled = start + width
        for d in range(filled, dim):
            out[i, d] = 0.0
    return True


@kernel
def cutoffs(
    c: ColumnArrays,
    begin: int,
    end: int,
    query: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Write out[i] = first event id in [begin, end) whose time is not before query[i].

    Neighbouring queries have answers near one another, so the search goes in doubling steps from
    the last answer, and then halves.
    """
    at = begin
    segment = np.int64(0)
    for i in range(len(query)):
        # Bracket the answer, forwards or backwards from the last one.
        wanted = query[i]
        low, high = begin, end
        step = 1
        if at < end and at >= begin:
            here, segment = time_of(c, at, segment)
            if here < wanted:
                low = at + 1
                while low + step < end:
                    there, segment = time_of(c, low + step, segment)
                    if there >= wanted:
                        high = low + step
                        break
                    low += step + 1
                    step *= 2
            else:
                high = at
                while high - step >= begin:
                    there, segment = time_of(c, high - step, segment)
                    if there < wanted:
                        low = high - step + 1
                        break
                    high -= step
                    step *= 2

        # Halve the bracket.
        while low < high:
            middle = (low + high) // 2
            there, segment = time_of(c, middle, segment)
            if there < wanted:
                low = middle + 1
            else:
                high = middle
        out[i] = at = low


def edge_features(
    columns: EdgeColumns, edge: Int64, mask: Bools, out: Float32 | None = None
) -> Float32:
    """Features of edges, float32[..., dim], zeros where not mask; into `out` where given.

    Raises: IndexError where an edge is not in the log.
    """
    if out is None:
        out = np.empty((*edge.shape, columns.dim), np.float32)

    # A log without segments has no rows: only padding can be asked for.
    if not columns.num_segments:
        _check(columns, not mask.any())
        out[:] = 0
    elif columns.dim:
        _check(
            columns,
            gather_rows(
                columns.arrays,
                columns.end,
                edge.reshape(-1),
                mask.reshape(-1),
                out.reshape(-1, columns.dim),
            ),
        )
    return out


def edge_times(columns: EdgeColumns, edge: Int64, mask: Bools) -> Int64:
    """Return the times of events, int64 microseconds, 0 where not mask. Raises: IndexError where an
    event is not in the log."""
    if not columns.num_segments:
        _check(columns, not mask.any())
        return np.zeros(edge.shape, np.int64)
    out = np.empty(edge.shape, np.int64)
    _check(
        columns,
        gather_times(
            columns.arrays,
            columns.end,
            edge.reshape(-1),
            mask.reshape(-1),
            out.reshape(-1),
        ),
    )
    return out


def _check(columns: EdgeColumns, inside: bool) -> None:
    if not inside:
        raise IndexError(f"an edge is not among those of the log, which end at {columns.end}")


def edges_before(columns: EdgeColumns, time: Int64) -> Int64:
    """Return for each time the id of the first event that is not before it: int64, same shape."""
    out = np.full(time.shape, columns.end, np.int64)
    if columns.num_segments:
        cutoffs(
            columns.arrays,
            int(columns.arrays.first[0]),
            columns.end,
            time.reshape(-1),
            out.reshape(-1),
        )
    return out
