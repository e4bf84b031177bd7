"""The start of a member of a log on many machines: it compares its own lines with the changelog's
before it publishes any of them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from streamd.errors import ChangelogError, DivergedError
from streamd.eventlog.journal.changelog_position import (
    CHANGELOG,
    ChangelogId,
    ChangelogPosition,
    read_position,
)
from streamd.eventlog.journal.journal import decode_line, journal_files
from streamd.eventlog.journal.truncate import lines_after, mend, take_back
from streamd.eventlog.recovery import published_seq
from streamd.replica.changelog.admission import UNCLAIMED, Admission, Verdict
from streamd.replica.changelog.interface import ChangelogReader, OutOfRange
from streamd.replica.changelog.records import Claim, Read, Record
from streamd.storage import DISK, Disk

logger = structlog.get_logger()
READ_SECONDS = 0.2
PUBLISH_AGAIN = "remove the topic unless it is new, and {}, to publish from the present commit on"
"""The operator's action if the changelog is not that of the log any more."""


NEW_CHANGELOG = (
    f"stop all machines, remove the file {CHANGELOG} in the leader's data_dir and the folder "
    "manifests in log.store, start the leader, which publishes from the present commit on, and "
    "once there is a manifest start the others with an empty data_dir."
)
"""The operator's action if the topic of the changelog is lost."""


def check_changelog(data_dir: Path, changelog: ChangelogId) -> None:
    """Check that a directory's position is one of this changelog. Raises: ChangelogError."""
    stored = read_position(data_dir)
    if stored is not None and stored.changelog.is_other(changelog):
        raise ChangelogError(
            f"{data_dir} belongs to {stored.changelog.shown}, not to {changelog.shown}.",
            "set log.name and kafka.bootstrap_servers as they were. If the topic was created "
            f"again: {NEW_CHANGELOG}",
        )


def lost_error(data_dir: Path, name: str, position: ChangelogPosition) -> ChangelogError:
    """Make the error for the lost changelog of a directory. name: of the missing topic. position:
    of the directory in it."""
    return ChangelogError(
        f"The topic {name!r} does not exist any more; {data_dir} has read it up to offset "
        f"{position.offset}.",
        NEW_CHANGELOG,
    )


class OwnLines:
    """The lines of a directory, read in rising order. Owner: the comparison that reads them."""

    def __init__(self, data_dir: Path, after_seq: int) -> None:
        self._lines: Iterator[tuple[int, bytes]] = lines_after(data_dir, after_seq)
        self._seq, self._crc = 0, ""
        self.ended = False

    def crc(self, seq: int) -> str | None:
        """The checksum of a line in hex, None if the line is gone or not there yet."""
        while self._seq < seq and not self.ended:
            found = next(self._lines, None)
            if found is None:
                self.ended = True
            else:
                self._seq, self._crc = found[0], found[1][:8].decode()
        return self._crc if self._seq == seq else None


def has_log(data_dir: Path) -> bool:
    """Whether a directory's journal has a line; a power cut may leave one without even its first
    line."""
    for path in journal_files(data_dir / "journal"):
        with path.open("rb") as file:
            if decode_line(file.readline()) is not None:
                return True
    return False


def settled_seq(data_dir: Path) -> int:
    """The newest commit that is known to be in the changelog, or was published before there was
    one: a journal file starts only when no commit waits.

    After a power cut `published` may be older, even empty: it is not synced.
    """
    newest = published_seq(data_dir)
    for path in journal_files(data_dir / "journal"):
        with path.open("rb") as file:
            fields = decode_line(file.readline())
        if fields is not None:
            newest = max(newest, fields["checkpoint"])
    return newest


def line_before(data_dir: Path, seq: int) -> str:
    """The checksum of the line of commit `seq` in hex, "" if the line is gone."""
    return OwnLines(data_dir, seq - 1).crc(seq) or "" if seq else ""


def check_follows(data_dir: Path, record: Record, line: str | None) -> None:
    """Check that a record's commit follows the newest commit here, whose line has the checksum
    `line`. Raises: DivergedError."""
    if line and record.before and record.before != line:
        raise _divergence_error(data_dir, record.seq - 1)


