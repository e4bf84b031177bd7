"""A hold says what a role still needs of the log: the role writes it, and retention and compaction
read it.

`DATA/roles/<name>/hold` outlives its role: a trainer that is down for a week still finds its
events. A server's hold is a lease: it ends some time after the server does, since a server loses
nothing but the time to build its graph again.

`DATA/holds/compact` is the request to compact: everything deleted before an event id is to be
overwritten. Roles that see it store newer state, which no longer holds what was deleted.
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
"""File in REQUEST_FOLDER that holds the event id up to which to compact, in decimal digits."""
COMPACTED = "compacted"
"""File in REQUEST_FOLDER about the newest compaction that is done."""


RENEW_SECONDS = 20.0
"""Pause between two renewals of a hold, short beside the shortest lease of 60 seconds."""
WITHOUT_LEASE = ("train",)
"""Roles whose hold does not run out: what the trainer misses it can never learn."""


class Hold(msgspec.Struct, frozen=True):
    """What one role needs of the log.

    edge: the oldest event id that the role replays from after a restart. purged_before_event:
    data deleted by deletes before this event id (`clean_edge` in the file) is in none of the role's
    files any more. purged_until_seq: newest commit whose deletes are meant, as several deletes may
    come between two events; None if all before the event id are.
    """

    edge: int
    purged_before_event: int = msgspec.field(name="clean_edge")
    purged_until_seq: int | None = None

    def has_purged(self, event: int, seq: int) -> bool:
        """Whether the role's files are rid of the deletes before an event. seq: commit of the
        newest of these deletes."""
        of_commit = self.purged_until_seq
        return self.purged_before_event >= event and (of_commit is None or of_commit >= seq)


def write_hold(data_dir: Path, name: str, hold: Hold) -> None:
    """Write a role's hold durably; events that it no longer covers may be dropped at once."""
    write_durably(make_folder(data_dir, name) / HOLD, msgspec.json.encode(hold))


def begin_hold(data_dir: Path, name: str, edge: int) -> None:
    """Hold the log from an event id on for a role that is about to read it for the first time."""
    if not (folder_of(data_dir, name) / HOLD).exists():
        write_hold(data_dir, name, Hold(edge, edge))


def read_hold(data_dir: Path, name: str) -> Hold | None:
    """Read a role's own hold; None if there is none, or it is damaged."""
    try:
        return msgspec.json.decode((folder_of(data_dir, name) / HOLD).read_bytes(), type=Hold)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def renew_hold(data_dir: Path, name: str) -> None:
    """Say that the owner of a hold still runs, by the time of its file. Raises:
    FileNotFoundError."""
    # Nothing is synced: a lease that a crash shortens by a renewal is as good.
    os.utime(folder_of(data_dir, name) / HOLD)


def end_lease(data_dir: Path, name: str, lease_seconds: float, now: float) -> bool:
    """End a role's hold where its lease has run out, and remove the state that it was for, so that
    the role starts anew from the log's begin when it returns.

    A role that runs keeps its hold whatever the clocks say: it has the lock of its folder.
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
        # It has no hold of its own yet, or runs.
        return False

    # The hold goes last: one that a kill leaves is ended again, with what is left of the state.
    try:
        for part in (FACTS, MEMORY):
            shutil.rmtree(folder / part, ignore_errors=True)
        (folder / HOLD).unlink()
    finally:
        os.close(lock)
    return True


def read_holds(data_dir: Path) -> dict[str, Hold]:
    """Read the holds of all roles that ever ran here, by name. Raises: CorruptionError where one
    cannot be read."""
    holds = {}
    # Where a role has two files, the one in its own folder comes later and counts.
    for name, path in _hold_files(data_dir):
        try:
            holds[name] = msgspec.json.decode(path.read_bytes(), type=Hold)
        except FileNotFoundError:
            # A role that starts has moved it since it was listed.
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
    """Ask ingest to compact: it overwrites deleted rows as far as the oldest hold, and is done when
    none waits and every role has purged the deletes placed before `edge`."""
    (data_dir / REQUEST_FOLDER).mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / REQUEST_FOLDER / COMPACT_REQUEST, b"%d" % edge)


def asked_to_compact(data_dir: Path) -> int | None:
    """The event id of the request to compact, None where there is no request."""
    try:
        return int((data_dir / REQUEST_FOLDER / COMPACT_REQUEST).read_bytes())
    except FileNotFoundError:
        return None


class Compacted(msgspec.Struct, frozen=True):
    """The newest compaction that is done.

    seq: the log's newest commit then: the files from then on hold nothing of what it removed. edge:
    event id before which deletes became physical. done_at: wall time in seconds.
    """

    seq: int
    edge: int
    done_at: float


def compact_done(data_dir: Path, seq: int | None = None) -> None:
    """Remove the request to compact, because it is fulfilled, and note that for copies of the
    files that are elsewhere. seq: the log's newest commit, None where there are no copies."""
    folder = data_dir / REQUEST_FOLDER
    request = asked_to_compact(data_dir)
    if request is not None and seq is not None:
        done = Compacted(seq, request, time.time())
        write_durably(folder / COMPACTED, msgspec.json.encode(done))
    (folder / COMPACT_REQUEST).unlink(missing_ok=True)


def read_compacted(data_dir: Path) -> Compacted | None:
    """Read which compaction was done last, None for none. Raises: CorruptionError."""
    path = data_dir / REQUEST_FOLDER / COMPACTED
    try:
        return msgspec.json.decode(path.read_bytes(), type=Compacted)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptionError(
            f"{path} is damaged: {error}.", "remove it, and run `streamd compact` again."
        ) from None
