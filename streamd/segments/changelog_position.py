"""The file `changelog` of a data directory: how far the directory agrees with the changelog, by
which other machines follow.

40 bytes: four numbers of eight bytes, little-endian (the format, 1; term, commit, offset), and the
CRC32C of them in the first four of the last eight. Like `published` it is written in place and not
synced: one that a power cut made older only lets more be read again.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import structlog
from crc32c import crc32c

from streamd.storage import DISK, Disk

logger = structlog.get_logger()
CHANGELOG = "changelog"
"""Name of the file in the data directory."""
FORMAT = 1
NUMBERS = struct.Struct("<4Q")
CRC = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ChangelogPosition:
    """Where a directory stands in the changelog.

    term: of the leader that wrote the commit. seq: newest commit of this directory that the
    changelog has acknowledged. offset: the one just behind that commit's last record.
    """

    term: int
    seq: int
    offset: int

    def pack(self) -> bytes:
        numbers = NUMBERS.pack(FORMAT, self.term, self.seq, self.offset)
        return numbers + CRC.pack(crc32c(numbers))


def read_position(data_dir: Path) -> ChangelogPosition | None:
    """Read where a directory stands; None where it never had a changelog, or the file is damaged:
    the changelog is then read from its begin."""
    try:
        data = (data_dir / CHANGELOG).read_bytes()
    except FileNotFoundError:
        return None
    numbers = data[: NUMBERS.size]
    if len(data) != NUMBERS.size + CRC.size or data[NUMBERS.size :] != CRC.pack(crc32c(numbers)):
        logger.warning("changelog_position_damaged", path=str(data_dir / CHANGELOG))
        return None
    found, term, seq, offset = NUMBERS.unpack(numbers)
    return ChangelogPosition(term, seq, offset) if found == FORMAT else None


class PositionFile:
    """Writes the position of a directory. Owner: the process that writes its log."""

    def __init__(self, data_dir: Path, disk: Disk = DISK) -> None:
        self._disk = disk
        self._fd = disk.open(data_dir / CHANGELOG, os.O_RDWR | os.O_CREAT)

    def write(self, position: ChangelogPosition) -> None:
        """Write the position; what it says must be durable. Raises: OSError."""
        self._disk.write(self._fd, position.pack(), 0)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
