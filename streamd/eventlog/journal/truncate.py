"""Truncates lines of the journal that were never published to readers, because the changelog has
others instead or lost them."""

import os
from collections.abc import Iterator
from pathlib import Path

from streamd.eventlog.journal.journal import decode_line, journal_files
from streamd.storage import DISK, Disk, replace_durably


def lines_after(data_dir: Path, seq: int) -> Iterator[tuple[int, bytes]]:
    """Yield (commit, line) of the journal's lines after a commit, oldest first, up to the first
    damaged one; lines before the oldest journal file are gone."""
    files = journal_files(data_dir / "journal")
    # The newest file with a checkpoint at or before the commit has the next line.
    first = max((i for i, path in enumerate(files) if _begins_after(path) <= seq), default=0)
    newest = seq
    for path in files[first:]:
        with path.open("rb") as file:
            for line in file:
                fields = decode_line(line)
                if fields is None:
                    break
                if fields.get("seq", 0) > newest:
                    newest = fields["seq"]
                    yield newest, line


def take_back(data_dir: Path, first_seq: int, disk: Disk = DISK) -> None:
    """Truncate the journal before commit `first_seq`, or before an earlier damaged line:

    1. Unlink files with a checkpoint at or after that commit, newest first.
    2. Rewrite the file before them without the truncated lines.

    This order keeps the journal readable: a crash in between leaves one that ends at a later line.
    When the log is opened next, it zeroes the rows and removes segments that were begun since.
    """
    for path in reversed(journal_files(data_dir / "journal")):
        if _begins_after(path) >= first_seq:
            # Its checkpoint includes a truncated commit: an older file has the state.
            disk.unlink(path)
            disk.sync_folder(path.parent)
            continue
        kept, whole = _lines_before(path, first_seq)
        if not whole:
            with replace_durably(path, disk) as scratch:
                fd = disk.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                disk.write(fd, kept, 0)
                disk.sync(fd)
                disk.close(fd)
        # If no line is left, as after a torn start, continue with the file before it.
        if kept:
            return


def mend(data_dir: Path, above_seq: int, disk: Disk = DISK) -> None:
    """Remove a damaged line and those after it from the newest journal file, if they come after
    commit `above_seq`. A power cut may damage any of the lines that a follower writes at once."""
    files = journal_files(data_dir / "journal")
    if not files:
        return
    newest = None
    damaged = False
    with files[-1].open("rb") as file:
        for line in file:
            fields = decode_line(line)
            if fields is None:
                damaged = True
                break
            newest = fields.get("seq", fields.get("checkpoint"))
    if damaged and newest is not None and newest >= above_seq:
        take_back(data_dir, newest + 1, disk)


def _begins_after(path: Path) -> int:
    """The commit of a journal file's checkpoint, by its name."""
    return int(path.name.split(".")[0]) - 1


def _lines_before(path: Path, first_seq: int) -> tuple[bytes, bool]:
    """The lines of a file before a commit, and whether these are all."""
    kept: list[bytes] = []
    with path.open("rb") as file:
        for line in file:
            fields = decode_line(line)
            if fields is None or fields.get("seq", 0) >= first_seq:
                return b"".join(kept), False
            kept.append(line)
    return b"".join(kept), True
