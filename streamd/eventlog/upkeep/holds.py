"""A hold is the part of the log that a role still needs. The role writes it; retention and
compaction read it.

`DATA/roles/<name>/hold` outlives its role: a trainer that is down for a week still finds its
events. A server's hold is a lease: it ends some time after the server stops, because a server loses
only the time to build its graph again.

`DATA/holds/compact` is the request to compact: all data that was deleted before an event id is to
be overwritten. Roles that see it store newer state without the deleted data.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from streamd.errors import CorruptionError, LockedError
from streamd.eventlog.recovery import lock_directory
from streamd.roles import FACTS, HOLD, LOCK, MEMORY, OLD_HOLDS, folder_of, make_folder, names_in
from streamd.storage import write_durably

REQUEST_FOLDER = "holds"
COMPACT_REQUEST = "compact"
"""File in REQUEST_FOLDER with the event id up to which to compact, in decimal digits."""
COMPACTED = "compacted"
"""File in REQUEST_FOLDER about the newest completed compaction."""


RENEW_SECONDS = 20.0
"""Pause between two renewals of a hold: short compared with the shortest lease, 60 seconds."""
WITHOUT_LEASE = ("train",)
"""Roles with a hold that does not expire: the trainer could never train on events that it
missed."""


class Hold(msgspec.Struct, frozen=True):
    """The part of the log that one role needs.

    edge: the oldest event id that the role replays after a restart. purged_before_event: the role's
    files have no data any more that was deleted before this event id (`clean_edge` in the file).
    purged_until_seq: newest commit with deletes for which that is true, as several deletes may come
    between two events; None if it is true for all before the event id.
    """

    edge: int
    purged_before_event: int = msgspec.field(name="clean_edge")
    purged_until_seq: int | None = None

    def has_purged(self, event: int, seq: int) -> bool:
        """Whether the role's files have no data that was deleted before an event. seq: commit of
        the newest of these deletes."""
        of_commit = self.purged_until_seq
        return self.purged_before_event >= event and (of_commit is None or of_commit >= seq)


def write_hold(data_dir: Path, name: str, hold: Hold) -> None:
    """Write a role's hold durably; events that it no longer covers may be dropped at once."""
    write_durably(make_folder(data_dir, name) / HOLD, msgspec.json.encode(hold))


def begin_hold(data_dir: Path, name: str, edge: int) -> None:
    """Write the first hold of a role that is about to read the log from an event id on."""
    if not (folder_of(data_dir, name) / HOLD).exists():
        write_hold(data_dir, name, Hold(edge, edge))


def read_hold(data_dir: Path, name: str) -> Hold | None:
    """Read a role's own hold; None if there is none, or it is damaged."""
    try:
        return msgspec.json.decode((folder_of(data_dir, name) / HOLD).read_bytes(), type=Hold)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def renew_hold(data_dir: Path, name: str) -> None:
    """Renew the lease of a hold: its owner still runs. The time of the file shows it. Raises:
    FileNotFoundError."""
    # No sync: a crash may shorten the lease by one renewal.
    os.utime(folder_of(data_dir, name) / HOLD)


def end_lease(data_dir: Path, name: str, lease_seconds: float, now: float) -> bool:
    """Remove a role's hold if its lease has expired, with the state that it protected; when the
    role returns, it starts again from the log's first event:

    1. Take the lock of the role's folder. A running role has it, and so keeps its hold even if a
       clock is wrong.
    2. Remove the state.
    3. Remove the hold. If a crash leaves it, the next call removes it with the remaining state.

    now: wall clock, seconds. Returns: whether the hold is gone. Raises: OSError.
    """
    folder = folder_of(data_dir, name)
    if name in WITHOUT_LEASE:
        return False
    try:
        if now - (folder / HOLD).stat().st_mtime <= lease_seconds:
            return False
        lock = lock_directory(folder / LOCK)
    except (FileNotFoundError, LockedError):
        # The role has no hold of its own yet, or it runs.
        return False

    # 2. Remove the state. 3. Remove the hold.
    try:
        for part in (FACTS, MEMORY):
            shutil.rmtree(folder / part, ignore_errors=True)
        (folder / HOLD).unlink()
    finally:
        os.close(lock)
    return True


def read_holds(data_dir: Path) -> dict[str, Hold]:
    """Read the holds of all roles that ever ran here, by name. Raises: CorruptionError if one
    cannot be read."""
    holds = {}
    # If a role has two files, the one in its own folder comes later and counts.
    for name, path in _hold_files(data_dir):
        try:
            holds[name] = msgspec.json.decode(path.read_bytes(), type=Hold)
        except FileNotFoundError:
            # A role that starts has moved the file since it was listed.
            continue
        except msgspec.DecodeError as error:
            raise CorruptionError(
                f"{path} is damaged: {error}.",
                f"remove it if {name} will not run here again, or start {name}.",
            ) from None
    return holds


def _hold_files(data_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yield (role's name, path) of every file that may be a hold.

    A role that starts may move its hold meanwhile, from the old folder to the new one. So the old
    folder is read first, and the new folders are listed only then.
    """
    yield from (
        (p.name, p)
        for p in sorted((data_dir / OLD_HOLDS).glob("[a-z]*"))
        if p.name not in (COMPACT_REQUEST, COMPACTED)
    )
    yield from ((name, folder_of(data_dir, name) / HOLD) for name in names_in(data_dir))


def ask_to_compact(data_dir: Path, edge: int) -> None:
    """Request a compaction. Ingest overwrites deleted rows up to the oldest hold, and is done when
    none waits and every role has purged the deletes before `edge`."""
    (data_dir / REQUEST_FOLDER).mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / REQUEST_FOLDER / COMPACT_REQUEST, b"%d" % edge)


def asked_to_compact(data_dir: Path) -> int | None:
    """The event id of the request to compact, None if there is no request."""
    try:
        return int((data_dir / REQUEST_FOLDER / COMPACT_REQUEST).read_bytes())
    except FileNotFoundError:
        return None


class CompactionDone(msgspec.Struct, frozen=True):
    """The newest completed compaction.

    seq: the log's newest commit at its end: from then on the files have none of the removed data.
    edge: event id before which deletes became physical. done_at: wall time in seconds.
    """

    seq: int
    edge: int
    done_at: float


def compact_done(data_dir: Path, seq: int | None = None) -> None:
    """Record a completed compaction for copies of the files elsewhere, and then remove the request.
    seq: the log's newest commit, None if there are no copies."""
    folder = data_dir / REQUEST_FOLDER
    request = asked_to_compact(data_dir)
    if request is not None and seq is not None:
        done = CompactionDone(seq, request, time.time())
        write_durably(folder / COMPACTED, msgspec.json.encode(done))
    (folder / COMPACT_REQUEST).unlink(missing_ok=True)


def read_compacted(data_dir: Path) -> CompactionDone | None:
    """Read the newest completed compaction, None if there is none. Raises: CorruptionError."""
    path = data_dir / REQUEST_FOLDER / COMPACTED
    try:
        return msgspec.json.decode(path.read_bytes(), type=CompactionDone)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptionError(
            f"{path} is damaged: {error}.", "remove it, and run `streamd compact` again."
        ) from None
