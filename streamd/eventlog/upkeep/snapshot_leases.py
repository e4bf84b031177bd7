"""A lease keeps the segments of a log from retention while a program reads a snapshot of it.

`DATA/snapshots/<process>-<number>.json` is one lease. It runs out by itself, so that a program that
was killed or forgot its snapshot keeps the log for minutes only. Compaction does not wait for it: a
snapshot has its files mapped, and sees them as they were.
"""

import contextlib
import itertools
import os
import socket
from pathlib import Path

import msgspec

from streamd.storage import write_durably

FOLDER = "snapshots"
ENDING = ".json"
_numbers = itertools.count()


class SnapshotLease(msgspec.Struct, frozen=True):
    """The lease of one snapshot.

    first_event: oldest event id that it reads. seq: its commit. until: wall time in seconds at
    which it runs out. process: of its owner, for people.
    """

    first_event: int
    seq: int
    until: float
    process: str

    @classmethod
    def mine(cls, first_event: int, seq: int, until: float) -> "SnapshotLease":
        """A lease of this process."""
        return cls(first_event, seq, until, f"{os.getpid()} on {socket.gethostname()}")


def new_lease(data_dir: Path) -> Path:
    """A path for a lease that no other snapshot has."""
    # Containers that share a volume may have the same process ids, so name the machine too.
    name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}{ENDING}"
    return data_dir / FOLDER / name


def write_lease(path: Path, lease: SnapshotLease) -> None:
    """Write or renew a lease. Raises: OSError, for example without the right to write."""
    # The folder is there after the first snapshot.
    path.parent.mkdir(exist_ok=True)
    write_durably(path, msgspec.json.encode(lease))


def read_leases(data_dir: Path, now: float) -> list[SnapshotLease]:
    """The leases that have not run out, and remove the files of all others. now: wall time in
    seconds. Leases that cannot be removed are left out too."""
    leases = []
    # A damaged lease counts as one that has run out.
    for path in sorted((data_dir / FOLDER).glob(f"*{ENDING}")):
        try:
            lease = msgspec.json.decode(path.read_bytes(), type=SnapshotLease)
        except (OSError, msgspec.DecodeError):
            lease = None
        if lease is not None and lease.until > now:
            leases.append(lease)
            continue
        # Its snapshot has refused to read since it ran out.
        with contextlib.suppress(OSError):
            path.unlink()
    return leases
