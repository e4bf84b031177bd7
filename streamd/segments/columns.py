"""Memory addresses of the log's mapped edge columns, by which kernels read rows by event id across
segments."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.events import Float32, Int64


@dataclass(frozen=True)
class EdgeColumns:
    """The time and feature columns of S segments, in order of event ids.

    first_S: int64, event id of each segment's first edge. time_S, msg_S: uint64 addresses of the
    columns, int64 microseconds and float32[dim] a row. end: one past the newest event id. held: the
    arrays, which keep the memory mapped while this object lives.
    """

    first_S: Int64
    time_S: NDArray[np.uint64]
    msg_S: NDArray[np.uint64]
    end: int
    dim: int
    held: tuple[object, ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Int64, Float32]], end: int, dim: int) -> "EdgeColumns":
        """Take the addresses of mapped columns.

        parts: (first event id, times, features) of each segment, the arrays contiguous. end: one
        past the newest event id.
        """
        first = np.array([p[0] for p in parts], np.int64)
        address = [(p[1].ctypes.data, p[2].ctypes.data) for p in parts]
        both = np.array(address, np.uint64).reshape(len(parts), 2)
        return cls(
            first, both[:, 0].copy(), both[:, 1].copy(), end, dim, tuple(p[1:] for p in parts)
        )
