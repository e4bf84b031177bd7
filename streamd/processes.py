"""How a role's process is started, and what it sets for itself: it does not outlive its parent, and
ingest collects garbage rarely."""

import ctypes
import gc
import signal
import sys

PYTHON = (sys.executable, "-P")
"""Python for children: without the current directory on its path, where a `json.py` may lie."""
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent ends, however that ends; for children to call at start."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def collect_garbage_rarely() -> None:
    """Let Python look for cycles seldom: thousands of records a second hold none, and each search visits all of them.

    Measured: ingest of single events is a fifth faster.
    """
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)
