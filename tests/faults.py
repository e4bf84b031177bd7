"""A disk that stops, tears, refuses or loses writes at a chosen system call, as kill -9 and power loss do."""

import errno
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

from streamd.storage import Disk

SECTOR = 512
STASH = itertools.count()


class Crash(BaseException):
    """The process is gone; nothing after this call ran."""


class FaultyDisk(Disk):
    """Counts calls and strikes at call number `at` (from 0).

    mode: "kill" stops before the call; "torn" writes a prefix first; "power" stops and loses, at random, what was not
    synced: sectors, file sizes and directory entries; "full" and "broken" let the call fail with ENOSPC or EIO.
    on_call: told before each call, to look at the directory from outside.
    """

    def __init__(self, at: int = -1, mode: str = "kill", seed: int = 0, on_call: Callable[[], None] | None = None) -> None:
        self.at, self.mode, self.calls = at, mode, 0
        self.struck = False
        self._random = random.Random(f"{mode} {at} {seed}")
        self._on_call = on_call
        self._paths: dict[int, Path] = {}
        self._dirty: dict[Path, tuple[int, dict[int, bytes]]] = {}
        self._entries: list[tuple[Path, Callable[[], None]]] = []

    def _step(self, writes: bool = False) -> None:
        if self._on_call is not None:
            self._on_call()
        self.calls += 1
        if self.calls - 1 != self.at:
            return
        self.struck = True
        if self.mode in ("full", "broken"):
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

    def allocate(self, fd, num_bytes):
        self._step()
        self._remember(self._paths[fd], 0, 0)
        super().allocate(fd, num_bytes)

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
        self._step()
        self._dirty.pop(self._paths[fd], None)

    def sync_folder(self, folder):
        self._step()
        self._entries = [e for e in self._entries if e[0] != folder]

    def replace(self, old, new):
        self._step()
        kept = self._keep(new) if new.exists() else None
        super().replace(old, new)

        def undo() -> None:
            new.replace(old)
            if kept is not None:
                kept.replace(new)

        self._entries.append((new.parent, undo))
        self._paths = {fd: new if p == old else p for fd, p in self._paths.items()}
        if old in self._dirty:
            self._dirty[new] = self._dirty.pop(old)

    def unlink(self, path):
        self._step()
        if path.exists():
            kept = self._keep(path)
            self._entries.append((path.parent, lambda: kept.replace(path)))
        super().unlink(path)

    def abandon(self, log) -> None:
        """Close what the dead process had open, its lock included, as the kernel does."""
        for fd in (*self._paths, *([] if log is None or log._closed else [log._lock])):
            os.close(fd)
        for path, *_ in self._entries:
            for kept in path.glob("stash-*"):
                kept.unlink()

    def close(self, fd):
        super().close(fd)
        self._paths.pop(fd, None)

    def _keep(self, path: Path) -> Path:
        kept = path.parent / f"stash-{next(STASH)}"
        os.link(path, kept)
        return kept

    def _remember(self, path: Path, start: int, end: int) -> None:
        size, sectors = self._dirty.setdefault(path, (path.stat().st_size, {}))
        with path.open("rb") as file:
            for at in range(start // SECTOR * SECTOR, end, SECTOR):
                if at not in sectors:
                    file.seek(at)
                    sectors[at] = file.read(SECTOR)

    def _lose(self) -> None:
        for path, (size, sectors) in self._dirty.items():
            if not path.exists():
                continue
            with path.open("r+b") as file:
                for at, old in sectors.items():
                    if self._random.random() < 0.5:
                        file.seek(at)
                        file.write(old + bytes(min(SECTOR, max(0, path.stat().st_size - at)) - len(old)))
                if self._random.random() < 0.5:
                    file.truncate(size)
        for _, undo in reversed(self._entries[self._random.randrange(len(self._entries) + 1):]):
            undo()
