"""A disk that stops, tears, refuses or loses writes at a chosen system call, as kill -9, power loss and failing disks do."""

import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from streamd.storage import Disk

SECTOR = 512
STASH = itertools.count()


class Crash(BaseException):
    """The process is gone; nothing after this call ran."""


class Unsynced:
    """What of a file would be lost by a power cut: its size on the disk, and sectors as they are there."""

    def __init__(self, size: int, sectors: dict[int, bytes] | None = None) -> None:
        self.size, self.sectors = size, sectors or {}


class FaultyDisk(Disk):
    """Counts calls and strikes at call number `at` (from 0).

    mode: "kill" stops before the call; "torn" writes a prefix first; "power" stops and loses, at random, what was not
    synced: sectors, file sizes and directory entries; "full" and "broken" let the call fail with ENOSPC or EIO;
    "unsynced" lets a sync fail as Linux does: the page cache goes on showing what was written and takes it for clean, so
    that only what is written again will ever reach the disk. `cut_power` shows it.
    on_call: told before each call, to look at the directory from outside.
    """

    def __init__(self, at: int = -1, mode: str = "kill", seed: int = 0, on_call: Callable[[], None] | None = None) -> None:
        self.at, self.mode, self.calls = at, mode, 0
        self.struck = False
        self.syncs: list[int] = []
        """Numbers of the calls that were syncs of files."""
        self._random = random.Random(f"{mode} {at} {seed}")
        self._on_call = on_call
        self._paths: dict[int, Path] = {}
        self._dirty: dict[Path, Unsynced] = {}
        self._lost: dict[Path, Unsynced] = {}
        self._entries: list[tuple[Path, Callable[[], None]]] = []

    def _step(self, writes: bool = False) -> None:
        if self._on_call is not None:
            self._on_call()
        self.calls += 1
        if self.calls - 1 != self.at:
            return
        self.struck = True
        if self.mode in ("full", "broken", "unsynced"):
            number = errno.ENOSPC if self.mode == "full" else errno.EIO
            raise OSError(number, os.strerror(number))
        if self.mode == "power":
            self._lose()
        if not (self.mode == "torn" and writes):
            raise Crash

    def open(self, path, flags):
        self._step()
        new = bool(flags & os.O_CREAT) and not path.exists()
        if flags & os.O_TRUNC and not new:
            self._remember(path, 0, path.stat().st_size)
        fd = super().open(path, flags)
        self._paths[fd] = path
        if new:
            self._entries.append((path.parent, lambda: path.unlink(missing_ok=True)))
        return fd

    def allocate(self, fd, num_bytes, offset=0):
        self._step()
        self._remember(self._paths[fd], 0, 0)
        super().allocate(fd, num_bytes, offset)

    def write(self, fd, data, offset):
        self._step(writes=True)
        self._remember(self._paths[fd], offset, offset + len(data))
        if self.struck and self.mode == "torn":
            super().write(fd, bytes(data)[: self._random.randrange(len(data))], offset)
            raise Crash
        super().write(fd, data, offset)

    def truncate(self, fd, num_bytes):
        self._step()
        self._remember(self._paths[fd], num_bytes, os.fstat(fd).st_size)
        super().truncate(fd, num_bytes)

    def sync(self, fd):
        path = self._paths[fd]
        self.syncs.append(self.calls)
        try:
            self._step()
        except OSError:
            if self.mode == "unsynced" and path in self._dirty:
                dirty, lost = self._dirty.pop(path), self._lost.get(path)
                self._lost[path] = Unsynced(lost.size if lost else dirty.size, (lost.sectors if lost else {}) | dirty.sectors)
            raise
        dirty = self._dirty.pop(path, None)
        if dirty is not None and path in self._lost:
            lost = self._lost.pop(path)
            if left := {at: old for at, old in lost.sectors.items() if at not in dirty.sectors}:
                self._lost[path] = Unsynced(path.stat().st_size, left)

    def sync_folder(self, folder):
        self._step()
        self._entries = [e for e in self._entries if e[0] != folder]

    def make_folder(self, folder):
        self._step()
        super().make_folder(folder)
        self._entries.append((folder.parent, lambda: shutil.rmtree(folder, ignore_errors=True)))

    def remove_folder(self, folder):
        self._step()
        super().remove_folder(folder)
        for table in (self._dirty, self._lost):
            for path in [p for p in table if p.is_relative_to(folder)]:
                del table[path]

    def replace(self, old, new):
        self._step()
        kept = self._keep(new) if new.is_file() else None
        super().replace(old, new)

        def undo() -> None:
            new.replace(old)
            if kept is not None:
                kept.replace(new)

        self._entries.append((new.parent, undo))

        def moved(path: Path) -> Path:
            return new / path.relative_to(old) if path.is_relative_to(old) else path

        self._paths = {fd: moved(p) for fd, p in self._paths.items()}
        for name in ("_dirty", "_lost"):
            table = {p: u for p, u in getattr(self, name).items() if not p.is_relative_to(new)}
            setattr(self, name, {moved(p): u for p, u in table.items()})

    def unlink(self, path):
        self._step()
        if path.exists():
            kept = self._keep(path)
            self._entries.append((path.parent, lambda: kept.replace(path)))
        super().unlink(path)
        self._dirty.pop(path, None)
        self._lost.pop(path, None)

    def abandon(self, log) -> None:
        """Close what the dead process had open, its lock included, as the kernel does."""
        for fd in (*self._paths, *([] if log is None or log.files.closed else [log.files.lock])):
            os.close(fd)
        self._paths.clear()
        for path, *_ in self._entries:
            for kept in path.glob("stash-*"):
                kept.unlink()

    def close(self, fd):
        super().close(fd)
        self._paths.pop(fd, None)

    @property
    def open_files(self) -> list[Path]:
        """Files that are open, each as often as it is."""
        return list(self._paths.values())

    @property
    def all_synced(self) -> bool:
        return not (self._dirty or self._lost or self._entries)

    def cut_power(self) -> None:
        """Lose what no sync made durable."""
        self._lose()

    def _keep(self, path: Path) -> Path:
        kept = path.parent / f"stash-{next(STASH)}"
        os.link(path, kept)
        return kept

    def _remember(self, path: Path, start: int, end: int) -> None:
        dirty, lost = self._dirty.get(path), self._lost.get(path)
        if dirty is None:
            dirty = self._dirty[path] = Unsynced(path.stat().st_size)
        if lost is not None:
            dirty.size = lost.size
        unknown = [at for at in range(start // SECTOR * SECTOR, end, SECTOR) if at not in dirty.sectors]
        if not unknown:
            return
        with path.open("rb", buffering=0) as file:
            for at in unknown:
                file.seek(at)
                dirty.sectors[at] = lost.sectors[at] if lost is not None and at in lost.sectors else file.read(SECTOR)

    def _lose(self) -> None:
        for table, share in ((self._lost, 1.0), (self._dirty, 0.5)):
            for path, unsynced in table.items():
                if not path.exists():
                    continue
                with path.open("r+b") as file:
                    for at, old in unsynced.sectors.items():
                        if self._random.random() < share:
                            file.seek(at)
                            file.write(old + bytes(min(SECTOR, max(0, path.stat().st_size - at)) - len(old)))
                    if self._random.random() < share:
                        file.truncate(unsynced.size)
        for _, undo in reversed(self._entries[self._random.randrange(len(self._entries) + 1):]):
            undo()
