"""Process 1 of a container (init): forwards signals, and reaps orphans, whose parent it becomes."""

import os
import signal
from typing import NoReturn

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals that process 1 forwards to its child."""


def leave_init() -> None:
    """If this is process 1 of its container, continue in a child process. Process 1 then forwards
    signals, reaps orphans, and exits with the child's status. In any other process do nothing."""
    if os.getpid() != 1:
        return
    # Linux drops signals to process 1 that have no handler: block them until there is one.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    if child := os.fork():
        _reap_until_end_of(child)
    # A terminal signals a whole process group: in its own group, the child gets each signal once.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def _reap_until_end_of(child: int) -> NoReturn:
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == child:
            # As in a shell: 128 plus the number of the signal that ended the child.
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
