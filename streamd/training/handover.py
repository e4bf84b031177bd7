"""Handovers: links to the files that a trainer on another machine needs to resume exactly as this
one would after a crash.

They are made between two windows, when no step is under way: all results are durable then, and
files, journal and history match. Sending may take long; meanwhile the trainer deletes and replaces
its own files, and the links keep the old ones.
"""

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from streamd.eventlog.upkeep.holds import Hold, read_hold
from streamd.registry.journal import Move, decoded_moves
from streamd.registry.registry import FOLDER as MODELS
from streamd.roles import FACTS, folder_of
from streamd.settings.trials import VERSION_NAME
from streamd.storage import DISK, link_or_copy
from streamd.store.checkpoints import HISTORY, MOVES, LocalCheckpoint
from streamd.training.initial_training import FILE as RANGE
from streamd.training.window_attempts import FILE as ATTEMPT
from streamd.windows.history import FILE as HISTORY_FILE

logger = structlog.get_logger()
LINKS = "train/.handover"
"""Folder of the links in the data directory; hidden, so that backups skip it."""
ROLE = "train"
"""The trainer's role name, and the name of its folder in `roles/`."""
CHECKPOINTS = "train/checkpoints"
REPLAY = "train/replay"
NIGHTLY = "train/nightly"
JOURNAL = f"{MODELS}/journal.jsonl"
VERSIONS = "versions"
"""Folder of the links to versions, within the folder of a handover."""


class _Cursor(msgspec.Struct):
    """The fields of a checkpoint's cursor that name its other files."""

    edge: int
    history_bytes: int
    replay: dict[str, int | list[int]] = {}
    nightly: str = ""


@dataclass(frozen=True, slots=True)
class Handover:
    """Links to a trainer's state after a window. Owner: `Handovers`.

    local: all files except those of versions.
    versions: names of all versions; each has a folder of links in VERSIONS.
    """

    local: LocalCheckpoint
    versions: tuple[str, ...]

    def moves(self) -> list[Move]:
        """Read the moves of the registry's journal."""
        path = self.local.folder / MOVES
        size = self.local.files.get(MOVES, 0)
        return decoded_moves(path.read_bytes()[:size] if path.exists() else b"")

    @property
    def num_history_bytes(self) -> int:
        """Length of the valid part of the history, bytes."""
        return self.local.files.get(HISTORY, 0)


