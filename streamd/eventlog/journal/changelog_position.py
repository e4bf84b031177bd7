"""The file `changelog` of a data directory: its position in the changelog, and the identity of that
changelog.

512 bytes: four numbers of eight bytes, little-endian (the format, 2; term, commit, offset), then
the ids of Kafka's cluster and of the topic and the topic's name, each followed by a zero byte, then
zeros; the CRC32C of all that in the first four of the last eight bytes. Format 1 had 40 bytes and
no names: it is read, and written again as format 2.

The file is written in place, and synced once for each journal file and before the archive trims the
changelog. So a power cut may restore an older position, but never one that the changelog no longer
has.
"""

import os
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import structlog
from crc32c import crc32c

from streamd.storage import DISK, Disk

logger = structlog.get_logger()
CHANGELOG = "changelog"
"""Name of the file in the data directory."""
FORMAT = 2
FORMAT_WITHOUT_NAMES = 1
NUMBERS = struct.Struct("<4Q")
CRC = struct.Struct("<Q")
FILE_BYTES = 512
"""Size that a disk writes at once, so that a reader seldom sees half of it."""
NAMES_BYTES = FILE_BYTES - NUMBERS.size - CRC.size
"""Room for the three names. Kafka's topics have at most 249 characters, its ids 36; those of other
brokers' clusters are somewhat longer."""


class ChangelogId(NamedTuple):
    """The identity of a changelog: ids of Kafka's cluster and of the topic, and the topic's name.
    Each is empty if unknown; brokers before Kafka 2.8 have no topic ids."""

    cluster: str = ""
    topic_id: str = ""
    topic: str = ""

    @property
    def shown(self) -> str:
        """For messages."""
        topic_id = f" (id {self.topic_id})" if self.topic_id else ""
        return f"topic {self.topic}{topic_id} of cluster {self.cluster or 'unknown'}"

    def is_other(self, changelog: "ChangelogId") -> bool:
        """Whether something differs that both know."""
        return any(a and b and a != b for a, b in zip(self, changelog, strict=True))


UNKNOWN = ChangelogId()


@dataclass(frozen=True, slots=True)
class ChangelogPosition:
    """A directory's position in the changelog.

    term: of the leader that wrote the commit. seq: newest commit of this directory that the
    changelog has acknowledged. offset: the next one after that commit's last record. changelog: its
    identity, as far as known.
    """

    term: int
    seq: int
    offset: int
    changelog: ChangelogId = field(default=UNKNOWN, compare=False)

    def pack(self) -> bytes:
        names = b"".join(name.encode() + b"\0" for name in self.changelog)
        assert len(names) <= NAMES_BYTES, self.changelog
        numbers = NUMBERS.pack(FORMAT, self.term, self.seq, self.offset)
        data = numbers + names.ljust(NAMES_BYTES, b"\0")
        return data + CRC.pack(crc32c(data))


def read_position(data_dir: Path) -> ChangelogPosition | None:
    """Read a directory's position; None if it never had a changelog or the file is damaged: the
    changelog is then read from its start."""
    try:
        data = (data_dir / CHANGELOG).read_bytes()
    except FileNotFoundError:
        return None
    content, crc = data[: -CRC.size], data[-CRC.size :]
    if len(data) < NUMBERS.size + CRC.size or crc != CRC.pack(crc32c(content)):
        logger.warning(
            "changelog_position_damaged",
            path=str(data_dir / CHANGELOG),
            meaning="the changelog is read from its start",
        )
        return None
    found, term, seq, offset = NUMBERS.unpack(content[: NUMBERS.size])
    if found == FORMAT_WITHOUT_NAMES:
        return ChangelogPosition(term, seq, offset)
    if found != FORMAT:
        return None
    names = content[NUMBERS.size :].decode(errors="replace").split("\0")[: len(UNKNOWN)]
    return ChangelogPosition(term, seq, offset, ChangelogId(*names))


def durable_position(data_dir: Path, disk: Disk = DISK) -> ChangelogPosition | None:
    """Read a directory's position, and make it durable: no power cut restores an older one.

    Returns: None as `read_position` does. Raises: OSError.
    """
    position = read_position(data_dir)
    if position is not None:
        fd = disk.open(data_dir / CHANGELOG, os.O_RDWR)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.sync_folder(data_dir)
    return position


class PositionFile:
    """Writes the position of a directory. Owner: the process that writes its log."""

    def __init__(self, data_dir: Path, changelog: ChangelogId, disk: Disk = DISK) -> None:
        """changelog: the one that the positions refer to."""
        self._disk = disk
        self._changelog = changelog
        self._folder = data_dir
        self._fd = disk.open(data_dir / CHANGELOG, os.O_RDWR | os.O_CREAT)

    def write(self, position: ChangelogPosition) -> None:
        """Write the position; the commits before it must be durable. Raises: OSError."""
        self._disk.write(self._fd, replace(position, changelog=self._changelog).pack(), 0)

    def sync(self) -> None:
        """Make the newest position durable, and the file's name. Raises: OSError."""
        self._disk.sync(self._fd)
        self._disk.sync_folder(self._folder)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
