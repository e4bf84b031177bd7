"""Types of kernels' arguments, for the one signature that each kernel declares.

Arrays that a kernel only reads are declared read-only, since those of the mapped log are; numba
accepts writable arrays for them too. All arrays are contiguous.
"""

from typing import Any

import numpy as np
from numba import from_dtype, types
from numpy.typing import DTypeLike

INT = types.int64
FLAG = types.boolean


def reads(dtype: DTypeLike, num_dims: int = 1) -> types.Array:
    """An array that a kernel only reads."""
    return types.Array(from_dtype(np.dtype(dtype)), num_dims, "C", readonly=True)


def writes(dtype: DTypeLike, num_dims: int = 1) -> types.Array:
    """An array that a kernel writes to."""
    return types.Array(from_dtype(np.dtype(dtype)), num_dims, "C")


def record(of: type, *fields: Any) -> Any:
    """A named tuple whose fields have exactly these types."""
    return types.BaseTuple.from_types(fields, of)


INTS = reads(np.int64)
INTS_2D = reads(np.int64, 2)
FLAGS = reads(np.bool_)
FLAGS_2D = reads(np.bool_, 2)
ADDRESSES = reads(np.uint64)
WRITTEN_INTS = writes(np.int64)
WRITTEN_FLAGS = writes(np.bool_)
WRITTEN_ROWS = writes(np.float32, 2)
WRITTEN_FACTS = writes(np.float32, 3)
