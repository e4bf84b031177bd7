"""The lease of a snapshot, from its opening until it is closed or runs out."""

import contextlib
import threading
import time
from pathlib import Path

from streamd.errors import LeaseError
from streamd.eventlog.upkeep.snapshot_leases import SnapshotLease, new_lease, write_lease

RENEWALS = 10
"""Renewals in the time of a lease, if the snapshot is used all the time."""


class Lease:
    """Keeps the log's segments for a snapshot as long as it is used. Owner: the snapshot; any
    thread may use it.

    is_kept: whether retention sees it; not in a directory that this process may not write.
    """

    def __init__(self, data_dir: Path, first_event: int, seq: int, seconds: float) -> None:
        """first_event: oldest event id that is read. seq: commit of the files that are mapped.
        seconds: without use, after which it runs out."""
        self.seconds = seconds
        self.is_kept = True
        self._path = new_lease(data_dir)
        self._first_event = first_event
        self._seq = seq
        self._until = time.time() + seconds
        self._is_closed = False
        self._lock = threading.Lock()
        # Without the right to write, the mapped files must do.
        try:
            self._write()
        except OSError:
            self.is_kept = False

    def use(self) -> None:
        """Renew the lease, at most RENEWALS times in its seconds. Raises: LeaseError if it has run
        out or is closed."""
        with self._lock:
            left = self._until - time.time()
            if self._is_closed:
                raise LeaseError("The snapshot of the log is closed.", "open the log again.")
            if left <= 0:
                raise LeaseError(
                    f"The snapshot's lease has run out: it was not used for {self.seconds:g} "
                    "seconds.",
                    "open the log again, or with more lease_seconds.",
                )
            # Renew it, but not for each batch.
            if left < self.seconds * (1 - 1 / RENEWALS):
                self._until = time.time() + self.seconds
                if self.is_kept:
                    self._write()

    def move(self, first_event: int, seq: int, *, at_once: bool = True) -> None:
        """Let retention drop the events before `first_event`, once files of the commit `seq` are
        mapped. at_once: not only at the next renewal. Raises: as `use`."""
        self.use()
        with self._lock:
            self._first_event = first_event
            self._seq = seq
            if at_once and self.is_kept:
                self._write()

    def close(self) -> None:
        """End the lease; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            if self.is_kept:
                with contextlib.suppress(OSError):
                    self._path.unlink()

    def _write(self) -> None:
        lease = SnapshotLease.mine(self._first_event, self._seq, self._until)
        write_lease(self._path, lease)
