"""Child processes that do not outlive their parent."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent ends, however that ends; for children to call at start."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
