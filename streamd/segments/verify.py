"""Every committed byte against the checksum its commit line holds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from streamd.errors import JournalError
from streamd.segments.journal import journal_files, read_lines
from streamd.segments.tguf import TGUFFile, open_tguf


@dataclass(frozen=True)
class Damage:
    """Committed bytes that differ from what was written. what: rows or bytes, half open."""

    path: str
    what: str
    seq: int


def verify_log(data_dir: Path, progress: Callable[[int], None] = lambda _: None) -> tuple[int, list[Damage]]:
    """Check all commits. Returns: number of commits checked, and the damage found, oldest first.

    Raises: JournalError where the journal itself is damaged before its last line.
    """
    damage: list[Damage] = []
    files: dict[str, TGUFFile] = {}
    checked = 0
    published = int.from_bytes((data_dir / "published").read_bytes()[:8], "little")
    for path in journal_files(data_dir / "journal"):
        for number, (_, fields) in enumerate(read_lines(path)):
            if number == 0 and fields is not None:
                continue
            if fields is None:
                raise JournalError(f"{path} is damaged in line {number + 1}.", "restore the data_dir from a backup.")
            if fields["seq"] > published:
                return checked, damage
            for change in fields["files"]:
                name = change["path"]
                if "bytes" in change:
                    a, b = change["bytes"]
                    with (data_dir / name).open("rb") as file:
                        file.seek(a)
                        crc = crc32c(file.read(b - a))
                    what = f"bytes [{a}, {b})"
                else:
                    if name not in files:
                        files[name] = open_tguf(data_dir / name)
                    crc, what = _segment_crc(files[name], change["rows"], change["labels"])
                if crc != change["crc"]:
                    damage.append(Damage(name, what, fields["seq"]))
            checked += 1
            progress(checked)
    return checked, damage


def _segment_crc(file: TGUFFile, rows: list[int], labels: list[int]) -> tuple[int, str]:
    crc = 0
    for name in file.sections:
        a, b = labels if name.startswith("label") else rows
        column = np.ascontiguousarray(file.column(name, b)[a:b])
        if column.size:
            crc = crc32c(np.ascontiguousarray(column).view(np.uint8).data, crc)
    return crc, f"edges [{rows[0]}, {rows[1]}) and labels [{labels[0]}, {labels[1]})"
