"""Compares a directory with the changelog, byte by byte."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamd.eventlog.journal.changelog_position import read_position
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.tguf.format import PAGE
from streamd.replica.changelog.admission import UNCLAIMED, Admission, Verdict
from streamd.replica.changelog.interface import ChangelogReader
from streamd.replica.changelog.records import LINE, Claim, Record, decode_value
from streamd.replica.start import OwnLines

READ_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LogDifference:
    """The first difference between a directory and the changelog.

    seq: of the commit. path: of the file, in the data directory. offset: of the first byte that
    differs, None if a whole line differs.
    """

    seq: int
    path: str
    offset: int | None


@dataclass(slots=True)
class LogComparison:
    """Result of a comparison.

    commits, num_bytes: compared so far. behind: commits of the changelog that the directory has not
    published yet. difference: the first one, None if there is none.
    """

    commits: int = 0
    num_bytes: int = 0
    behind: int = 0
    difference: LogDifference | None = None


def compare(
    data_dir: Path,
    reader: ChangelogReader,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> LogComparison:
    """Compare the records that the changelog still has with a directory, which may be written
    meanwhile.

    Lines and files that retention dropped or a later commit replaced are not compared. progress:
    called with (records read, records in all). Raises: ChangelogError, KafkaError, OutOfRange if
    records are deleted meanwhile.
    """
    begin, end = reader.bounds()
    admission = Admission(_term_at(begin, end, reader, data_dir), 0)
    is_placed = False
    reader.seek(begin)
    shown = published_seq(data_dir)
    tail = JournalTail.open(data_dir)
    found = LogComparison()
    own = OwnLines(data_dir, 0)
    while reader.position < end:
        for record in reader.read(READ_SECONDS):
            if record.offset >= end:
                break
            # The changelog may start with any commit, and lack commits before a claim.
            if isinstance(record, Claim) and record.term == admission.term + 1:
                admission.skip_to(max(admission.seq, record.seq))
                # From offset 0 on no record was deleted, so the claim gives the next number.
                is_placed = is_placed or begin == 0
            is_due = record.term == admission.term and record.is_whole
            if isinstance(record, Record) and is_due and not is_placed:
                admission.skip_to(record.seq - 1)
                is_placed = record.part == 0
            verdict = admission.judge(record)
            if not isinstance(record, Record) or verdict not in (Verdict.FIRST, Verdict.NEXT):
                continue
            if record.is_last:
                found.commits += record.seq <= shown
                found.behind += record.seq > shown
            if record.seq > shown or tail is None:
                continue
            mine = own.crc(record.seq)
            if mine is not None and mine != record.line:
                found.difference = LogDifference(record.seq, "journal", None)
                return found
            found.difference = _compare_bytes(data_dir, tail.state, record, found)
            if found.difference is not None:
                return found
        progress(reader.position - begin, end - begin)
    return found


def _term_at(begin: int, end: int, reader: ChangelogReader, data_dir: Path) -> int:
    """The current term at the changelog's first record, derived from the records after it: the
    claim itself may be deleted."""
    if begin == 0:
        return UNCLAIMED
    position = read_position(data_dir)
    highest = UNCLAIMED
    reader.seek(begin)
    while reader.position < end:
        for record in reader.read(READ_SECONDS):
            if isinstance(record, Claim) and record.term > highest:
                return record.term - 1
            highest = max(highest, record.term if record.is_whole else UNCLAIMED)
            if position is not None and highest >= position.term:
                return highest
    return highest


def _compare_bytes(
    data_dir: Path, state: LogState, record: Record, found: LogComparison
) -> LogDifference | None:
    """Compare the pieces of a record with the files. Returns: the first difference, None if there
    is none."""
    head, data = decode_value(record)
    revisions = {path: file.revision for path, file in state.files.items()}
    revisions |= {segment.path: segment.revision for segment in state.segments}
    at = 0
    for path, offset, size in head.pieces:
        theirs = data[at : at + size]
        at += size
        known = revisions.get(path, revisions.get(path.rpartition("/")[0]))
        if path == LINE or known is None or known > record.seq:
            continue
        # A file's header also counts later rows.
        passed = min(size, max(0, PAGE - offset)) if path.endswith(".tguf") else 0
        theirs, offset, size = theirs[passed:], offset + passed, size - passed
        with (data_dir / path).open("rb") as file:
            file.seek(offset)
            mine = file.read(size)
        found.num_bytes += size
        if mine != theirs:
            first = next(
                (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), len(mine)
            )
            return LogDifference(record.seq, path, offset + first)
    return None
