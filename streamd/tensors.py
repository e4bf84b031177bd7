"""Stores arrays as safetensors files with a format number and a checksum in their metadata, without
pickle."""

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
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
from streamd.storage import DISK, Disk, replace_durably

FORMAT = 4
"""Format of the files of roles and registry: facts, memory, checkpoints, manifests. It is raised
with each change that older releases would misread."""
NAME = "streamd"
"""The only key of the file's metadata; its value is our metadata as JSON. safetensors writes
several keys in random order, but equal arrays must give equal bytes."""
Arrays = Mapping[str, NDArray[Any]]
Allocate = Callable[[str, "np.dtype[Any]", tuple[int, ...]], NDArray[Any]]
"""(name, dtype, shape) -> the array to read into."""
DTYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I32": "<i4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
}
"""Type names of safetensors -> numpy's."""
TYPE_NAMES = {numpy_name: name for name, numpy_name in DTYPES.items()}
PIECE_BYTES = 2**20
"""Bytes per read: the library holds the GIL while it copies them."""


def pack(arrays: Arrays, **more: str) -> bytes:
    """Encode arrays as the bytes of a file; equal arrays give equal bytes.

    more: further metadata, returned by `unpack`.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save(contiguous, {NAME: _metadata(contiguous, more)}))


def write_arrays(
    path: Path, arrays: Arrays, disk: Disk = DISK, more: Mapping[str, str] | None = None
) -> None:
    """Write contiguous arrays durably to a file for `unpack`, without copying them, so that other
    threads are hardly delayed. more: as in `pack`. Raises: OSError."""
    # Arrays with large elements first, so that all are aligned.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header = _header({NAME: _metadata(arrays, more or {})}, dict(ordered))

    # Write the header, then one array after the other.
    with replace_durably(path, disk) as scratch:
        fd = disk.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            at = len(header)
            disk.write(fd, header, 0)
            for _, array in ordered:
                disk.write(fd, _bytes_of(array), at)
                at += array.nbytes
            disk.sync(fd)
        finally:
            disk.close(fd)


def _metadata(arrays: Arrays, more: Mapping[str, str]) -> str:
    metadata = {
        "format": str(FORMAT),
        "sets": ",".join(EDGE_SETS),
        "crc32c": _checksum(arrays),
        **more,
    }
    return msgspec.json.encode(metadata).decode()


def unpack(
    path: Path, allocate: Allocate | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the arrays, which are writable, and the metadata of a file of `pack` or `write_arrays`.

    allocate: returns the array to read each array into, piece by piece, so that other threads can
    run meanwhile. A file of an older release has no metadata.
    Raises: FileNotFoundError; CorruptionError if the file is damaged, has no tensors, or has a
    newer format.
    """
    # Read the file; any other contents than tensors count as damage.
    try:
        with safe_open(path, "np") as file:
            metadata = _metadata_in(file)
            # `file` cannot be iterated over like a dict.
            names = list(file.keys())
            if allocate is None:
                arrays = {name: file.get_tensor(name) for name in names}
            else:
                arrays = {name: _read(file, name, allocate) for name in names}
    except FileNotFoundError:
        raise
    except (
        SafetensorError,
        msgspec.DecodeError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
    ) as error:
        raise CorruptionError(
            f"{path} is damaged: {error}.", "restore it from a backup, or remove it."
        ) from None

    _check(path, arrays, metadata)
    return arrays, metadata


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Memory-map the arrays of a file of `write_arrays`: they use only the page cache.

    Writes to an array are private to this process. All bytes are read once, for the checksum.
    Raises: as `unpack`.
    """
    metadata = metadata_of(path)
    try:
        # Mode "c" is copy-on-write: writes stay in this process.
        whole = np.memmap(path, np.uint8, "c").view(np.ndarray)
        (length,) = struct.unpack("<Q", whole[:8].tobytes())
        header = msgspec.json.decode(whole[8 : 8 + length].tobytes())
        arrays = {}
        for name, entry in header.items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                rows = whole[8 + length + first : 8 + length + end].view(DTYPES[entry["dtype"]])
                arrays[name] = rows.reshape(entry["shape"])
    except (msgspec.DecodeError, struct.error, OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptionError(f"{path} is damaged: {error}.", "remove it.") from None
    _check(path, arrays, metadata)
    return arrays


def _check(path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Check the format, the edge sets and the checksum. Raises: CorruptionError."""
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


class Column(NamedTuple):
    """An array to write piece by piece, along its first dimension."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]


def metadata_of(path: Path) -> dict[str, str]:
    """Read the metadata of a file of `pack` or `write_arrays`, without its arrays. Raises:
    FileNotFoundError, CorruptionError."""
    try:
        with safe_open(path, "np") as file:
            return _metadata_in(file)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise CorruptionError(f"{path} is damaged: {error}.", "remove it.") from error


def _metadata_in(file: Any) -> dict[str, str]:
    outer: dict[str, str] = dict(file.metadata() or {})
    return msgspec.json.decode(outer[NAME], type=dict[str, str]) if NAME in outer else outer


def write_columns(
    path: Path, columns: Mapping[str, Column], disk: Disk = DISK, **metadata: str
) -> str:
    """Write arrays as a new safetensors file, piece by piece, and make its bytes durable.

    The safetensors library would need the whole file in memory. A failed write leaves no file.
    Returns: the file's CRC32C in hex. Raises: OSError.
    """
    known = {"format": str(FORMAT), "sets": ",".join(EDGE_SETS)}
    header = _header(known | metadata, columns)

    # Write the bytes, and compute their checksum.
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        disk.write(fd, header, 0)
        crc = crc32c(header)
        at = len(header)
        for column in columns.values():
            for piece in column.pieces:
                raw = _bytes_of(np.ascontiguousarray(piece))
                disk.write(fd, raw, at)
                crc = crc32c(raw, crc)
                at += len(raw)
        disk.sync(fd)
    except BaseException:
        disk.close(fd)
        disk.unlink(path)
        raise
    disk.close(fd)
    return f"{crc:08x}"


def _header(metadata: Mapping[str, str], arrays: Mapping[str, NDArray[Any] | Column]) -> bytes:
    """The header of a safetensors file: 8 bytes with the length of the JSON after them, and the
    JSON, padded by spaces to a multiple of 8 bytes. arrays: in the order of their bytes in the
    file."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        begin = end
        end += array.dtype.itemsize * math.prod(array.shape)
        dtype = TYPE_NAMES[array.dtype.str]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _read(file: Any, name: str, allocate: Allocate) -> NDArray[Any]:
    """Read an array piece by piece."""
    rows = file.get_slice(name)
    shape = tuple(rows.get_shape())
    array = allocate(name, np.dtype(DTYPES[rows.get_dtype()]), shape)
    # Scalars and empty arrays have no rows to slice.
    if not shape or not array.size:
        array[...] = file.get_tensor(name)
        return array
    step = max(1, PIECE_BYTES * shape[0] // array.nbytes)
    for at in range(0, shape[0], step):
        end = min(at + step, shape[0])
        array[at:end] = rows[at:end]
    return array


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _checksum(arrays: Arrays) -> str:
    """CRC32C of the arrays' names, types, shapes and bytes."""
    # Sorted by name, so that the order in the file has no effect.
    crc = 0
    for name in sorted(arrays):
        array = arrays[name]
        crc = crc32c(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = crc32c(_bytes_of(array), crc)
    return f"{crc:08x}"


def file_checksum(path: Path) -> str:
    """CRC32C of a file's bytes."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            crc = crc32c(piece, crc)
    return f"{crc:08x}"
