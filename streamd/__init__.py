"""streamd keeps a temporal graph model up to date with a live event stream."""

from pathlib import Path
from typing import TYPE_CHECKING

# Its room needs pyarrow, which is an extra.
if TYPE_CHECKING:
    from streamd.table.log_snapshot import LogSnapshot

__version__ = "0.2.0.dev0"


def open_log(
    data_dir: str | Path, lease_seconds: float = 600.0, as_of: int | None = None
) -> "LogSnapshot":
    """Open a log as tables, as of its newest published commit.

    Args:
        data_dir (str or Path): data directory of a log: a living one, a replica's, or a restored
            backup's. Needs the right to read it.
        lease_seconds (float, default 600): the snapshot ends if it is not used for so long; until
            then retention keeps its segments.
        as_of (int, optional): number of an older commit; by default the newest. Rows that were
            deleted since are left out.

    Returns: a LogSnapshot. Close it, or use it in a `with` statement.

    Raises:
        DataDirectoryError: there is no log, or no right to read it.
        JournalError: the journal is damaged, or of a newer release.
        TGUFError: a segment is gone, damaged, or cannot be read.
        StreamdError: pyarrow is not installed; or retention or compaction has replaced files of
            the commit `as_of`.
    """
    # Imported here: every import of streamd runs this file.
    from streamd.table.opening import open_log

    return open_log(data_dir, lease_seconds, as_of)
