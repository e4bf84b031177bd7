"""Replaces the state in a trainer's directory by the newest stored checkpoint, so that training
resumes there exactly as after a crash on the machine that stored it.

A kill at any step leaves a directory without a checkpoint marker (`checkpoint_marker.py`), so that
the next start takes the newest checkpoint from the first step on. The folder of checkpoints is
removed first and moved last: after a kill no reader finds a checkpoint without its other files.
"""

from collections.abc import Callable
from pathlib import Path

import structlog
from crc32c import crc32c

from streamd.registry import Registry
from streamd.registry.journal import decoded_moves
from streamd.replica.models.checkpoint_marker import Stored, remove_marker, write_marker
from streamd.replica.models.follower import fetch_version
from streamd.replica.models.records import Checkpointed
from streamd.replica.models.state import ModelsState
from streamd.roles import FACTS, HOLD, folder_of
from streamd.storage import DISK, Disk
from streamd.store.checkpoints import (
    HISTORY,
    MOVES,
    StoredCheckpoint,
    download_checkpoint,
    read_checkpoint,
)
from streamd.store.objects import Store
from streamd.store.versions import MANIFEST
from streamd.training.handover import CHECKPOINTS, NIGHTLY, REPLAY, ROLE
from streamd.training.initial_training import FILE as RANGE
from streamd.training.window_attempts import FILE as ATTEMPT
from streamd.windows.history import FILE as HISTORY_FILE

logger = structlog.get_logger()
TAKEN = "train/.taken"
"""Folder in the data directory with the checkpoint's files, until they are moved."""
MEMORY = "train/memory"
"""Links to files of memory; a trainer makes them again."""


class Takeover:
    """Takes a checkpoint from the store. Owner: the train process, before it trains."""

    def __init__(
        self,
        data_dir: Path,
        registry: Registry,
        store: Store,
        on_step: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] = lambda done, of: None,
        disk: Disk = DISK,
    ) -> None:
        """Args: data_dir, registry: of the trainer. on_step: called with the name of each step as
        it begins; tests stop there. progress: called with (bytes fetched, bytes in all)."""
        self._data_dir = data_dir
        self._registry = registry
        self._store = store
        self._on_step = on_step
        self._progress = progress
        self._disk = disk

    def take(self, newest: Checkpointed, state: ModelsState) -> StoredCheckpoint:
        """Replace the state in the trainer's directory by a checkpoint, in this order:

        1. Fetch the checkpoint's files into a folder of their own. That takes long, and a failure
           loses nothing.
        2. Remove the checkpoint marker. After a kill from here on, the next start takes the newest
           checkpoint; with the marker it would resume from a mix of two.
        3. Fetch the versions, then write the moves that name them, then drop other versions. Moves
           without their version would leave servers here without a champion.
        4. Replace the trainer's own files, the checkpoint's folder last: a trainer that finds the
           folder resumes from it, and would miss files that are not there yet.
        5. Write the marker, once the directory is the checkpoint's.

        state: of the whole topic. Raises: StoreError, OSError: another call starts again.
        """
        # Step 1.
        taken = self._data_dir / TAKEN
        self._on_step("fetch")
        stored = read_checkpoint(self._store, newest.name, newest.size, newest.crc)
        self._disk.remove_folder(taken)
        taken.mkdir(parents=True)
        download_checkpoint(self._store, stored, taken, self._progress, self._disk)
        self._registry.sweep()

        # Steps 2 and 3.
        self._on_step("unmark")
        remove_marker(self._data_dir, self._disk)
        self._fetch_versions(stored)
        moves = self._put_moves(taken, state)
        self._on_step("prune")
        self._registry.keep({v.name: len(v.files) > 1 for v in stored.versions})

        # Steps 4 and 5.
        self._put_files(taken, stored)
        self._on_step("mark")
        versions = {v.name: crc32c(v.manifest.encode()) for v in stored.versions}
        entry = Stored(
            name=newest.name,
            num_moves=moves,
            history_bytes=stored.file(HISTORY).size,
            versions=versions,
        )
        write_marker(self._data_dir, [entry], self._disk)
        self._disk.remove_folder(taken)
        return stored

    def _fetch_versions(self, stored: StoredCheckpoint) -> None:
        """Fetch the checkpoint's versions that are not here already."""
        for version in stored.versions:
            self._on_step("version")
            folder = self._registry.folder / version.name
            try:
                is_same = (folder / MANIFEST).read_text() == version.manifest
            except FileNotFoundError:
                is_same = False
            if not is_same or not all((folder / file.path).exists() for file in version.files):
                fetch_version(self._registry, self._store, version, len(version.files) > 1)

    def _put_moves(self, taken: Path, state: ModelsState) -> int:
        """Replace the journal by the trainer's. Returns: its number of moves; the topic may get all
        of them."""
        path = taken / MOVES
        stored = decoded_moves(path.read_bytes()) if path.exists() else []
        # Manual moves are sent at once, others after the checkpoint. So if the checkpoint lacks the
        # topic's last move, that is a manual move after all moves of the checkpoint.
        topic_moves = state.moves
        moves = stored if not topic_moves or topic_moves[-1] in stored else topic_moves
        self._on_step("moves")
        # Servers here do not follow moves that only the checkpoint has.
        self._registry.journal.show(topic_moves[-1] if topic_moves else None)
        if moves and self._registry.journal.moves() != moves:
            self._registry.journal.replace(moves)
        return len(moves)

    def _put_files(self, taken: Path, stored: StoredCheckpoint) -> None:
        """Move the trainer's own files to their paths, its checkpoint last."""
        train = self._data_dir / "train"
        train.mkdir(exist_ok=True)
        role = folder_of(self._data_dir, ROLE)
        role.mkdir(parents=True, exist_ok=True)
        self._on_step("clear")
        clear(self._data_dir, self._disk)

        self._on_step("files")
        targets = {
            "replay": self._data_dir / REPLAY,
            "facts": role / FACTS,
            "nightly": self._data_dir / NIGHTLY / stored.nightly,
            HISTORY: self._data_dir / HISTORY_FILE,
            ATTEMPT: train / ATTEMPT,
            RANGE: train / RANGE,
        }
        for path, target in targets.items():
            if (taken / path).exists():
                target.parent.mkdir(exist_ok=True)
                self._disk.replace(taken / path, target)
                self._disk.sync_folder(target.parent)
        self._on_step("place")
        checkpoints = self._data_dir / CHECKPOINTS
        checkpoints.mkdir()
        self._disk.replace(taken / "checkpoint", checkpoints / stored.checkpoint)
        for folder in (checkpoints, train, role, self._data_dir):
            self._disk.sync_folder(folder)


def clear(data_dir: Path, disk: Disk = DISK) -> None:
    """Remove a trainer's files besides versions and history: the marker first, its hold on the log
    last."""
    remove_marker(data_dir, disk)
    role = folder_of(data_dir, ROLE)
    for folder in (CHECKPOINTS, REPLAY, NIGHTLY, MEMORY):
        disk.remove_folder(data_dir / folder)
    for name in (ATTEMPT, RANGE):
        disk.unlink(data_dir / "train" / name)
    disk.remove_folder(role / FACTS)
    disk.unlink(role / HOLD)


def has_state(data_dir: Path) -> bool:
    """Whether a trainer left a checkpoint or a hold here."""
    targets = (data_dir / CHECKPOINTS, folder_of(data_dir, ROLE) / HOLD)
    return any(target.exists() for target in targets)
