"""Tensors in files of ours: safetensors with a format number and a checksum in its metadata.
Nothing is unpickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from streamd.errors import CorruptionError
from streamd.events import EDGE_SETS

FORMAT = 3
"""Format of what roles and registry store: facts, memory, checkpoints, manifests. It rises when an
older streamd could no longer read them rightly."""
NAME = "streamd"
Arrays = Mapping[str, NDArray[Any]]


def pack(arrays: Arrays, **told: str) -> bytes:
    """A file's bytes, the same for the same arrays. told: further metadata.

    All metadata stand under one name: of several, safetensors shuffles the order.
    """
    held = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {
        "format": str(FORMAT),
        "sets": ",".join(EDGE_SETS),
        "crc32c": _checksum(held),
        **told,
    }
    return bytes(save(held, {NAME: msgspec.json.encode(metadata).decode()}))


def unpack(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays, which may be written to, and metadata of a file that `pack` made; one of an older
    release has none.

    Raises: FileNotFoundError; CorruptionError where it is damaged, no file of ours, or of a newer
    format.
    """
    try:
        with safe_open(path, "np") as file:
            found = file.metadata() or {}
            told = (
                msgspec.json.decode(found[NAME], type=dict[str, str])
                if NAME in found
                else dict(found)
            )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise
    except (SafetensorError, msgspec.DecodeError, OSError, ValueError, TypeError) as error:
        raise CorruptionError(
            f"{path} is damaged: {error}.", "restore it from a backup, or remove it."
        ) from None
    if not told.get("format", "0").isdigit() or int(told.get("format", "0")) > FORMAT:
        raise CorruptionError(
            f"{path} has format {told['format']}, this streamd reads up to {FORMAT}.",
            "use the streamd that wrote it.",
        )
    if told.get("sets", EDGE_SETS[0]) != ",".join(EDGE_SETS):
        raise CorruptionError(
            f"{path} is of edge sets {told['sets']}; this streamd knows {EDGE_SETS[0]} only.",
            "use the streamd that wrote it.",
        )
    if "crc32c" in told and told["crc32c"] != _checksum(arrays):
        raise CorruptionError(
            f"{path} differs from its checksum.", "restore it from a backup, or remove it."
        )
    return arrays, told


def _checksum(arrays: Arrays) -> str:
    """CRC32C of names, types, shapes and bytes, by name."""
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