def reconcile(
    data_dir: Path, reader: ChangelogReader, disk: Disk = DISK, until: int | None = None
) -> ChangelogPosition:
    """Compare the directory's lines with the changelog's, and truncate those that conflict:

    1. Cut torn lines off the journal. Otherwise half a line would look like a conflict.
    2. Check that the changelog has the stored position. From another position the comparison would
       miss the claims before it, and with them the current term.
    3. Compare the later lines, and truncate the directory's lines at the first conflict. A
       published line is never truncated: then the directories have diverged.
    4. Check that the changelog has all published commits. If it lost records, the next commit here
       would take a number that readers know for another one.

    until: offset before which to stop; None for the changelog's end.
    Returns: the newest commit that both have, the offset at which to resume, and the current term
    there. Later lines of the directory are beyond the changelog's end; the caller publishes or
    truncates them. Raises: DivergedError, ChangelogError, OutOfRange if a newer manifest is needed.
    """
    # Step 1.
    shown = settled_seq(data_dir)
    stored = read_position(data_dir)
    mend(data_dir, stored.seq if stored else shown, disk)

    # Step 2.
    begin, end = reader.bounds()
    if stored is not None and stored.offset > end:
        raise ChangelogError(
            f"The changelog ends at offset {end}, and {data_dir} has read it up to "
            f"{stored.offset}: its topic was created again, or lost records.",
            f"on the leader, {PUBLISH_AGAIN.format(data_dir / CHANGELOG)}; elsewhere start with an "
            "empty data_dir once there is a manifest.",
        )
    position = stored or ChangelogPosition(0, 0, 0)
    if position.offset < begin:
        # The current term is known only from the claims.
        raise OutOfRange(
            f"the changelog begins at offset {begin}, and was read here up to {position.offset}"
        )

    # Step 3.
    comparison = _Comparison(data_dir, position, shown, has_position=stored is not None)
    position, is_whole = comparison.read(reader, end if until is None else until, disk)
    if not is_whole:
        return position

    # Step 4.
    if position.seq < shown and stored is not None:
        raise ChangelogError(
            f"The changelog ends at commit {position.seq}, and {data_dir} has published commit "
            f"{shown}: it continued without the changelog, or that lost records.",
            f"on the leader, {PUBLISH_AGAIN.format(data_dir / CHANGELOG)}; elsewhere start with an "
            "empty data_dir.",
        )
    # The log had no changelog until now: all that is published stays.
    return replace(position, seq=max(position.seq, shown))


class _Comparison:
    """Compares the lines of a directory with the changelog's. Owner: `reconcile`."""

    def __init__(
        self, data_dir: Path, position: ChangelogPosition, shown: int, has_position: bool
    ) -> None:
        """position: from which to compare. shown: the newest published commit. has_position:
        whether the directory stores its position."""
        self._data_dir = data_dir
        self._position = position
        self._shown = shown
        self._has_position = has_position
        # The lines of old commits may be gone.
        self._own = OwnLines(data_dir, max(0, position.seq - 1))
        self._admission = Admission(position.term, position.seq)

    def read(
        self, reader: ChangelogReader, until: int, disk: Disk
    ) -> tuple[ChangelogPosition, bool]:
        """Read the changelog up to an offset, and truncate the directory's lines at the first
        conflict. Returns: the position of the newest commit that both have, and whether all was
        read: the reading ends at a line that the directory lacks."""
        reader.seek(self._position.offset)
        while reader.position < until:
            for entry in reader.read(READ_SECONDS):
                if entry.offset >= until:
                    break
                if not self._has_position:
                    _skip_lacking(self._admission, entry, self._shown)
                verdict = self._admission.judge(entry)
                is_of_commit = verdict in (Verdict.FIRST, Verdict.NEXT)
                if (
                    isinstance(entry, Record)
                    and is_of_commit
                    and not self._has_line(entry, verdict, disk)
                ):
                    return self._position, False
                # The position moves only over complete commits.
                if not self._admission.has_begun:
                    self._position = ChangelogPosition(
                        self._admission.term, self._admission.seq, entry.offset + 1
                    )
        return self._position, True

    def _has_line(self, record: Record, verdict: Verdict, disk: Disk) -> bool:
        """Whether the directory has the line of a record. If it has another line of that number,
        that line and all later ones are truncated. Raises: DivergedError if that line is
        published."""
        if verdict is Verdict.FIRST:
            check_follows(self._data_dir, record, self._own.crc(record.seq - 1))
        mine = self._own.crc(record.seq)
        # A published line conflicts only with a complete commit.
        is_due = record.seq > self._shown or record.is_last
        if mine is not None and mine != record.line and is_due:
            if record.seq <= self._shown:
                raise _divergence_error(self._data_dir, record.seq)
            logger.warning(
                "lines_truncated",
                first_seq=record.seq,
                data_dir=str(self._data_dir),
                meaning="the changelog has other commits from this one on; these had no readers",
            )
            take_back(self._data_dir, record.seq, disk)
            return False
        return mine is not None or record.seq <= self._shown


def _skip_lacking(admission: Admission, entry: Read, shown: int) -> None:
    """Skip commits that the changelog lacks, if this directory has published them and stores no
    position yet: its log is older than the changelog."""
    if isinstance(entry, Claim):
        lacks_until = entry.seq if entry.term == admission.term + 1 else 0
    elif isinstance(entry, Record) and entry.term == admission.term == UNCLAIMED and entry.is_whole:
        lacks_until = entry.seq - 1
    else:
        lacks_until = 0
    if admission.seq < lacks_until <= shown:
        admission.skip_to(lacks_until)


def _divergence_error(data_dir: Path, seq: int) -> DivergedError:
    return DivergedError(
        f"{data_dir} has published another commit {seq} than the changelog has.",
        "keep the directory aside, check that one leader runs, and start here with an empty one.",
    )
