"""The position of an unfinished import in its file. Each commit stores it among the positions in
Kafka, so that it is durable with the rows before it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from streamd.errors import SettingsError
from streamd.events import Position, Progress

PREFIX = "import:"
"""Beginning of the name under which a file is stored; no topic can be called so."""
RUNNING, DONE = "running ", "done "
"""Beginnings of the id that is stored for a file. A new id makes the position void."""


@dataclass(frozen=True)
class ImportMark:
    """A file that is imported. name: under which the log has its position. digest: of the names,
    sizes and times of its parts, and of the options that read it."""

    name: str
    digest: str

    @classmethod
    def of(cls, path: Path, options: str) -> "ImportMark":
        """The mark of a file or folder. options: that decide which rows are read, and in which
        order. Raises: SettingsError for a pipe, which cannot be read again."""
        # A folder's partitions are read too.
        parts = sorted(path.rglob("*")) if path.is_dir() else [path]
        if not path.is_dir() and not path.is_file():
            raise SettingsError(
                f"{path} is a pipe, which a repeated import could not continue.",
                "write it to a file.",
            )
        seen = [
            (str(part.relative_to(path)), part.stat().st_size, part.stat().st_mtime_ns)
            for part in parts
            if part.is_file()
        ]
        digest = hashlib.sha256(repr((seen, options)).encode()).hexdigest()[:16]
        return cls(PREFIX + str(path.resolve()), digest)

    def resume(self, progress: Progress) -> Position:
        """The position at which the import of this file continues. Raises: SettingsError if it is
        finished, if the file was changed since, or if another import is unfinished."""
        # Another import may be unfinished too.
        stored = progress.topic_ids.get(self.name, "")
        if stored.startswith(DONE):
            raise SettingsError(
                f"{self.name.removeprefix(PREFIX)} was imported, and its topics follow.",
                "start `streamd run`, or import into a new data_dir.",
            )
        unfinished = unfinished_import(progress)
        if unfinished and unfinished != self.name.removeprefix(PREFIX):
            raise SettingsError(
                f"The import of {unfinished} is unfinished.",
                "repeat its command, or import into a new data_dir.",
            )
        if unfinished and stored != RUNNING + self.digest:
            raise SettingsError(
                f"{unfinished} or the options that read it changed since its import began.",
                "restore them, or import into a new data_dir.",
            )
        return progress.positions.get(self.name, {}).get(0, Position(0))

    def at(self, position: Position) -> Progress:
        """The progress to commit with the rows before a position."""
        return Progress("", {self.name: RUNNING + self.digest}, {self.name: {0: position}})

    def end(self, topics: Progress) -> Progress:
        """The progress to commit at the end. topics: the positions at which topics continue."""
        ids = {**topics.topic_ids, self.name: DONE + self.digest}
        return Progress(topics.cluster_id, ids, topics.positions)


def unfinished_import(progress: Progress) -> str:
    """The file of an import that has to be repeated before its topics can be read; "" if there is
    none."""
    for name, stored in progress.topic_ids.items():
        if name.startswith(PREFIX) and stored.startswith(RUNNING):
            return name.removeprefix(PREFIX)
    return ""
