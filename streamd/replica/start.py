"""What a member of a log on many machines does at its start: it compares its own lines with the
changelog's before it shows any of them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from streamd.errors import ChangelogError, DivergedError
from streamd.replica.admission import Admission, Verdict, missing_before
from streamd.replica.changelog import ChangelogReader, OutOfRange
from streamd.replica.records import Record
from streamd.segments.changelog_position import (
    CHANGELOG,
    ChangelogId,
    ChangelogPosition,
    read_position,
)
from streamd.segments.journal import decode_line, journal_files
from streamd.segments.take_back import lines_after, mend, take_back
from streamd.storage import DISK, Disk

logger = structlog.get_logger()
READ_SECONDS = 0.2


def check_changelog(data_dir: Path, changelog: ChangelogId) -> None:
    """Check that what a directory read so far is of this changelog. Raises: ChangelogError."""
    stored = read_position(data_dir)
    if stored is not None and stored.changelog.is_other(changelog):
        raise ChangelogError(
            f"{data_dir} goes with {stored.changelog.shown}, not with {changelog.shown}.",
            "set log.name and kafka.bootstrap_servers as they were. Where the topic was made anew, "
            f"remove {data_dir / CHANGELOG} on the leader, to publish from the present commit on, "
            "and elsewhere start with an empty data_dir once there is a manifest.",
        )


class OwnLines:
    """The lines that a directory holds, looked up in rising order. Owner: who compares."""

    def __init__(self, data_dir: Path, after_seq: int) -> None:
        self._lines: Iterator[tuple[int, bytes]] = lines_after(data_dir, after_seq)
        self._seq, self._crc = 0, ""
        self.ended = False

    def crc(self, seq: int) -> str | None:
        """The checksum of a line in hex, None where the line is gone or not there yet."""
        while self._seq < seq and not self.ended:
            found = next(self._lines, None)
            if found is None:
                self.ended = True
            else:
                self._seq, self._crc = found[0], found[1][:8].decode()
        return self._crc if self._seq == seq else None


def published_seq(data_dir: Path) -> int:
    """The newest commit that readers were shown, 0 where there is no log."""
    try:
        return int.from_bytes((data_dir / "published").read_bytes()[:8], "little")
    except FileNotFoundError:
        return 0


def has_log(data_dir: Path) -> bool:
    """Whether a directory has a journal that was begun; a power cut may leave one without even its
    first line."""
    for path in journal_files(data_dir / "journal"):
        with path.open("rb") as file:
            if decode_line(file.readline()) is not None:
                return True
    return False


def settled_seq(data_dir: Path) -> int:
    """The newest commit that is known to be in the changelog, or was shown before there was one: a
    journal file begins only when nothing waits.

    After a power cut `published` may be older, even empty: it is not synced.
    """
    newest = published_seq(data_dir)
    for path in journal_files(data_dir / "journal"):
        with path.open("rb") as file:
            fields = decode_line(file.readline())
        if fields is not None:
            newest = max(newest, fields["checkpoint"])
    return newest


def reconcile(data_dir: Path, reader: ChangelogReader, disk: Disk = DISK) -> ChangelogPosition:
    """Compare the directory's lines with the changelog's, from the stored position on, and take
    back those whose place another record took.

    Returns: the newest commit that both have, the offset from which to read on, and the highest
    term so far. Lines of the
    directory behind it are beyond the changelog's end; the caller publishes them or takes them
    back. Raises: DivergedError, ChangelogError, OutOfRange where a newer manifest is needed.
    """
    shown = settled_seq(data_dir)
    stored = read_position(data_dir)
    mend(data_dir, stored.seq if stored else shown, disk)
    begin, end = reader.bounds()
    if stored is not None and stored.offset > end:
        raise ChangelogError(
            f"The changelog ends at offset {end}, and {data_dir} has read it up to "
            f"{stored.offset}: its topic was made anew, or lost records.",
            f"on the leader, remove {data_dir / CHANGELOG} to publish from the present commit on; "
            "elsewhere start with an empty data_dir once there is a manifest.",
        )

    # Read what came since the position was stored. Of old commits the lines may be gone.
    position = stored or ChangelogPosition(0, 0, begin)
    unread = stored is not None and position.offset < begin
    if unread:
        position = ChangelogPosition(position.term, position.seq, begin)
    own = OwnLines(data_dir, position.seq)
    admission = Admission(position.term, position.seq)
    ahead: Record | None = None
    reader.seek(position.offset)
    while reader.position < end:
        for record in reader.read(READ_SECONDS):
            if record.offset >= end:
                break
            if stored is None and admission.seq < record.seq - 1 <= shown:
                # The changelog was turned on later, or its first records are deleted.
                admission.taken(record.seq - 1)
                position = ChangelogPosition(record.term, record.seq - 1, record.offset)
            verdict = admission.judge(record)
            if verdict is Verdict.AHEAD:
                if unread:
                    raise missing_before(record, admission.seq)
                ahead = record
                continue
            unread = False
            fresh = verdict is Verdict.FIRST or verdict is Verdict.NEXT
            mine = own.crc(record.seq) if fresh else None
            # One that was shown is another only where the other is whole.
            is_due = record.seq > shown or record.is_last
            if mine is not None and mine != record.line and is_due:
                if record.seq <= shown:
                    raise _diverged(data_dir, record.seq)
                logger.warning("lines_taken_back", first_seq=record.seq, data_dir=str(data_dir))
                take_back(data_dir, record.seq, disk)
                return replace(position, term=admission.term)
            if fresh and record.seq > shown and mine is None:
                return replace(position, term=admission.term)
            ahead = None if fresh else ahead
            # A commit is shown once all of it is there.
            if fresh and record.is_last:
                admission.taken(record.seq)
                position = ChangelogPosition(record.term, record.seq, record.offset + 1)
    if unread:
        # What was deleted may have been other commits than those here.
        raise OutOfRange(f"the changelog begins at offset {begin} and has no record")
    if ahead is not None and OwnLines(data_dir, position.seq).crc(ahead.seq) != ahead.line:
        raise missing_before(ahead, position.seq)
    if position.seq < shown and stored is not None:
        raise ChangelogError(
            f"The changelog ends at commit {position.seq}, and {data_dir} has shown commit "
            f"{shown}: it went on without the changelog, or that lost records.",
            f"on the leader, remove {data_dir / CHANGELOG} to publish from the present commit on; "
            "elsewhere start with an empty data_dir.",
        )
    if position.seq < shown:
        # It went on without a changelog, so far: all that readers were shown stays.
        position = ChangelogPosition(position.term, shown, end)
    return ChangelogPosition(admission.term, position.seq, max(position.offset, begin))


def _diverged(data_dir: Path, seq: int) -> DivergedError:
    return DivergedError(
        f"{data_dir} has shown another commit {seq} than the changelog has.",
        "keep the directory aside, see that one leader runs, and start here with an empty one.",
    )
