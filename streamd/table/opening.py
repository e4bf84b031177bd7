"""Opens a log as tables, with a clear error if that is impossible."""

from pathlib import Path
from typing import TYPE_CHECKING

from streamd.errors import DataDirectoryError, JournalError, StreamdError, TGUFError
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.reader import LogReader

if TYPE_CHECKING:
    from streamd.table.log_snapshot import LogSnapshot

LEASE_SECONDS = 600.0
"""Default time without use after which a snapshot ends."""


def open_log(
    data_dir: str | Path, lease_seconds: float = LEASE_SECONDS, as_of: int | None = None
) -> "LogSnapshot":
    """Open a log at its newest published commit or at an older one; see `streamd.open_log`."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise StreamdError(
            "Tables of the log need pyarrow.", "pip install 'streamd-gnn[arrow]'."
        ) from None
    from streamd.table.lease import Lease
    from streamd.table.log_snapshot import LogSnapshot

    folder = Path(data_dir)
    try:
        # Keys as Arrow arrays are read on demand, and take a fifth of the memory.
        log = _open_at(folder, as_of)
    except PermissionError as error:
        raise DataDirectoryError(
            f"{error.filename} cannot be read: {error.strerror}.",
            "run as a user that may read the whole data_dir.",
        ) from None
    if log is None:
        raise DataDirectoryError(f"{folder} holds no log.", "name the data_dir of a log.")
    return LogSnapshot(log, Lease(folder, log.first_edge, log.state.seq, lease_seconds))


def _open_at(folder: Path, as_of: int | None) -> LogReader | None:
    """Open a reader; with `as_of` at that commit, without the rows that were deleted since. Raises:
    StreamdError if the log does not have the commit or no longer has its files."""
    if as_of is None:
        return LogReader.open(folder, keep_keys=False)
    try:
        log = LogReader.open(folder, keep_keys=False, until=as_of)
    except (JournalError, TGUFError) as error:
        raise _gone_error(as_of, str(error)) from None
    now = JournalTail.open(folder)
    if log is None or now is None:
        return None
    if log.state.seq != as_of:
        raise StreamdError(
            f"The log has no commit {as_of}: its newest is {now.state.seq}.", "name an older one."
        )
    # Files that were replaced since have other rows by now.
    files = {path: file.revision for path, file in now.state.files.items()}
    newer = files | {segment.path: segment.revision for segment in now.state.segments}
    if replaced := [path for path, revision in newer.items() if revision > as_of]:
        raise _gone_error(as_of, f"a later commit has replaced {replaced[0]}")
    log.take_deletions(now.state)
    return log


def _gone_error(as_of: int, why: str) -> StreamdError:
    return StreamdError(
        f"The log cannot be opened as of commit {as_of} any more: {why}.",
        "open it as of a later commit, or restore a backup of that time.",
    )
