"""Tensors as bytes after the JSON of a request or response: the extension `binary_tensor_data`.

They are little-endian and row-major, with nothing between them. Each element of BYTES has its
length in 4 bytes before it.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import HTTPException

JSON_LENGTH = "Inference-Header-Content-Length"
"""The header with the number of bytes of the body that are JSON."""
SIZE = "binary_data_size"
"""The parameter with the number of a tensor's bytes."""
DTYPES = {
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP32": "<f4",
    "BOOL": "?",
}
INTEGERS = tuple(name for name in DTYPES if "INT" in name)
PREFIX_BYTES = 4
"""Size of the length before each element of BYTES."""


def split(body: bytes, json_length: str | None) -> tuple[bytes, bytes]:
    """Split a body into its JSON and the bytes after it.

    json_length: value of the header JSON_LENGTH, None without the header. Raises: HTTPException if
    it is no length within the body.
    """
    if json_length is None:
        return body, b""
    # Bodies are shorter than nine digits of bytes, so a longer text is refused unparsed.
    if not re.fullmatch("[0-9]{1,9}", json_length) or int(json_length) > len(body):
        raise HTTPException(
            400, f"{JSON_LENGTH} is {json_length[:16]!r}, the body has {len(body)} bytes"
        )
    return body[: int(json_length)], body[int(json_length) :]


def take(name: str, size: object, rest: bytes) -> tuple[bytes, bytes]:
    """Split off the bytes of one input.

    name: of the input. size: its number of bytes by the request. rest: the bytes of this and later
    inputs. Returns: the input's bytes, and the bytes after them. Raises: HTTPException if `rest`
    has fewer.
    """
    if type(size) is not int or not 0 <= size <= len(rest):
        raise HTTPException(
            400,
            f"{name}: {SIZE} is {str(size)[:32]}, but {len(rest)} bytes are left after the JSON; "
            f"{JSON_LENGTH} must be the length of the JSON",
        )
    return rest[:size], rest[size:]


def decode(name: str, datatype: str, count: int, raw: bytes) -> list[Any]:
    """Decode the values of an input. count: number of values by its shape.

    Raises: HTTPException if the bytes are not that many values of the datatype.
    """
    if datatype == "BYTES":
        return _texts(name, count, raw)
    if datatype not in INTEGERS:
        raise HTTPException(
            400, f"{name}: {datatype} is not supported as bytes, only BYTES and integers are"
        )

    # Integers have a fixed size, so the number of bytes must fit the number of values.
    dtype = np.dtype(DTYPES[datatype])
    if len(raw) != count * dtype.itemsize:
        raise HTTPException(
            400,
            f"{name}: {count} values of {datatype} are {count * dtype.itemsize} bytes, "
            f"{SIZE} is {len(raw)}",
        )
    values: list[int] = np.frombuffer(raw, dtype).tolist()
    return values


def encode(datatype: str, values: Sequence[float]) -> bytes:
    """Encode an output's values as bytes."""
    return np.asarray(values, DTYPES[datatype]).tobytes()


def _texts(name: str, count: int, raw: bytes) -> list[str]:
    values: list[str] = []
    at = 0
    while at < len(raw):
        begin = at + PREFIX_BYTES
        end = begin + int.from_bytes(raw[at:begin], "little")
        # The length, or the element itself, may be cut off.
        if end > len(raw) or begin > len(raw):
            raise HTTPException(
                400, f"{name}: value {len(values)} ends after its tensor's {len(raw)} bytes"
            )
        try:
            values.append(raw[begin:end].decode())
        except UnicodeDecodeError:
            raise HTTPException(400, f"{name}: value {len(values)} is not UTF-8") from None
        at = end
    if len(values) != count:
        raise HTTPException(
            400, f"{name}: its bytes are {len(values)} values, its shape has {count}"
        )
    return values
