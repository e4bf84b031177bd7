"""The mark of a trainer's directory: the checkpoints in the store that what it learns goes on
from.

`train/stored.json` names those that this trainer stored or took last. A trainer that starts goes on
from its own directory where the newest checkpoint of all is among them: nobody has learned behind
that one since. A follower that writes into the directory removes the mark first, because versions
and history are no longer those of the trainer's checkpoint then.
"""

from pathlib import Path

import msgspec
import structlog

from streamd.storage import DISK, Disk, write_durably

logger = structlog.get_logger()
MARK = "train/stored.json"
"""Path in the data directory."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in the store, and what of the directory it has.

    name: of its object. num_moves: of the registry's journal. history_bytes: of the history.
    versions: name -> CRC32C of the manifest.
    """

    name: str
    num_moves: int = 0
    history_bytes: int = 0
    versions: dict[str, int] = {}


NOTHING = Stored(name="")


def read_mark(data_dir: Path) -> list[Stored]:
    """Read the mark, oldest entry first; none where there is no mark or it is damaged: the newest
    checkpoint of the store is taken then."""
    try:
        return msgspec.json.decode((data_dir / MARK).read_bytes(), type=list[Stored])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        logger.error("mark_damaged", path=str(data_dir / MARK), error=str(error))
        return []


def write_mark(data_dir: Path, entries: list[Stored], disk: Disk = DISK) -> None:
    """Write a mark durably. Raises: OSError."""
    (data_dir / MARK).parent.mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / MARK, msgspec.json.encode(entries), disk)


def remove_mark(data_dir: Path, disk: Disk = DISK) -> None:
    """Remove the mark durably, where there is one. Raises: OSError."""
    if (data_dir / MARK).exists():
        disk.unlink(data_dir / MARK)
        disk.sync_folder((data_dir / MARK).parent)
