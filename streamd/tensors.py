"""Stores arrays as safetensors files with a format number and a checksum in their metadata; nothing
is unpickled."""

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from streamd.errors import CorruptionError
from streamd.events import EDGE_SETS
from streamd.storage import DISK, Disk

FORMAT = 4
"""Format of what roles and registry store: facts, memory, checkpoints, manifests. It rises when an
older streamd could no longer read them rightly."""
NAME = "streamd"
"""The one key of the file's own metadata, under which ours is JSON: of several keys safetensors
shuffles the order, and equal arrays must give equal bytes."""
Arrays = Mapping[str, NDArray[Any]]


def pack(arrays: Arrays, **more: str) -> bytes:
    """Encode arrays as a file's bytes, which are the same for the same arrays.

    more: further metadata, which `unpack` returns.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {
        "format": str(FORMAT),
        "sets": ",".join(EDGE_SETS),
        "crc32c": _checksum(contiguous),
        **more,
    }
    return bytes(save(contiguous, {NAME: msgspec.json.encode(metadata).decode()}))


def unpack(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the arrays, which may be written to, and the metadata of a file that `pack` made.

    A file of an older release has no metadata. Raises: FileNotFoundError; CorruptionError where the
    file is damaged, was not made by `pack`, or has a newer format.
    """
    # Read the file; whatever it holds instead of tensors is damage.
    try:
        with safe_open(path, "np") as file:
            outer = file.metadata() or {}
            metadata = (
                msgspec.json.decode(outer[NAME], type=dict[str, str])
                if NAME in outer
                else dict(outer)
            )
            # The file is not a dict: it cannot be iterated over.
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, msgspec.DecodeError, OSError, ValueError, TypeError) as error:
        raise CorruptionError(
            f"{path} is damaged: {error}.", "restore it from a backup, or remove it."
        ) from None

    # Refuse what a newer release wrote, and arrays that changed since they were written.
    if not metadata.get("format", "0").isdigit() or int(metadata.get("format", "0")) > FORMAT:
        raise CorruptionError(
            f"{path} has format {metadata['format']}, this streamd reads up to {FORMAT}.",
            "use the streamd that wrote it.",
        )
    if metadata.get("sets", EDGE_SETS[0]) != ",".join(EDGE_SETS):
        raise CorruptionError(
            f"{path} is of edge sets {metadata['sets']}; this streamd knows {EDGE_SETS[0]} only.",
            "use the streamd that wrote it.",
        )
    if "crc32c" in metadata and metadata["crc32c"] != _checksum(arrays):
        raise CorruptionError(
            f"{path} differs from its checksum.", "restore it from a backup, or remove it."
        )
    return arrays, metadata


class Column(NamedTuple):
    """An array that is written piece by piece, in order of its first dimension."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]


DTYPES = {"<f4": "F32", "<i8": "I64"}
"""Names of safetensors for the dtypes that are written in pieces."""


def write_columns(
    path: Path, columns: Mapping[str, Column], disk: Disk = DISK, **metadata: str
) -> str:
    """Write arrays as a new safetensors file, piece by piece, and make its bytes durable.

    The library would hold all of the file in memory. A write that fails leaves no file.
    Returns: the file's CRC32C in hex. Raises: OSError.
    """
    # The header: 8 bytes of its length, then JSON, padded to 8 bytes by spaces.
    known = {"format": str(FORMAT), "sets": ",".join(EDGE_SETS)}
    header: dict[str, Any] = {"__metadata__": known | metadata}
    end = 0
    for name, column in columns.items():
        begin, end = end, end + column.dtype.itemsize * int(np.prod(column.shape, dtype=np.int64))
        dtype = DTYPES[column.dtype.str]
        header[name] = {"dtype": dtype, "shape": column.shape, "data_offsets": [begin, end]}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)

    # The bytes, and their checksum on the way.
    data = struct.pack("<Q", len(text)) + text
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        disk.write(fd, data, 0)
        crc = crc32c(data)
        at = len(data)
        for column in columns.values():
            for piece in column.pieces:
                raw = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                disk.write(fd, raw, at)
                crc = crc32c(raw, crc)
                at += len(raw)
        assert at == len(data) + end, "the pieces are not of the shape"
        disk.sync(fd)
    except BaseException:
        disk.close(fd)
        disk.unlink(path)
        raise
    disk.close(fd)
    return f"{crc:08x}"


def _checksum(arrays: Arrays) -> str:
    """CRC32C of the arrays' names, types, shapes and bytes."""
    # In order of names, so that the order in the file does not matter.
    crc = 0
    for name in sorted(arrays):
        array = arrays[name]
        crc = crc32c(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = crc32c(array.reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"


def file_checksum(path: Path) -> str:
    """CRC32C of a file's bytes."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            crc = crc32c(piece, crc)
    return f"{crc:08x}"
