"""The versions as lines of the log: each one that was made, and each removal.

A version's folder is durable before its line, and a removal's line is in the log before the bytes
go. So bytes that are missing without such a line were lost.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from streamd.eventlog.learned_lines import LearnedLines
from streamd.registry.manifest import Manifest


class VersionLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line about a version.

    removed: "version" or "memory" if that was removed; "" if the version was made. The other fields
    are those of the manifest; of a removal they are empty.
    """

    name: str
    removed: Literal["", "memory", "version"] = ""
    parent: str = ""
    edge: int = 0
    created: float = 0.0
    checksums: Mapping[str, str] = {}

    @classmethod
    def of(cls, manifest: Manifest) -> "VersionLine":
        """The line of a version that was made."""
        return cls(
            name=manifest.name,
            parent=manifest.parent,
            edge=manifest.edge,
            created=manifest.created,
            checksums=manifest.checksums,
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


@dataclass(frozen=True, slots=True)
class LoggedVersion:
    """A version that is in the log and was not removed. has_memory: whether it has its memory
    too. created: wall time in seconds."""

    created: float
    has_memory: bool


class VersionLines:
    """Reads and appends the lines of versions; without a log that takes them, there are none."""

    def __init__(self, lines: LearnedLines) -> None:
        self._lines = lines
        self._at = self._inode = 0
        self._versions: dict[str, LoggedVersion] = {}
        self.removed: set[str] = set()
        """Names of the versions that were removed, as of the last call of `versions`."""

    @property
    def is_in_use(self) -> bool:
        """Whether versions have lines."""
        return self._lines.in_log is not None

    def versions(self) -> Mapping[str, LoggedVersion]:
        """The versions in the log that were not removed, by name. Owner: one thread."""
        source = self._lines.source()
        # Other machines get versions by the models topic and the store.
        if not self.is_in_use or not source.path.exists():
            return {}
        with source.path.open("rb") as file:
            # The log was replaced by another: read it from its beginning.
            if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                self._inode, self._at = inode, 0
                self._versions, self.removed = {}, set()
            file.seek(self._at)
            for line in file:
                if not source.has(line):
                    break
                self._at += len(line)
                self._take(msgspec.json.decode(line, type=VersionLine))
        return self._versions

    def made_until(self, commit: int) -> list[VersionLine]:
        """The lines of the versions that the log had as of a commit, oldest first: made until then
        and not removed until then."""
        made: dict[str, VersionLine] = {}
        for text in self._lines.source(commit).lines() if self.is_in_use else ():
            line = msgspec.json.decode(text, type=VersionLine)
            if not line.removed:
                made[line.name] = line
            elif line.removed == "version":
                made.pop(line.name, None)
        return list(made.values())

    def _take(self, line: VersionLine) -> None:
        known = self._versions.pop(line.name, None)
        self.removed.discard(line.name)
        # The newest line of a name counts: a version may be made again under the same name.
        if not line.removed:
            self._versions[line.name] = LoggedVersion(line.created, has_memory=True)
        elif line.removed == "memory" and known is not None:
            self._versions[line.name] = LoggedVersion(known.created, has_memory=False)
        elif line.removed == "version":
            self.removed.add(line.name)

    def append(self, lines: Sequence[VersionLine]) -> None:
        """Append lines, and wait until the log has them. The caller has the lock of moves."""
        if lines and self.is_in_use:
            self._lines.append([line.encode() for line in lines])

    def beside_a_move(
        self, manifest: Manifest, others: Sequence[VersionLine]
    ) -> list[tuple[str, bytes]]:
        """The line of a version that was made, for the batch of the move that names it; none if the
        log has it. others: further lines for the batch."""
        if not self.is_in_use:
            return []
        made = [] if manifest.name in self.versions() else [VersionLine.of(manifest)]
        return [(self._lines.name, line.encode()) for line in (*made, *others)]


def removals(names: Sequence[str], removed: Literal["memory", "version"]) -> list[VersionLine]:
    """The lines of removals."""
    return [VersionLine(name=name, removed=removed) for name in names]


def is_there(folder: Path, name: str) -> bool:
    """Whether a version's folder is complete. folder: of all versions."""
    return (folder / name / "manifest.json").is_file()
