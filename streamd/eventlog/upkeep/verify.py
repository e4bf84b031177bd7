"""Checks the committed bytes of a log against the checksums in the journal, as far as the journal
still has them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from streamd.errors import JournalError
from streamd.eventlog.checksums import CheckedFiles, Damage, FileClaim, claims_of
from streamd.eventlog.journal.journal import LogState, journal_files, read_lines
from streamd.eventlog.layout import EDGES
from streamd.eventlog.recovery import check_has, is_locked, needed_seq, published_seq


@dataclass
class _Survey:
    """The result of one pass over the journal for a file: the commit from which claims count, and
    their number."""

    since: int = 0
    num_claims: int = 0


def verify_log(
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    only: str | None = None,
) -> tuple[int, list[Damage]]:
    """Check the rows and bytes of all commits, in memory that does not grow with their number.

    If no process writes the log, these are all commits in the journal: its next writer publishes
    them. Else they are the published ones, as others may be taken back meanwhile.

    Args: progress: called with (pieces checked, pieces in all); only: the one path in the directory
    to check, None for all. Returns: the number of commits read, and the damage by file, oldest
    first. Raises: JournalError if the journal itself is damaged before its last line, or lacks
    published commits.
    """
    # Without a writer, the journal's last line is the last commit.
    begun = _lock_time(data_dir)
    if not is_locked(data_dir / "lock"):
        try:
            commits, damage = _verify(data_dir, None, progress, only)
            if not damage or begun == _lock_time(data_dir):
                return commits, damage
        except JournalError:
            if begun == _lock_time(data_dir):
                raise
        # A writer began meanwhile, and may have taken back commits that are not published.
    return _verify(data_dir, published_seq(data_dir), progress, only)


def _lock_time(data_dir: Path) -> int:
    """When a process locked the directory last, in nanoseconds; 0 if none ever did."""
    lock = data_dir / "lock"
    return lock.stat().st_mtime_ns if lock.exists() else 0


def _verify(
    data_dir: Path, until: int | None, progress: Callable[[int, int], None], only: str | None
) -> tuple[int, list[Damage]]:
    """Check the commits up to `until`, None for all in the journal. Else as `verify_log`."""
    # A first pass finds the files that still exist, and their claims that count.
    needed = needed_seq(data_dir) if until is None else until
    commits, state, surveys = _survey(data_dir, until)
    check_has(data_dir, 0 if state is None else state.seq, needed)
    if state is None:
        return 0, []

    # A second pass checks the claims.
    files = CheckedFiles(data_dir, state)
    damage: list[Damage] = []
    done = 0
    total = sum(survey.num_claims for survey in surveys.values())
    for line in _lines(data_dir, until):
        for claim in line.claims:
            survey = surveys.get(claim.path)
            if survey is None or claim.crc is None or claim.seq < survey.since:
                continue
            if only in (None, claim.path) and (found := files.damage(claim)) is not None:
                damage.append(found)
            done += 1
            progress(done, total)
    order = {path: number for number, path in enumerate(surveys)}
    return commits, sorted(damage, key=lambda d: order[d.path])


def _survey(data_dir: Path, until: int | None) -> tuple[int, LogState | None, dict[str, _Survey]]:
    """Read the journal up to a commit. Returns: the number of commits, the state after them, and
    the survey of each file that is still there, by path."""
    surveys: dict[str, _Survey] = {}
    commits = 0
    state: LogState | None = None
    for line in _lines(data_dir, until):
        for claim in line.claims:
            survey = surveys.setdefault(claim.path, _Survey())
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
    claims: Sequence[FileClaim]
    is_commit: bool


def _lines(data_dir: Path, until: int | None) -> Iterator[_Line]:
    """Yield the lines of the journal up to a commit, None for its last; a checkpoint only if lines
    before it are gone."""
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
            if state is None or (until is not None and fields["seq"] > until):
                break
            state = state.after(fields)
            yield _Line(state, claims_of(fields), is_commit=True)


def _claims_of_checkpoint(before: LogState | None, now: LogState) -> list[FileClaim]:
    """The claims of a checkpoint if the lines before it are gone: retention dropped them, or their
    sync failed.

    Append-only files are checked as a whole against the checkpoint's checksum. Segments are checked
    by the claims of older lines about their rows, and not at all if the segment was replaced since.
    """
    files = (
        FileClaim(path=path, seq=now.seq, rows=(0, f.num_bytes), crc=f.crc, replaces=True)
        for path, f in now.files.items()
    )
    revision = {s.path: s.revision for s in before.segments} if before else {}
    replaced = (
        FileClaim(path=s.path, seq=now.seq, replaces=True)
        for s in now.segments
        if revision.get(s.path) != s.revision
    )
    return [*files, *replaced]
