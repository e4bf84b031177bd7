"""The server stores the memory of the version that serves, so that a restart replays little of the
log even where one version serves for long."""

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
"""File in the folder of the memory that names its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMemory:
    """The memory of a version as it was stored: its cut, the time of the last event before it in
    microseconds, and name and CRC32C of each file, in order. feature_dim: width of its messages'
    edge features, None where an older release did not say."""

    version: str
    edge: int
    now_us: int
    files: tuple[tuple[str, str], ...]
    feature_dim: int | None = None


class MemoryStore:
    """Stores and names the memory of the version that serves. Owner: the server's graph, which
    calls `store` from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """folder: of the role."""
        self._folder = folder / MEMORY
        self._files = MemoryFiles(self._folder)

    def store(self, version: str, memory: Memory) -> StoredMemory:
        """Write what of a version's memory changed since the last call, durably. Raises: OSError.

        memory: a copy that nobody changes meanwhile.
        """
        files = self._files.store(memory)
        stored = StoredMemory(
            version=version,
            edge=memory.edge,
            now_us=memory.now_us,
            files=tuple((file.path.name, file.checksum) for file in files),
            feature_dim=memory.pending_features.shape[1],
        )
        write_durably(self._folder / INDEX, msgspec.json.encode(asdict(stored)))
        self._files.sweep()
        return stored

    def stored(self) -> StoredMemory | None:
        """Read what was stored last; None where there is nothing that can be read."""
        path = self._folder / INDEX
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredMemory)
        except FileNotFoundError:
            # A first start, or a restart soon after one.
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            logger.error(
                "memory_not_taken",
                file=str(path),
                error=str(error),
                meaning="it is replayed from the version's place",
            )
            return None

    def files_of(self, stored: StoredMemory) -> list[ImmutableFile]:
        """The files of a stored memory."""
        # Only names, whatever the index says.
        return [ImmutableFile(self._folder / Path(name).name, crc) for name, crc in stored.files]

    def forget(self) -> None:
        """Remove the stored memory, which may hold what was deleted."""
        (self._folder / INDEX).unlink(missing_ok=True)
        for path in self._folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        self._files = MemoryFiles(self._folder)
