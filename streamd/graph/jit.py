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
import stat
import tempfile
from pathlib import Path

import numba
from numba import njit

ROOMS = ("graph", "gpu", "exchange/tfgnn")
"""Folders whose files hold kernels."""


def sources_hash(package: Path) -> str:
    """A hash of all files that kernels are made of, of where they lie, and of numba's version."""
    found = hashlib.sha256(f"{package}\0{numba.__version__}\0".encode())
    for room in ROOMS:
        for path in sorted((package / room).glob("*.py")):
            # Names count too: numba keeps machine code by file.
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def cache_folder() -> Path | None:
    """Where compiled kernels are kept: below NUMBA_CACHE_DIR, the user's cache folder, or a private
    temporary one.

    None where no such folder can be trusted, since what it holds is run.
    """
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    home = Path(given) if given else Path.home() / ".cache"
    for base in (home / "streamd", Path(tempfile.gettempdir()) / f"streamd-{os.getuid()}"):
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


CACHE = cache_folder()
COMPILED = "compiled"
"""A file next to the kernels once all of them are there."""
LOCK = "lock"
"""A file next to the kernels that a process locks while it compiles or loads them."""
COMPILE_TIME = "about 12 s on two cores"
"""As measured with an empty cache (docs/operations.md)."""
if CACHE is not None:
    numba.config.CACHE_DIR = str(CACHE)

# Without the interpreter's lock other threads run while a kernel does.
kernel = njit(cache=CACHE is not None, nogil=True)
inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without a wrapper for Python, whose unpacking of many arrays takes longer to compile than the
kernel itself."""


def compile_notice() -> str | None:
    """The notice to show before kernels are compiled; None where all are kept already."""
    if CACHE is None:
        return f"compiling kernels, at every start as no folder can keep them: {COMPILE_TIME}"
    if (CACHE / COMPILED).exists():
        return None
    return f"compiling kernels, once per machine and version: {COMPILE_TIME}"


def note_compiled() -> None:
    """Say that all kernels are compiled and kept."""
    if CACHE is not None:
        (CACHE / COMPILED).touch()
