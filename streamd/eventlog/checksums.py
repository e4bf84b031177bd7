"""The checksums of rows and bytes in lines of the journal, and their comparison with the files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c

from streamd.errors import CorruptionError, TGUFError
from streamd.eventlog.journal.journal import LogState, decode_line
from streamd.eventlog.journal.truncate import lines_after
from streamd.eventlog.recovery import AFTER_DAMAGE, replacement
from streamd.eventlog.segment_files import SegmentFiles


@dataclass(frozen=True)
class Damage:
    """Committed bytes that differ from their checksum.

    path: the file's, in the data directory. extent: its damaged rows or bytes, a half-open range.
    seq: the commit that wrote them.
    """

    path: str
    extent: str
    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileClaim:
    """The entry of a journal line for a file: the CRC32C of a segment's edge and label rows, or of
    a range of bytes of another file.

    replaces: whether the entries of older lines for this file no longer count. crc: None if the
    entry has no other meaning.
    """

    path: str
    seq: int
    rows: tuple[int, int] = (0, 0)
    labels: tuple[int, int] | None = None
    crc: int | None = None
    replaces: bool = False


def claims_of(line: dict[str, Any]) -> list[FileClaim]:
    """The claims of a commit's line about the files that it changed."""
    return [
        FileClaim(
            path=change["path"],
            seq=line["seq"],
            rows=tuple(change["bytes"] if "bytes" in change else change["rows"]),
            labels=tuple(change["labels"]) if "labels" in change else None,
            crc=change["crc"],
            replaces="revision" in change,
        )
        for change in line["files"]
    ]


class CheckedFiles:
    """The files of a log, compared with claims. Owner: the comparison that opened them."""

    def __init__(self, data_dir: Path, state: LogState) -> None:
        """state: after the newest line with claims."""
        self._data_dir = data_dir
        self._state = state
        self._states = {s.path: s for s in state.segments}
        self._segments: dict[str, SegmentFiles] = {}
        self._whole: set[str] = set()
        """Files of which nothing can be read; their first damage was reported."""

    def __contains__(self, path: str) -> bool:
        """Whether the log still has a file."""
        return path in self._states or path in self._state.files

    def damage(self, claim: FileClaim) -> Damage | None:
        """Compare a claim with its file. Returns: None if they agree."""
        # A file that cannot be read at all is reported once.
        path = claim.path
        if path in self._whole or claim.crc is None:
            return None
        # Segments count rows, all other files bytes.
        rows = f"bytes [{claim.rows[0]}, {claim.rows[1]})"
        if claim.labels is not None:
            first, end = claim.labels
            rows = f"edges [{claim.rows[0]}, {claim.rows[1]}) and labels [{first}, {end})"

        # Compare with the rows that are there now.
        try:
            if path in self._states:
                crc = self._segment(path).rows_crc(claim.rows, claim.labels or (0, 0))
            else:
                crc = _bytes_crc(self._place(path), claim)
        except (OSError, TGUFError) as error:
            # A damaged header is damage of all rows, and so is a file that is missing.
            self._whole.add(path)
            return Damage(path, f"all of it: {error}", claim.seq)
        return None if crc == claim.crc else Damage(path, rows, claim.seq)

    def _segment(self, path: str) -> SegmentFiles:
        # Map each segment once, for all of its claims.
        if path not in self._segments:
            state = self._states[path]
            self._segments[path] = SegmentFiles(self._place(path), state, self._state.schema)
        return self._segments[path]

    def _place(self, path: str) -> Path:
        """The present path of a file: after a crash, a new version may lack its final name."""
        one = self._states.get(path) or self._state.files[path]
        scratch = replacement(self._data_dir / path, one.revision)
        return scratch if one.revision and scratch.exists() else self._data_dir / path


def _bytes_crc(path: Path, claim: FileClaim) -> int:
    """CRC32C of a range of a file's bytes; of a shorter file it differs."""
    a, b = claim.rows
    crc = 0
    with path.open("rb") as file:
        file.seek(a)
        # Pieces of 16 MiB: a file may be larger than memory.
        while a < b and (piece := file.read(min(b - a, 1 << 24))):
            crc = crc32c(piece, crc)
            a = a + len(piece)
    return crc


def check_after(data_dir: Path, seq: int, state: LogState) -> None:
    """Check the rows and bytes of the commits after `seq`, before readers or other machines get
    them. After a disk lost writes that it had called durable, `published` may be older than the
    journal, and the files older than both.

    state: after the newest line. Raises: CorruptionError naming the first damage.
    """
    # A commit that replaces a file makes older claims about it void.
    files = CheckedFiles(data_dir, state)
    since: dict[str, int] = {}
    for claim in _claims_after(data_dir, seq):
        if claim.replaces:
            since[claim.path] = claim.seq
    # Compare the rest in the order of commits, so that the first damage is named.
    for claim in _claims_after(data_dir, seq):
        if claim.path not in files or claim.seq < since.get(claim.path, 0):
            continue
        if (damage := files.damage(claim)) is not None:
            raise CorruptionError(
                f"{damage.path} in {data_dir} differs from the checksum in the journal: "
                f"{damage.extent}, of commit {damage.seq}, which readers may not see yet.",
                AFTER_DAMAGE,
            )


def _claims_after(data_dir: Path, seq: int) -> Iterator[FileClaim]:
    for _, line in lines_after(data_dir, seq):
        fields = decode_line(line)
        assert fields is not None, "lines are whole"
        yield from claims_of(fields)
