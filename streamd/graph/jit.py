"""Compiles kernels, and manages the cache of their machine code; no other module knows numba's
cache.

numba caches machine code by a kernel's file, and does not notice a change in another file whose
functions it inlined. So the name of the cache folder has a hash of all sources with kernels: after
an upgrade no old code is run. The hash also covers numba's version and the path of the sources,
which are part of numba's own key: no installation waits for another one to compile.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.np.numpy_support import as_dtype

ROOMS = ("graph", "gpu", "tfgnn")
"""Folders with kernels."""
SHIPPED = "SHIPPED_KERNELS"
"""Environment variable with the path of a folder of compiled kernels, as in a container image."""
CPU_LEVELS = {"x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")}
"""Level of CPUs for which an image ships kernels (NUMBA_CPU_NAME) -> features that they use."""


def compile_for_this_cpu() -> None:
    """If this machine's CPU does not support the level in NUMBA_CPU_NAME, let numba compile for
    this CPU instead: else the process would be killed at the first illegal instruction."""
    # Without NUMBA_CPU_NAME numba compiles for this machine anyway.
    needed = CPU_LEVELS.get(numba.config.CPU_NAME or "", ())
    have = get_host_cpu_features()
    if not all(have.get(feature) for feature in needed):
        numba.config.CPU_NAME = numba.config.CPU_FEATURES = None


def sources_hash(package: Path) -> str:
    """A hash of all source files with kernels, of the package's path, and of numba's version."""
    found = hashlib.sha256(f"{package}\0{numba.__version__}\0".encode())
    for room in ROOMS:
        for path in sorted((package / room).rglob("*.py")):
            # Names count too: numba keeps machine code by file.
            name = str(path.relative_to(package))
            found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


TEMPORARY = Path(tempfile.gettempdir()) / f"streamd-{os.getuid()}"
"""Folder for kernels if no other can be used."""


def cache_folder() -> Path | None:
    """The folder for compiled kernels: below NUMBA_CACHE_DIR, the user's cache folder, or a private
    temporary folder.

    None if no such folder can be trusted: the code in it is executed.
    """
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    home = Path(given) if given else Path.home() / ".cache"
    for base in (home / "streamd", TEMPORARY):
        folder = base / f"kernels-{sources_hash(Path(__file__).parents[1])}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = base.stat()
        except OSError:
            continue

        # No other user may be able to write the code in it.
        own = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if own and os.access(folder, os.W_OK):
            return folder
    return None


compile_for_this_cpu()
CACHE = cache_folder()
COMPILED = "compiled"
"""Name of the file that marks a folder with all kernels."""
LOCK = "lock"
"""Name of the file that a process locks while it compiles or loads kernels."""
COMPILE_TIME = "about 12 s on two idle cores, longer beside other work"
"""As measured with an empty cache (docs/operations.md)."""
if CACHE is not None:
    numba.config.CACHE_DIR = str(CACHE)

# nogil: other threads run while a kernel does.
kernel = njit(cache=CACHE is not None, nogil=True)
"""Compiled at a call, for the types of its arguments: only for commands, since no role may wait."""
inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only kernels call. The wrapper for Python is left out: its unpacking of many
arrays takes longer to compile than the function itself."""


class Kernel:
    """A function that is compiled for one signature, by the warm-up or at its first call. Safe to
    use from several threads.

    It is never compiled for other types: even in a rare call the thread that answers requests would
    wait for seconds. Arrays that it only reads are copied if they are not contiguous or have a
    narrower type; any other argument of a wrong type is a TypeError.
    """

    def __init__(self, function: Callable[..., Any], signature: tuple[Any, ...]) -> None:
        self.signature = signature
        self.dispatcher = kernel(function)
        self._lock = threading.Lock()
        self._is_ready = False

    def __call__(self, *args: Any) -> Any:
        if not self._is_ready:
            self.compile()
        try:
            return self.dispatcher(*args)
        except TypeError:
            # numba found no matching signature, and has not run the kernel.
            return self.dispatcher(*map(_fitting, args, self.signature))

    def compile(self) -> None:
        """Compile it, or load it from the cache."""
        with self._lock:
            if not self._is_ready:
                self.dispatcher.compile(self.signature)
                # Without this, numba would compile again for writable arrays instead of passing
                # them as read-only.
                self.dispatcher.disable_compile()
                self._is_ready = True


def _fitting(arg: Any, declared: Any) -> Any:
    """An argument, copied to the declared type if it is a read-only array that can be cast; else as
    it is."""
    if isinstance(arg, np.ndarray) and isinstance(declared, types.Array) and not declared.mutable:
        dtype = as_dtype(declared.dtype)
        if np.can_cast(arg.dtype, dtype):
            return np.ascontiguousarray(arg, dtype)
    return arg


KERNELS: list[Kernel] = []
"""All kernels of the modules that this process has imported."""


def compiled_for(*signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of a function. signature: types of its arguments, from
    `streamd.graph.kernel_types`."""

    def declare(function: Callable[..., Any]) -> Kernel:
        KERNELS.append(Kernel(function, signature))
        return KERNELS[-1]

    return declare


def compile_notice() -> str | None:
    """The notice to print before kernels are compiled; None if all are compiled already."""
    if CACHE is None:
        return f"compiling kernels, at every start because no folder can keep them: {COMPILE_TIME}"
    if (CACHE / COMPILED).exists() or image_kernels() is not None:
        return None
    return f"compiling kernels, once per machine and version: {COMPILE_TIME}"


def cache_problem() -> str:
    """The reason why compiled kernels are lost with this container or at the next boot, with the
    operator's action; "" if they are kept."""
    if CACHE is not None and CACHE.parent != TEMPORARY:
        return ""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (
        f"user {os.getuid()} cannot write to {given}, or others can, so compiled kernels are in "
        f"{CACHE or 'no folder'}; give this user alone write access to it, or set NUMBA_CACHE_DIR "
        "to another folder"
    )


def image_kernels() -> Path | None:
    """The folder of shipped kernels for these sources and this CPU, if there is one."""
    shipped = os.environ.get(SHIPPED)
    if not shipped or CACHE is None or not numba.config.CPU_NAME:
        return None
    folder = Path(shipped) / "streamd" / CACHE.name
    return folder if (folder / COMPILED).exists() else None


def copy_image_kernels() -> None:
    """Copy shipped kernels into the cache, unless it has all kernels already. They cannot be read
    from their own folder: numba uses no folder without write access."""
    folder = image_kernels()
    if folder is None or CACHE is None or (CACHE / COMPILED).exists():
        return
    # An index (.nbi) and code (.nbc) for each kernel.
    for path in folder.rglob("*.nb?"):
        copy = CACHE / path.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)


def note_compiled() -> None:
    """Mark the cache: it has all kernels."""
    if CACHE is not None:
        (CACHE / COMPILED).touch()
