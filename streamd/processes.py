"""What a process of streamd sets for itself: its end with its parent, its open files, and how often
garbage is collected."""

import ctypes
import gc
import resource
import signal
import sys

PYTHON = (sys.executable, "-P")
"""Command of Python for children: without the current directory on its path, where a `json.py` may
lie."""
PR_SET_PDEATHSIG = 1
"""Number of the option in Linux's `prctl.h`."""


def end_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent ends, however that ends; children call
    it at their start."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit: each connection and each segment
    of the log takes one."""
    # A process may go up to its hard limit without rights.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def file_limit() -> int:
    """The number of files that this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # A number takes the place of "no limit", so that callers can subtract from it.
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def collect_garbage_rarely() -> None:
    """Make Python search for reference cycles seldom, which makes ingest of single events a fifth
    faster.

    Thousands of records a second hold no cycles, and each search visits all of them.
    """
    # Modules are frozen out of every search; 100,000 new objects start one, not 700.
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)
