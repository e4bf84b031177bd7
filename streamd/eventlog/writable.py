"""Checks whether this process could open a log for writing, before anything depends on it."""

from pathlib import Path

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.eventlog.journal.journal import NOTHING, LogState
from streamd.eventlog.layout import DELETIONS, FEATURES, KEYS
from streamd.eventlog.log_files import disk_error
from streamd.eventlog.recovery import last_state
from streamd.eventlog.segment_files import newest_time
from streamd.eventlog.sets_writer import new_segment
from streamd.events import Schema
from streamd.storage import DISK, SCRATCH, Disk

READ_BYTES = 1 << 22
"""Bytes read at a time."""


def check_writable(
    data_dir: Path, schema: Schema, segment_edges: int, disk: Disk = DISK
) -> LogState:
    """Check that `LogWriter` could open and write a log, without changing it.

    The schema must be the log's or extend it, keys and deletes must have the journal's checksums,
    the newest segment must be readable, and the disk must have room for another segment. The log
    may be open in this process. Returns: the log's state. Raises: SchemaError, JournalError,
    CorruptionError, TGUFError, DiskError.
    """
    try:
        state = last_state(data_dir, schema)
        state.check_takes(schema)
        for path in (KEYS, DELETIONS):
            _check_bytes(data_dir, path, state)
        # With another width of rows, the writer reads and rewrites them.
        if state.schema.node_feature_dim != schema.node_feature_dim:
            _check_bytes(data_dir, FEATURES, state)
        newest_time(data_dir, state)
        _check_room(data_dir, schema, segment_edges, disk)
    except OSError as error:
        raise disk_error(data_dir, error) from error
    return state


def _check_bytes(data_dir: Path, path: str, state: LogState) -> None:
    """Compare the committed bytes of a file with the journal's checksum. Raises: CorruptionError,
    OSError."""
    known = state.files.get(path, NOTHING)
    left, crc = known.num_bytes, 0
    if left:
        with (data_dir / path).open("rb") as file:
            while left and (data := file.read(min(left, READ_BYTES))):
                crc = crc32c(data, crc)
                left -= len(data)
    if left or crc != known.crc:
        raise CorruptionError(
            f"{path} differs from the journal's checksum.",
            "restore it from a backup, or start with an empty data_dir once there is a manifest.",
        )


def _check_room(data_dir: Path, schema: Schema, segment_edges: int, disk: Disk) -> None:
    """Create a segment and remove it. Raises: OSError if the disk has no room."""
    # After a kill, recovery removes it: it is named like a half-written journal file.
    path = data_dir / "journal" / f"room{SCRATCH}"
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(path, disk)
    try:
        new_segment(path, schema, segment_edges, disk).close()
    finally:
        _remove(path, disk)


def _remove(path: Path, disk: Disk) -> None:
    if path.is_dir():
        disk.remove_folder(path)
    else:
        disk.unlink(path)
