"""The server stores the memory of the version that serves, so that a restart replays little of the
log even where one version serves for long."""

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from streamd.errors import CorruptionError, VersionError
from streamd.models import Memory
from streamd.roles import MEMORY
from streamd.storage import write_durably
from streamd.tensors import pack, unpack

logger = structlog.get_logger()


@dataclass(frozen=True)
class StoredMemory:
    """The memory of a version, as of the event `memory.edge`."""

    version: str
    memory: Memory


def store_memory(folder: Path, version: str, memory: Memory) -> None:
    """Write a version's memory durably, in place of the one before.

    folder: of the role. memory: a copy that nobody changes meanwhile.
    """
    path = folder / MEMORY
    metadata = {"version": version, "edge": str(memory.edge), "now_us": str(memory.now_us)}
    write_durably(path, pack({n: t.cpu().numpy() for n, t in memory.tensors().items()}, **metadata))


def stored_memory(folder: Path) -> StoredMemory | None:
    """Read the memory that was stored last; None where there is none that can be read."""
    path = folder / MEMORY
    try:
        arrays, metadata = unpack(path)
        tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
        return StoredMemory(
            metadata["version"],
            Memory.restored(tensors, int(metadata["edge"]), int(metadata["now_us"])),
        )
    except FileNotFoundError:
        # A first start, or a restart soon after one.
        return None
    except (CorruptionError, VersionError, KeyError, ValueError, IndexError) as error:
        logger.error(
            "memory_not_taken",
            file=str(path),
            error=str(error),
            meaning="it is replayed from the version's place",
        )
        return None


def forget_memory(folder: Path) -> None:
    """Remove the stored memory, which may hold what was deleted."""
    (folder / MEMORY).unlink(missing_ok=True)
