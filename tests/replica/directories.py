"""Compares two data directories byte for byte."""

from streamd.eventlog.journal.journal import NOTHING, journal_files
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.layout import APPENDED


def lines_of(path):
    """Commit lines by number, as bytes; checkpoints follow from them, and files are cut wherever a writer started."""
    out = {}
    for file in journal_files(path / "journal"):
        for line in file.read_bytes().splitlines(keepends=True)[1:]:
            seq = int(line.split(b'"seq":')[1].split(b",")[0])
            out[seq] = line
    return out


def files_of(path, published_only=True):
    """All bytes of the log that readers see, by path."""
    tail = JournalTail.open(path)
    if tail is None:
        return {}
    state = tail.state
    out = {p: (path / p).read_bytes()[: state.files.get(p, NOTHING).num_bytes] if p in state.files else b"" for p in APPENDED}
    for segment in state.segments:
        place = path / segment.path
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            out[str(file.relative_to(path))] = file.read_bytes()
    present = {str(p.relative_to(path)) for p in (path / "edges").rglob("*") if p.is_file() and not p.name.startswith("stash-")}
    out["all"] = sorted(present | set(APPENDED))
    out["state"] = state
    return out


def difference(left, right):
    """The first difference of two directories in words, "" where they are equal."""
    a, b = files_of(left), files_of(right)
    for key in sorted({*a, *b}):
        if a.get(key) != b.get(key):
            x, y = a.get(key), b.get(key)
            if isinstance(x, bytes) and isinstance(y, bytes):
                at = next((i for i, (m, n) in enumerate(zip(x, y, strict=False)) if m != n), min(len(x), len(y)))
                return f"{key} differs at {at} of {len(x)} and {len(y)} bytes"
            return f"{key}: {x} and {y}"
    mine, yours = lines_of(left), lines_of(right)
    for seq in sorted(set(mine) & set(yours)):
        if mine[seq] != yours[seq]:
            return f"line {seq}: {mine[seq]} and {yours[seq]}"
    return ""
