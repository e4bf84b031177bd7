"""The first process of a container, which Linux makes the parent of every process that lost its
own."""

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
"""Signals that the first process sends on to its child."""


def leave_init() -> None:
    """Continue in a child, if this is process 1 of its container; process 1 then passes signals on,
    reaps orphans, and ends as the child does. In any other process do nothing."""
    if os.getpid() != 1:
        return
    # Linux drops a signal to process 1 for which that has no handler yet: hold signals until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    if child := os.fork():
        _reap_until_end_of(child)
    # A terminal sends its signals to a group of processes: the child gets each one once.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def _reap_until_end_of(child: int) -> NoReturn:
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == child:
            # As a shell reports it: 128 and the number of the signal that ended the child.
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
