"""Every committed byte against the checksum its commit line holds."""

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
    """Committed bytes that differ from what was written. what: rows or bytes, half open."""

    path: str
    what: str
    seq: int


@dataclass(frozen=True)
class _Promise:
    """What a commit said of a file: edge and label rows of a segment, or bytes of another file, and
    their CRC32C."""

    seq: int
    rows: tuple[int, int]
    labels: tuple[int, int] | None
    crc: int


def verify_log(
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    only: str | None = None,
) -> tuple[int, list[Damage]]:
    """Check all commits. progress: told (checked, in all). only: the one path in the directory to
    check.

    Returns: number of commits read, and the damage found, by file and oldest first.
    Raises: JournalError where the journal itself is damaged before its last line.
    """
    commits, promised = _promises(data_dir)
    damage: list[Damage] = []
    done = 0
    total = sum(len(p) for p in promised.values())
    for path, promises in promised.items():
        if only not in (None, path):
            continue
        try:
            file = open_tguf(data_dir / path, check_rows=False) if path.endswith(".tguf") else None
        except TGUFError as error:
            damage.append(Damage(path, f"all of it: {error}", promises[-1].seq if promises else 0))
            continue
        for p in promises:
            crc, what = (
                _segment_crc(file, p) if file is not None else _bytes_crc(data_dir / path, p)
            )
            if crc != p.crc:
                damage.append(Damage(path, what, p.seq))
            done += 1
            progress(done, total)
    return commits, damage


def data_dir_of(file: Path) -> Path | None:
    """The data directory whose log a segment belongs to, None for any other file."""
    folder = file.resolve().parent
    data_dir = folder.parent.parent
    return data_dir if folder == data_dir / EDGES and (data_dir / "published").exists() else None


def _promises(data_dir: Path) -> tuple[int, dict[str, list[_Promise]]]:
    """What the journal says of every file that is still there; a replaced file is held to what was
    said since."""
    published = int.from_bytes((data_dir / "published").read_bytes()[:8], "little")
    promised: dict[str, list[_Promise]] = {}
    state: LogState | None = None
    commits = 0
    for path in journal_files(data_dir / "journal"):
        lines = list(read_lines(path))
        for number, (_, fields) in enumerate(lines):
            if fields is None:
                if number == len(lines) - 1:
                    break  # torn by a crash; the next file begins with what stood then
                raise JournalError(
                    f"{path} is damaged in line {number + 1}.",
                    "restore the data_dir from a backup.",
                )
            if number == 0:
                checkpoint = LogState.restored(fields)
                if state is None or checkpoint.seq > state.seq:
                    _begin_at(promised, state, checkpoint)
                    state = checkpoint
                continue
            if fields["seq"] > published or state is None:
                break
            state = state.after(fields)
            commits += 1
            for change in fields["files"]:
                name = change["path"]
                rows = tuple(change["bytes"] if "bytes" in change else change["rows"])
                if "revision" in change:
                    promised[name] = []
                labels = tuple(change["labels"]) if "labels" in change else None
                promised.setdefault(name, []).append(
                    _Promise(fields["seq"], rows, labels, change["crc"])
                )
    present = set() if state is None else {s.path for s in state.segments} | set(state.files)
    return commits, {name: promises for name, promises in promised.items() if name in present}


def _begin_at(promised: dict[str, list[_Promise]], before: LogState | None, now: LogState) -> None:
    """Go on from a checkpoint whose last lines are gone: retention dropped them, or their sync
    failed.

    Append-only files are held to their checksum as a whole; of rows in segments nothing is known
    but what older lines say, and that no longer where the segment was replaced.
    """
    promised |= {
        p: [_Promise(now.seq, (0, f.num_bytes), None, f.crc)] for p, f in now.files.items()
    }
    revision = {s.path: s.revision for s in before.segments} if before else {}
    promised |= {s.path: [] for s in now.segments if revision.get(s.path) != s.revision}


def _bytes_crc(path: Path, promise: _Promise) -> tuple[int, str]:
    a, b = promise.rows
    crc = 0
    with path.open("rb") as file:
        file.seek(a)
        while a < b and (piece := file.read(min(b - a, 1 << 24))):
            crc = crc32c(piece, crc)
            a = a + len(piece)
    return crc, f"bytes [{promise.rows[0]}, {b})"


def _segment_crc(file: TGUFFile, promise: _Promise) -> tuple[int, str]:
    assert promise.labels is not None
    crc = rows_crc(file, promise.rows, promise.labels)
    (a, b) = promise.rows
    (c, d) = promise.labels
    return crc, f"edges [{a}, {b}) and labels [{c}, {d})"


def rows_crc(file: TGUFFile, rows: tuple[int, int], labels: tuple[int, int]) -> int:
    """CRC32C of the given edge rows, column by column, then of the label rows."""
    crc = 0
    for name in file.sections:
        a, b = labels if name.startswith("label") else rows
        column = np.ascontiguousarray(file.column(name, b)[a:b])
        if column.size:
            crc = crc32c(column.view(np.uint8).data, crc)
    return crc
