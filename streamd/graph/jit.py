"""How kernels are compiled, and where what was compiled is kept: the one place that knows numba's
cache.

numba keeps machine code by the file that calls a kernel and does not see that another file, whose
functions it inlined, has changed. So the folder of the cache is named by a hash of all sources that
kernels are made of: after an upgrade nothing old is run. The hash covers numba's version and the
place of the sources as well, by which numba keeps machine code too: no installation waits for what
another one compiles.
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
"""Folders whose files hold kernels."""
SHIPPED = "SHIPPED_KERNELS"
"""Variable that names a folder with compiled kernels, as an image has them."""
CPU_LEVELS = {"x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")}
"""Levels of CPUs for which an image ships kernels (NUMBA_CPU_NAME) -> features that they use."""


def compile_for_this_cpu() -> None:
    """Let numba compile for the CPU of this machine, if NUMBA_CPU_NAME names a level that it lacks:
    it would end at the first instruction that it does not know."""
    # Without NUMBA_CPU_NAME numba compiles for this machine anyway.
    needed = CPU_LEVELS.get(numba.config.CPU_NAME or "", ())
    have = get_host_cpu_features()
    if not all(have.get(feature) for feature in needed):
        numba.config.CPU_NAME = numba.config.CPU_FEATURES = None


def sources_hash(package: Path) -> str:
    """A hash of all files that kernels are made of, of where they lie, and of numba's version."""
    found = hashlib.sha256(f"{package}\0{numba.__version__}\0".encode())
    for room in ROOMS:
        for path in sorted((package / room).rglob("*.py")):
            # Names count too: numba keeps machine code by file.
            name = str(path.relative_to(package))
            found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


TEMPORARY = Path(tempfile.gettempdir()) / f"streamd-{os.getuid()}"
"""Folder that keeps kernels if no other can."""


def cache_folder() -> Path | None:
    """Where compiled kernels are kept: below NUMBA_CACHE_DIR, the user's cache folder, or a private
    temporary one.

    None where no such folder can be trusted, since what it holds is run.
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

        # Nobody else may be able to write what is run from it.
        own = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if own and os.access(folder, os.W_OK):
            return folder
    return None


compile_for_this_cpu()
CACHE = cache_folder()
COMPILED = "compiled"
"""A file next to the kernels once all of them are there."""
LOCK = "lock"
"""A file next to the kernels that a process locks while it compiles or loads them."""
COMPILE_TIME = "about 12 s on two idle cores, longer beside other work"
"""As measured with an empty cache (docs/operations.md)."""
if CACHE is not None:
    numba.config.CACHE_DIR = str(CACHE)

# Without the interpreter's lock other threads run while a kernel does.
kernel = njit(cache=CACHE is not None, nogil=True)
"""Compiled for the types of each call, when it comes: for commands alone, as no role may wait."""
inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without a wrapper for Python, whose unpacking of many arrays takes longer to compile than the
kernel itself."""


class Kernel:
    """A function that is compiled for one signature, by the warm-up or at its first call.

    It is never compiled for the types of a call: the thread that answers requests would wait for
    seconds, however rare the call. Arrays that it only reads are copied if they are not contiguous
    or of a narrower type; anything else that does not fit is a TypeError.
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
            # numba found no signature that fits, and has run nothing yet.
            return self.dispatcher(*map(_fitting, args, self.signature))

    def compile(self) -> None:
        """Compile it, or load it where that was done before."""
        with self._lock:
            if not self._is_ready:
                self.dispatcher.compile(self.signature)
                # From here on, numba passes writable arrays where read-only ones are declared.
                self.dispatcher.disable_compile()
                self._is_ready = True


def _fitting(arg: Any, declared: Any) -> Any:
    """An argument as a kernel declares it, where a copy can be that."""
    if isinstance(arg, np.ndarray) and isinstance(declared, types.Array) and not declared.mutable:
        dtype = as_dtype(declared.dtype)
        if np.can_cast(arg.dtype, dtype):
            return np.ascontiguousarray(arg, dtype)
    return arg


KERNELS: list[Kernel] = []
"""All kernels of the modules that this process has imported."""


def compiled_for(*signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of a function. signature: of `streamd.graph.kernel_types`."""

    def declare(function: Callable[..., Any]) -> Kernel:
        KERNELS.append(Kernel(function, signature))
        return KERNELS[-1]

    return declare


def compile_notice() -> str | None:
    """The notice to show before kernels are compiled; None where all are kept already."""
    if CACHE is None:
        return f"compiling kernels, at every start as no folder can keep them: {COMPILE_TIME}"
    if (CACHE / COMPILED).exists() or image_kernels() is not None:
        return None
    return f"compiling kernels, once per machine and version: {COMPILE_TIME}"


def cache_problem() -> str:
    """Why compiled kernels do not last beyond this container or the next boot, with the operator's
    action; empty if they do."""
    if CACHE is not None and CACHE.parent != TEMPORARY:
        return ""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (
        f"user {os.getuid()} cannot keep files in {given}, so kernels are kept in "
        f"{CACHE or 'no folder'}; give that user rights to it, or set NUMBA_CACHE_DIR to another"
    )


def image_kernels() -> Path | None:
    """The folder of shipped kernels that are of these sources and for this CPU, if there is one."""
    shipped = os.environ.get(SHIPPED)
    if not shipped or CACHE is None or not numba.config.CPU_NAME:
        return None
    folder = Path(shipped) / "streamd" / CACHE.name
    return folder if (folder / COMPILED).exists() else None


def copy_image_kernels() -> None:
    """Copy shipped kernels into the cache, unless it has its own. numba reads no folder that it
    cannot write to."""
    folder = image_kernels()
    if folder is None or CACHE is None or (CACHE / COMPILED).exists():
        return
    # An index (.nbi) and code (.nbc) for each kernel.
    for path in folder.rglob("*.nb?"):
        copy = CACHE / path.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)


def note_compiled() -> None:
    """Say that all kernels are compiled and kept."""
    if CACHE is not None:
        (CACHE / COMPILED).touch()
