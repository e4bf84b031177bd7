"""Checks values against their dtype, and encodes them as lists of a record."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.tfgnn.records.columns import KINDS
from streamd.tfgnn.records.kernels import BYTES, FLOAT, INT64, write_varints
from streamd.tfgnn.schema.schema import DataType

Array = NDArray[Any]


def reshape(flat: Array, shape: tuple[int | None, ...], location: str) -> Array:
    """Reshape values. Raises: TFGNNError if numpy allows no array of this shape."""
    try:
        return flat.reshape([size or 0 for size in shape])
    except ValueError:
        # Only possible with a dim of 0: the number of values then does not bound the other dims.
        raise TFGNNError(f"{location}: no array has the shape {shape}.", "correct it.") from None


def convert(flat: Array, dtype: DataType, location: str) -> Array:
    """Convert values to a dtype. Raises: TFGNNError for an integer outside its range."""
    if flat.dtype == dtype.numpy:
        return flat
    if dtype.numpy == np.uint64 and flat.dtype == np.int64:
        # The same 64 bits.
        return flat.view(np.uint64)
    if (wrong := first_out_of_range(flat, dtype)) is not None:
        raise TFGNNError(f"{location} has {flat[wrong]}, which {dtype.name} does not hold.")
    with np.errstate(over="ignore", invalid="ignore"):
        return flat.astype(dtype.numpy)


def first_out_of_range(flat: Array, dtype: DataType) -> int | None:
    """The index of the first integer outside the range of `dtype`, None if there is none."""
    if dtype.wire != "int64" or flat.dtype == dtype.numpy or not len(flat):
        return None
    if dtype.numpy == np.uint64 and flat.dtype == np.int64:
        return None
    least, most = dtype.bounds
    if int(flat.min()) >= least and int(flat.max()) <= most:
        return None
    # Python integers compare exactly; numpy would convert them to a common dtype.
    return next(i for i, v in enumerate(flat.tolist()) if not least <= v <= most)


def values_list(flat: Array, dtype: DataType, location: str) -> bytes:
    """Encode the values of a feature. Raises: TFGNNError for values of another type."""
    kind = KINDS[dtype.wire]
    allowed = {BYTES: "OSU", FLOAT: "fiu", INT64: "iub"}[kind]
    if flat.dtype.kind not in allowed and flat.size:
        raise TFGNNError(f"{location} has values of {flat.dtype}, its dtype is {dtype.name}.")
    if kind == BYTES:
        return _bytes_list(flat.tolist(), location)
    if kind == INT64:
        # Integers keep their bits; integers outside the dtype's range are refused.
        if flat.dtype == np.uint64 and dtype.numpy == np.uint64:
            return int64_list(flat.view(np.int64))
        if flat.dtype == np.uint64 and flat.size and int(flat.max()) >= 2**63:
            raise TFGNNError(f"{location} has {flat.max()}, which {dtype.name} does not hold.")
        wide = flat.astype(np.int64, copy=False)
        if dtype.numpy == np.uint64 and flat.size and int(flat.min()) < 0:
            raise TFGNNError(f"{location} has {flat.min()}, which {dtype.name} does not hold.")
        if flat.dtype != dtype.numpy:
            convert(wide, dtype, location)
        return int64_list(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        payload = flat.astype("<f4", copy=False).tobytes()
    return _pack(b"\x12", payload)


def int64_list(values: Array) -> bytes:
    """Encode a feature of integers."""
    out = np.empty(10 * len(values), np.uint8)
    return _pack(b"\x1a", out[: write_varints(values, out)].tobytes())


def _pack(tag: bytes, payload: bytes) -> bytes:
    """Encode a feature: its list with one packed field, or with no field if there are no values."""
    # Protobuf writes no packed field for an empty list.
    if payload:
        payload = b"\n" + _varint(len(payload)) + payload
    return tag + _varint(len(payload)) + payload


def _bytes_list(values: list[Any], location: str) -> bytes:
    """Encode a feature of strings. Raises: TFGNNError for a value that is no string."""
    parts: list[bytes] = []
    for value in values:
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise TFGNNError(f"{location} has a {type(value).__name__}, its dtype is DT_STRING.")
        parts += (b"\n", _varint(len(value)), value)
    payload = b"".join(parts)
    return b"\n" + _varint(len(payload)) + payload


SMALL = [bytes((i,)) for i in range(128)]
"""Varints of one byte."""


def _varint(value: int) -> bytes:
    """Encode a number as a varint."""
    if value < 128:
        return SMALL[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_row(columns: list[tuple[str, DataType, Array]], location: str) -> bytes:
    """Encode a record of named flat values. Raises: TFGNNError."""
    return example(
        [(name, values_list(flat, dtype, f"{location}, {name!r}")) for name, dtype, flat in columns]
    )


def example(pieces: list[tuple[str, bytes]]) -> bytes:
    """Encode a record of keys and encoded features."""
    parts: list[bytes] = []
    for key, feature in pieces:
        name = key.encode()
        entry = b"".join((b"\n", _varint(len(name)), name, b"\x12", _varint(len(feature)), feature))
        parts += (b"\n", _varint(len(entry)), entry)
    features = b"".join(parts)
    return b"\n" + _varint(len(features)) + features
