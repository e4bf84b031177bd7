"""The checkpoint marker of a trainer's directory: the stored checkpoints from which its state
continues.

`train/stored.json` names the checkpoints that this trainer stored, or took, last. A trainer resumes
from its own directory if the topic's newest checkpoint is among them: then no other trainer has
trained since. A follower that writes into the directory removes the marker first, because versions
and history no longer are those of the trainer's checkpoint then.
"""

from pathlib import Path

import msgspec
import structlog

from streamd.storage import DISK, Disk, write_durably

logger = structlog.get_logger()
MARKER = "train/stored.json"
"""Path in the data directory."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in the store, and how much of the directory it contains.

    name: of its object. num_moves: of the registry's journal. history_bytes: of the history.
    versions: name -> CRC32C of the manifest.
    """

    name: str
    num_moves: int = 0
    history_bytes: int = 0
    versions: dict[str, int] = {}


NOTHING = Stored(name="")


def read_marker(data_dir: Path) -> list[Stored]:
    """Read the marker, oldest entry first. Returns: no entry if the marker is missing or damaged;
    then the trainer takes the newest checkpoint of the store."""
    try:
        return msgspec.json.decode((data_dir / MARKER).read_bytes(), type=list[Stored])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        logger.error("checkpoint_marker_damaged", path=str(data_dir / MARKER), error=str(error))
        return []


def write_marker(data_dir: Path, entries: list[Stored], disk: Disk = DISK) -> None:
    """Write a marker durably. Raises: OSError."""
    (data_dir / MARKER).parent.mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / MARKER, msgspec.json.encode(entries), disk)


def remove_marker(data_dir: Path, disk: Disk = DISK) -> None:
    """Remove the marker durably, if there is one. Raises: OSError."""
    if (data_dir / MARKER).exists():
        disk.unlink(data_dir / MARKER)
        disk.sync_folder((data_dir / MARKER).parent)
