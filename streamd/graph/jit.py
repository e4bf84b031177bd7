"""Compiles kernels, and manages the cache of their machine code; no other module knows numba's
cache.

numba caches machine code by the file of the kernel, and does not notice a change in another file
with functions that it inlined. So the name of the cache folder has a hash of all sources with
kernels: after an upgrade no old code runs. The hash also covers numba's version and the path of the
sources, which are part of numba's own key, so that two installations never share a folder.
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
"""Environment variable with the folder of the kernels that a container image ships."""
CPU_LEVELS = {"x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")}
"""Level of CPUs for which an image ships kernels (NUMBA_CPU_NAME) -> features that they use."""


def compile_for_this_cpu() -> None:
    """If this CPU does not support the level in NUMBA_CPU_NAME, let numba compile for this CPU
    instead: the process would be killed at the first illegal instruction."""
    # Without NUMBA_CPU_NAME, numba compiles for this CPU.
    needed = CPU_LEVELS.get(numba.config.CPU_NAME or "", ())
    have = get_host_cpu_features()
    if not all(have.get(feature) for feature in needed):
        numba.config.CPU_NAME = numba.config.CPU_FEATURES = None


def sources_hash(package: Path) -> str:
    """A hash of all source files with kernels, of the package's path, and of numba's version."""
    found = hashlib.sha256(f"{package}\0{numba.__version__}\0".encode())
    for room in ROOMS:
        for path in sorted((package / room).rglob("*.py")):
            # Hash the names too, since numba caches by file.
            name = str(path.relative_to(package))
            found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


TEMPORARY = Path(tempfile.gettempdir()) / f"streamd-{os.getuid()}"
"""Folder for compiled kernels if no other can be used."""


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

        # No other user may write to it, since its code is executed.
        own = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if own and os.access(folder, os.W_OK):
            return folder
    return None


compile_for_this_cpu()
CACHE = cache_folder()
COMPILED = "compiled"
"""Name of the file that marks a folder as complete."""
LOCK = "lock"
"""Name of the file that a process locks while it compiles or loads kernels."""
COMPILE_TIME = "about 12 s on two idle cores, longer beside other work"
"""As measured with an empty cache (docs/operations.md)."""
if CACHE is not None:
    numba.config.CACHE_DIR = str(CACHE)

# nogil: other threads run while a kernel does.
kernel = njit(cache=CACHE is not None, nogil=True)
"""Compiles a kernel at its call, for the types of the arguments. Only commands use it: a role must
not wait for a compilation."""
inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles a function that only kernels call, without a wrapper for Python, which unpacks many
arrays and so takes longer to compile than the function."""


class Kernel:
    """A function that is compiled for one signature, by the warm-up or at its first call.
    Thread-safe.

    It is never compiled for other types, since the thread that answers requests would wait for
    seconds. An array that it only reads is copied if it is not contiguous or has a narrower type;
    any other argument of a wrong type raises TypeError.
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
            # numba raises before it runs the kernel if the signature does not match.
            return self.dispatcher(*map(_fitting, args, self.signature))

    def compile(self) -> None:
        """Compile it, or load it from the cache."""
        with self._lock:
            if not self._is_ready:
                self.dispatcher.compile(self.signature)
                # Otherwise numba would compile again for writable arrays, which may be passed as
                # read-only.
                self.dispatcher.disable_compile()
                self._is_ready = True


def _fitting(arg: Any, declared: Any) -> Any:
    """An argument as it is, or a copy of it in the declared type if this is a read-only array type
    to which it can be cast."""
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
    """A notice that kernels will be compiled; None if all are in the cache."""
    if CACHE is None:
        return f"compiling kernels, at every start because no folder can keep them: {COMPILE_TIME}"
    if (CACHE / COMPILED).exists() or image_kernels() is not None:
        return None
    return f"compiling kernels, once per machine and version: {COMPILE_TIME}"


def cache_problem() -> str:
    """The reason why compiled kernels will be lost with this container or at the next boot, with
    the operator's action; "" if they are kept."""
    if CACHE is not None and CACHE.parent != TEMPORARY:
        return ""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (
        f"user {os.getuid()} cannot write to {given}, or others can, so compiled kernels are in "
        f"{CACHE or 'no folder'}; give this user alone write access to it, or set NUMBA_CACHE_DIR "
        "to another folder"
    )


def image_kernels() -> Path | None:
    """The folder of shipped kernels, None unless they are of these sources and for this CPU."""
    shipped = os.environ.get(SHIPPED)
    if not shipped or CACHE is None or not numba.config.CPU_NAME:
        return None
    folder = Path(shipped) / "streamd" / CACHE.name
    return folder if (folder / COMPILED).exists() else None


def copy_image_kernels() -> None:
    """Copy shipped kernels into the cache, unless it is complete. numba cannot read them from their
    own folder, since it needs write access."""
    folder = image_kernels()
    if folder is None or CACHE is None or (CACHE / COMPILED).exists():
        return
    # Copy the index (.nbi) and the code (.nbc) of each kernel.
    for path in folder.rglob("*.nb?"):
        copy = CACHE / path.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)


def note_compiled() -> None:
    """Mark the cache as complete."""
    if CACHE is not None:
        (CACHE / COMPILED).touch()