class Handovers:
    """Keeps the newest handover until it is sent.

    Owner of the links: the trainer's thread makes them, another thread sends them.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._links = data_dir / LINKS
        self._lock = threading.Lock()
        self._number = 0
        self._seen: object = None
        self._waiting: Handover | None = None
        self._sending: Handover | None = None
        DISK.remove_folder(self._links)

    def take(self) -> None:
        """Link to the trainer's state if it has changed since the last call. Call it between two
        windows.

        1. Link to all files, in a new folder. On an OSError, such as a full disk, remove the folder
           and log the error: training continues, and the next call tries again.
        2. Replace the handover that waits to be sent. Before step 1 is complete, a sender would
           miss files.
        3. Remove the links of the replaced handover.
        """
        checkpoint = newest_checkpoint(self._data_dir)
        if checkpoint is None or (seen := self._stamp(checkpoint)) == self._seen:
            return
        # 1. A whole folder of links.
        self._number += 1
        folder = self._links / f"{self._number}"
        try:
            folder.mkdir(parents=True)
            taken = self._link_files(checkpoint, folder)
        except OSError as error:
            DISK.remove_folder(folder)
            logger.error(
                "handover_failed",
                error=str(error),
                meaning="until there is room, other machines get no newer state of the trainer",
            )
            return
        # 2. From here on a sender may begin to read it.
        with self._lock:
            old, self._waiting, self._seen = self._waiting, taken, seen
        # 3. No sender uses the links of the replaced handover: it was still waiting.
        if old is not None:
            DISK.remove_folder(old.local.folder)

    def begin(self) -> Handover | None:
        """The newest state that was not sent, None if all were sent.

        It is kept until `end`, so that the caller can retry after a failure; a newer state replaces
        it.
        """
        with self._lock:
            old = None
            if self._waiting is not None:
                old, self._sending, self._waiting = self._sending, self._waiting, None
        if old is not None:
            DISK.remove_folder(old.local.folder)
        return self._sending

    def end(self) -> None:
        """Mark the state that `begin` returned as sent, and remove its links."""
        sent, self._sending = self._sending, None
        if sent is not None:
            DISK.remove_folder(sent.local.folder)

    def take_again(self) -> None:
        """Make the next call of `take` link to the state even if it has not changed."""
        with self._lock:
            self._seen = None

    @property
    def is_waiting(self) -> bool:
        """Whether a state was not sent yet."""
        return self._waiting is not None or self._sending is not None

    def _stamp(self, checkpoint: Path) -> object:
        """A value that changes whenever the trainer's state does."""
        stats: list[object] = [checkpoint.name, self._hold()]
        for path in (JOURNAL, f"train/{ATTEMPT}"):
            with contextlib.suppress(FileNotFoundError):
                status = (self._data_dir / path).stat()
                stats.append((path, status.st_ino, status.st_size))
        return stats

    def _hold(self) -> Hold:
        """The trainer's hold: the first event that a restart reads, and how far deletes are
        purged."""
        return read_hold(self._data_dir, ROLE) or Hold(0, 0)

    def _link_files(self, checkpoint: Path, folder: Path) -> Handover:
        """Link to every file of a checkpoint. Raises: OSError."""
        hold = self._hold()
        cursor = msgspec.json.decode((checkpoint / "cursor.json").read_bytes(), type=_Cursor)
        files: dict[str, int] = {}

        def link(old: Path, path: str, size: int | None = None) -> None:
            new = folder / path
            new.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                link_or_copy(old, new)
                bytes_there = new.stat().st_size
                files[path] = bytes_there if size is None else min(size, bytes_there)

        # The checkpoint, and the files that its cursor names.
        for path in checkpoint.iterdir():
            link(path, f"checkpoint/{path.name}")
        chunks = cursor.replay.get("chunks", [])
        for edge in chunks if isinstance(chunks, list) else []:
            name = f"{edge:020d}.safetensors"
            link(self._data_dir / REPLAY / name, f"replay/{name}")
        for path in _files(self._data_dir / NIGHTLY / cursor.nightly) if cursor.nightly else ():
            link(path, f"nightly/{path.name}")
        for path in _files(folder_of(self._data_dir, ROLE) / FACTS):
            link(path, f"facts/{path.name}")

        # Files that grow count up to their present length.
        link(self._data_dir / HISTORY_FILE, HISTORY, cursor.history_bytes)
        link(self._data_dir / JOURNAL, MOVES)
        for name in (ATTEMPT, RANGE):
            link(self._data_dir / "train" / name, name)

        # All versions: the models topic may lack some of them.
        versions = []
        for version in sorted((self._data_dir / MODELS).iterdir()):
            if VERSION_NAME.fullmatch(version.name) and (version / "manifest.json").exists():
                for path in _files(version):
                    own = folder / VERSIONS / version.name / path.name
                    own.parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(path, own)
                versions.append(version.name)
        return Handover(
            LocalCheckpoint(
                folder=folder,
                checkpoint=checkpoint.name,
                nightly=cursor.nightly if "nightly/twin.json" in files else "",
                edge=cursor.edge,
                held=hold.edge,
                purged_before=hold.purged_before_event,
                files=files,
            ),
            tuple(versions),
        )


def newest_checkpoint(data_dir: Path) -> Path | None:
    """The folder of the trainer's newest checkpoint; None if there is none."""
    folder = data_dir / CHECKPOINTS
    if not folder.is_dir():
        return None
    return max((path for path in folder.iterdir() if path.name[:1].isdigit()), default=None)


def _files(folder: Path) -> list[Path]:
    """The complete files of a folder, without temporary ones; empty if the folder does not
    exist."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
