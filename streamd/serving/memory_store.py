"""Stores the memory of the version that serves, so that a restart replays little of the log even if
one version serves for long."""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import structlog

from streamd.models import Memory
from streamd.models.memory.files import MemoryFiles
from streamd.roles import MEMORY
from streamd.storage import ImmutableFile, write_durably

logger = structlog.get_logger()
INDEX = "memory.json"
"""File in the memory's folder that names its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMemory:
    """The stored memory of a version: its cut (`edge`), the time of the last event before the cut
    in microseconds, and name and CRC32C of each file, in order. feature_dim: width of the edge
    features in its messages, None if an older release wrote it."""

    version: str
    edge: int
    now_us: int
    files: tuple[tuple[str, str], ...]
    feature_dim: int | None = None


class MemoryStore:
    """Stores the memory of the version that serves. Owner: the server's graph, which calls `store`
    from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """folder: of the role."""
        self._folder = folder / MEMORY
        self._files = MemoryFiles(self._folder)

    def store(self, version: str, memory: Memory) -> StoredMemory:
        """Store a version's memory durably, writing only what changed since the last call. Raises:
        OSError.

        1. Write the new files.
        2. Replace the index, which then names them. A crash before this leaves the old index with
           all of its files.
        3. Remove the files that the index no longer names: any earlier, and a crash would leave an
           index of missing files.

        memory: a copy that does not change meanwhile.
        """
        # 1. Write.
        files = self._files.store(memory)
        stored = StoredMemory(
            version=version,
            edge=memory.edge,
            now_us=memory.now_us,
            files=tuple((file.path.name, file.checksum) for file in files),
            feature_dim=memory.pending_features.shape[1],
        )
        # 2. Replace the index.
        write_durably(self._folder / INDEX, msgspec.json.encode(asdict(stored)))
        # 3. Remove old files.
        self._files.sweep()
        return stored

    def stored(self) -> StoredMemory | None:
        """Read the index of the stored memory; None if there is none or it is damaged, which is
        logged."""
        path = self._folder / INDEX
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredMemory)
        except FileNotFoundError:
            # The first start, or memory was not stored yet.
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            logger.error(
                "stored_memory_unreadable",
                file=str(path),
                error=str(error),
                meaning="ignored; the memory is replayed from the version's own event id",
            )
            return None

    def files_of(self, stored: StoredMemory) -> list[ImmutableFile]:
        """The files of a stored memory."""
        # Only the names in the index count, not any folders in them.
        return [ImmutableFile(self._folder / Path(name).name, crc) for name, crc in stored.files]

    def forget(self) -> None:
        """Remove the stored memory, which may contain deleted data."""
        (self._folder / INDEX).unlink(missing_ok=True)
        for path in self._folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        self._files = MemoryFiles(self._folder)
