"""Checks the committed bytes of a log against the checksums in the journal, as far as the journal
still has them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from streamd.errors import JournalError, TGUFError
from streamd.eventlog.journal.journal import LogState, journal_files, read_lines
from streamd.eventlog.layout import EDGES
from streamd.eventlog.segment_files import SegmentFiles


@dataclass(frozen=True)
class Damage:
    """Committed bytes that differ from their checksum.

    path: the file's, in the data directory. what: its damaged rows or bytes, a half-open range.
    seq: the commit that wrote them.
    """

    path: str
    what: str
    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
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


@dataclass
class _Survey:
    """The result of one pass over the journal for a file: the commit from which claims count, the
    newest commit, and the number of claims that count."""

    since: int = 0
    newest: int = 0
    num_claims: int = 0


def verify_log(
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    only: str | None = None,
) -> tuple[int, list[Damage]]:
    """Check the rows and bytes of all commits, in memory that does not grow with their number.

    Args: progress: called with (pieces checked, pieces in all); only: the one path in the directory
    to check, None for all. Returns: the number of commits read, and the damage by file, oldest
    first. Raises: JournalError if the journal itself is damaged before its last line.
    """
    # A first pass finds the files that still exist, and their claims that count.
    published = int.from_bytes((data_dir / "published").read_bytes()[:8], "little")
    commits, state, surveys = _survey(data_dir, published)
    states = {s.path: s for s in state.segments} if state else {}

    # A segment with a damaged header is damaged as a whole.
    damage: list[Damage] = []
    segments: dict[str, SegmentFiles] = {}
    wanted = {path for path in surveys if only in (None, path)}
    for path in [p for p in surveys if p in wanted and p in states]:
        assert state is not None
        try:
            segments[path] = SegmentFiles(data_dir / path, states[path], state.schema)
        except TGUFError as error:
            damage.append(Damage(path, f"all of it: {error}", surveys[path].newest))
            wanted.remove(path)

    # A second pass checks the claims.
    done = 0
    total = sum(survey.num_claims for survey in surveys.values())
    for line in _lines(data_dir, published):
        for claim in line.claims:
            path = claim.path
            if path not in wanted or claim.crc is None or claim.seq < surveys[path].since:
                continue
            if path in segments:
                crc, what = _segment_crc(segments[path], claim)
            else:
                crc, what = _bytes_crc(data_dir / path, claim)
            if crc != claim.crc:
                damage.append(Damage(path, what, claim.seq))
            done += 1
            progress(done, total)
    order = {path: number for number, path in enumerate(surveys)}
    return commits, sorted(damage, key=lambda d: order[d.path])


def _survey(data_dir: Path, published: int) -> tuple[int, LogState | None, dict[str, _Survey]]:
    """Read the journal up to a commit. Returns: the number of commits, the state after them, and
    the survey of each file that is still there, by path."""
    surveys: dict[str, _Survey] = {}
    commits = 0
    state: LogState | None = None
    for line in _lines(data_dir, published):
        for claim in line.claims:
            survey = surveys.setdefault(claim.path, _Survey())
            survey.newest = claim.seq
            if claim.replaces:
                survey.since = claim.seq
                survey.num_claims = 0
            survey.num_claims += claim.crc is not None
        state = line.state
        commits += line.is_commit
    present = {*(s.path for s in state.segments), *state.files} if state else set()
    return commits, state, {path: one for path, one in surveys.items() if path in present}


def data_dir_of(file: Path) -> Path | None:
    """Find the data directory of a segment's log, None for any other file."""
    folder = file.resolve().parent
    data_dir = folder.parent.parent
    return data_dir if folder == data_dir / EDGES and (data_dir / "published").exists() else None


class _Line(NamedTuple):
    """A line of the journal: the state after it, and its claims about files."""

    state: LogState
    claims: Sequence[_Claim]
    is_commit: bool


def _lines(data_dir: Path, published: int) -> Iterator[_Line]:
    """Yield the lines of the journal up to a commit; a checkpoint only if lines before it are
    gone."""
    state: LogState | None = None
    for path in journal_files(data_dir / "journal"):
        lines = read_lines(path)
        for number, (_, fields) in enumerate(lines, 1):
            if fields is None:
                if next(lines, None) is None:
                    break  # torn by a crash; the next file begins with a checkpoint
                raise JournalError(
                    f"{path} is damaged in line {number}.",
                    "restore the data_dir from a backup.",
                )
            # A file's first line is a checkpoint: it counts if lines before it are gone.
            if number == 1:
                checkpoint = LogState.restored(fields)
                if state is None or checkpoint.seq > state.seq:
                    claims = _claims_of_checkpoint(state, checkpoint)
                    state = checkpoint
                    yield _Line(state, claims, is_commit=False)
                continue

            # Every further line is a commit with the files that it changed.
            if fields["seq"] > published or state is None:
                break
            state = state.after(fields)
            claims = [_claim(fields["seq"], change) for change in fields["files"]]
            yield _Line(state, claims, is_commit=True)


def _claim(seq: int, change: dict[str, Any]) -> _Claim:
    """The claim of commit `seq` about a file that it changed."""
    return _Claim(
        path=change["path"],
        seq=seq,
        rows=tuple(change["bytes"] if "bytes" in change else change["rows"]),
        labels=tuple(change["labels"]) if "labels" in change else None,
        crc=change["crc"],
        replaces="revision" in change,
    )


def _claims_of_checkpoint(before: LogState | None, now: LogState) -> list[_Claim]:
    """The claims of a checkpoint if the lines before it are gone: retention dropped them, or their
    sync failed.

    Append-only files are checked as a whole against the checkpoint's checksum. Segments are checked
    by the claims of older lines about their rows, and not at all if the segment was replaced since.
    """
    files = (
        _Claim(path=path, seq=now.seq, rows=(0, f.num_bytes), crc=f.crc, replaces=True)
        for path, f in now.files.items()
    )
    revision = {s.path: s.revision for s in before.segments} if before else {}
    replaced = (
        _Claim(path=s.path, seq=now.seq, replaces=True)
        for s in now.segments
        if revision.get(s.path) != s.revision
    )
    return [*files, *replaced]


def _bytes_crc(path: Path, claim: _Claim) -> tuple[int, str]:
    """CRC32C of a range of a file's bytes, and the range in words; of a shorter file it differs."""
    a, b = claim.rows
    crc = 0
    with path.open("rb") as file:
        file.seek(a)
        # Pieces of 16 MiB: a file may be larger than memory.
        while a < b and (piece := file.read(min(b - a, 1 << 24))):
            crc = crc32c(piece, crc)
            a = a + len(piece)
    return crc, f"bytes [{claim.rows[0]}, {b})"


def _segment_crc(files: SegmentFiles, claim: _Claim) -> tuple[int, str]:
    """CRC32C of a segment's rows, and the rows in words."""
    assert claim.labels is not None
    (a, b) = claim.rows
    (c, d) = claim.labels
    what = f"edges [{a}, {b}) and labels [{c}, {d})"
    return files.rows_crc(claim.rows, claim.labels), what
