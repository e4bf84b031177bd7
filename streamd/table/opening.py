"""Opens a log as tables, with a clear error if that is impossible."""

from pathlib import Path
from typing import TYPE_CHECKING

from streamd.errors import DataDirectoryError, StreamdError
from streamd.eventlog.reader import LogReader

if TYPE_CHECKING:
    from streamd.table.log_snapshot import LogSnapshot

LEASE_SECONDS = 600.0
"""Default time without use after which a snapshot ends."""


def open_log(data_dir: str | Path, lease_seconds: float = LEASE_SECONDS) -> "LogSnapshot":
    """Open a log at its newest published commit; see `streamd.open_log`."""
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
        log = LogReader.open(folder, keep_keys=False)
    except PermissionError as error:
        raise DataDirectoryError(
            f"{error.filename} cannot be read: {error.strerror}.",
            "run as a user that may read the whole data_dir.",
        ) from None
    if log is None:
        raise DataDirectoryError(f"{folder} holds no log.", "name the data_dir of a log.")
    return LogSnapshot(log, Lease(folder, log.first_edge, log.state.seq, lease_seconds))
