"""Where the mapped columns of the log's edges lie in memory, so that kernels read rows by edge id
across segments."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.events import Float32, Int64


@dataclass(frozen=True)
class EdgeColumns:
    """S segments in order. first_S: int64 id of the first edge of each; time_S, msg_S: uint64
    addresses of their columns, int64 microseconds and float32[dim] a row; held: what keeps the
    memory mapped while this object lives."""

    first_S: Int64
    time_S: NDArray[np.uint64]
    msg_S: NDArray[np.uint64]
    end: int
    dim: int
    held: tuple[object, ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Int64, Float32]], end: int, dim: int) -> "EdgeColumns":
        """parts: (first edge id, times, features) of each segment, contiguous; end: one past the
        newest edge."""
        first = np.array([p[0] for p in parts], np.int64)
        address = [(p[1].ctypes.data, p[2].ctypes.data) for p in parts]
        both = np.array(address, np.uint64).reshape(len(parts), 2)
        return cls(
            first, both[:, 0].copy(), both[:, 1].copy(), end, dim, tuple(p[1:] for p in parts)
        )
