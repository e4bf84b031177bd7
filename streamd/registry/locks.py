"""The three locks of models in a data directory. A process takes them in this order:

1. `train/lock`: of the one trainer, while it runs.
2. `models/.writer`: of the one that writes versions, a trainer in its term or a replica's follower,
   while it does. Only logs of several machines have it.
3. `models/.lock`: of each change of champion and shadow, and of each removal of versions.

All end with the process that holds them.
"""

from pathlib import Path

from filelock import FileLock

from streamd.eventlog.recovery import lock_directory

TRAINER = "train/lock"
"""In the folder of what is learned."""
WRITER = ".writer"
"""In the folder of versions, as is MOVES."""
MOVES = ".lock"


def lock_trainer(learned: Path) -> int:
    """Take the lock of the one trainer. learned: the trainer's folder. Returns: the lock's
    descriptor; closing it releases the lock. Raises: LockedError, DataDirectoryError."""
    return lock_directory(learned / TRAINER)


def lock_writer(versions: Path) -> int:
    """Take the lock of the one writer of versions. versions: their folder. Returns, raises: as
    `lock_trainer`."""
    return lock_directory(versions / WRITER, "none is needed: it ends by itself.")


def moves_lock(versions: Path) -> FileLock:
    """Make the lock of moves; `with` waits for it. A thread that has it may take it again.
    versions: their folder."""
    return FileLock(versions / MOVES)
