"""Checks the committed bytes of a log against the checksums in the journal, as far as the journal
still has them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from streamd.errors import JournalError, TGUFError
from streamd.segments.journal import LogState, journal_files, read_lines
from streamd.segments.layout import EDGES
from streamd.segments.tguf import TGUFFile, open_tguf


@dataclass(frozen=True)
class Damage:
    """Committed bytes that differ from their checksum.

    path: the file's, in the data directory. what: its damaged rows or bytes, a half-open range.
    seq: the commit that wrote them.
    """

    path: str
    what: str
    seq: int


@dataclass(frozen=True)
class _Claim:
    """What a commit line says of a file: the CRC32C of a segment's edge and label rows, or of a
    range of bytes of another file."""

    seq: int
    rows: tuple[int, int]
    labels: tuple[int, int] | None
    crc: int


def verify_log(
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    only: str | None = None,
) -> tuple[int, list[Damage]]:
    """Check the rows and bytes of all commits.

    Args: progress: called with (pieces checked, pieces in all); only: the one path in the directory
    to check, all where None.
    Returns: the number of commits read, and the damage by file, oldest first.
    Raises: JournalError where the journal itself is damaged before its last line.
    """
    commits, claimed = _claims(data_dir)
    damage: list[Damage] = []
    done = 0
    total = sum(len(c) for c in claimed.values())

    for path, claims in claimed.items():
        if only not in (None, path):
            continue
        # A segment whose header is damaged is damaged as a whole.
        try:
            file = open_tguf(data_dir / path, check_rows=False) if path.endswith(".tguf") else None
        except TGUFError as error:
            damage.append(Damage(path, f"all of it: {error}", claims[-1].seq if claims else 0))
            continue
        for claim in claims:
            crc, what = (
                _segment_crc(file, claim)
                if file is not None
                else _bytes_crc(data_dir / path, claim)
            )
            if crc != claim.crc:
                damage.append(Damage(path, what, claim.seq))
            done += 1
            progress(done, total)
    return commits, damage


def data_dir_of(file: Path) -> Path | None:
    """Find the data directory whose log a segment belongs to, None for any other file."""
    folder = file.resolve().parent
    data_dir = folder.parent.parent
    return data_dir if folder == data_dir / EDGES and (data_dir / "published").exists() else None


def _claims(data_dir: Path) -> tuple[int, dict[str, list[_Claim]]]:
    """Read what the journal says of every file that is still there.

    A file that was replaced is checked by the commits since. Returns: the number of commits read,
    and the claims by path, oldest first.
    """
    published = int.from_bytes((data_dir / "published").read_bytes()[:8], "little")
    claimed: dict[str, list[_Claim]] = {}
    state: LogState | None = None
    commits = 0
    for path in journal_files(data_dir / "journal"):
        lines = list(read_lines(path))
        for number, (_, fields) in enumerate(lines):
            if fields is None:
                if number == len(lines) - 1:
                    break  # torn by a crash; the next file begins with a checkpoint
                raise JournalError(
                    f"{path} is damaged in line {number + 1}.",
                    "restore the data_dir from a backup.",
                )
            # A file's first line is a checkpoint: it matters where lines before it are gone.
            if number == 0:
                checkpoint = LogState.restored(fields)
                if state is None or checkpoint.seq > state.seq:
                    _begin_at(claimed, state, checkpoint)
                    state = checkpoint
                continue

            # Every further line is a commit with the files it changed.
            if fields["seq"] > published or state is None:
                break
            state = state.after(fields)
            commits += 1
            for change in fields["files"]:
                name = change["path"]
                rows = tuple(change["bytes"] if "bytes" in change else change["rows"])
                if "revision" in change:
                    claimed[name] = []
                labels = tuple(change["labels"]) if "labels" in change else None
                claimed.setdefault(name, []).append(
                    _Claim(fields["seq"], rows, labels, change["crc"])
                )

    # Dropped segments are in older lines, but not in the log any more.
    present = set() if state is None else {s.path for s in state.segments} | set(state.files)
    return commits, {name: claims for name, claims in claimed.items() if name in present}


def _begin_at(claimed: dict[str, list[_Claim]], before: LogState | None, now: LogState) -> None:
    """Go on from a checkpoint where the lines before it are gone: retention dropped them, or their
    sync failed.

    Append-only files are checked as a whole against the checkpoint's checksum. Segments are checked
    by what older lines say of their rows, and not at all where the segment was replaced since.
    """
    claimed |= {p: [_Claim(now.seq, (0, f.num_bytes), None, f.crc)] for p, f in now.files.items()}
    revision = {s.path: s.revision for s in before.segments} if before else {}
    claimed |= {s.path: [] for s in now.segments if revision.get(s.path) != s.revision}


def _bytes_crc(path: Path, claim: _Claim) -> tuple[int, str]:
    """CRC32C of a range of a file's bytes, and the range in words; a shorter file has another
    one."""
    a, b = claim.rows
    crc = 0
    with path.open("rb") as file:
        file.seek(a)
        # Pieces of 16 MiB: a file may be larger than memory.
        while a < b and (piece := file.read(min(b - a, 1 << 24))):
            crc = crc32c(piece, crc)
            a = a + len(piece)
    return crc, f"bytes [{claim.rows[0]}, {b})"


def _segment_crc(file: TGUFFile, claim: _Claim) -> tuple[int, str]:
    """CRC32C of a segment's rows, and the rows in words."""
    assert claim.labels is not None
    crc = rows_crc(file, claim.rows, claim.labels)
    (a, b) = claim.rows
    (c, d) = claim.labels
    return crc, f"edges [{a}, {b}) and labels [{c}, {d})"


def rows_crc(file: TGUFFile, rows: tuple[int, int], labels: tuple[int, int]) -> int:
    """CRC32C of the edge rows [a, b), column by column, and then of the label rows."""
    crc = 0
    for name in file.sections:
        a, b = labels if name.startswith("label") else rows
        column = np.ascontiguousarray(file.column(name, b)[a:b])
        if column.size:
            crc = crc32c(column.view(np.uint8).data, crc)
    return crc
