"""What ends a process, and what it asks of the system."""

import ctypes
import os
import signal
import subprocess

import pytest

from streamd.processes import PYTHON, gone_supervisor, num_cpus
from tests.processes import is_alive, soon

PROGRAM = """
import os, signal, threading
from streamd.processes import ended_by_signals

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
told = "{told}"
if told == "before":
    os.kill(os.getpid(), signal.SIGTERM)
with ended_by_signals(stop):
    print("waits", flush=True)
    if told == "meanwhile":
        os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
print("goes on" if stop.is_set() else "was not told")
"""


@pytest.mark.parametrize(("told", "status", "said"), [
    ("before", 0, ""), ("meanwhile", -signal.SIGTERM, "waits\n"), ("after", 0, "waits\ngoes on\n")])
def test_a_signal_ends_a_process_that_waits_for_others_and_is_seen_by_its_own_handler_afterwards(told, status, said):
    done = subprocess.run([*PYTHON, "-c", PROGRAM.format(told=told)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, said), done.stderr


@pytest.mark.parametrize(("text", "most"), [("max 100000", 10**6), ("150000 100000", 2), ("20000 100000", 1), ("", 10**6)])
def test_a_containers_quota_bounds_the_cpus(tmp_path, text, most):
    (tmp_path / "cpu.max").write_text(text)
    assert num_cpus(tmp_path / "cpu.max") == min(most, num_cpus(tmp_path / "none"))


KEEPS = """
import ctypes, os
import numpy as np
from streamd.processes import keep_freed_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
print(keep_freed_memory(os.environ))
array = np.ones(100 << 20, np.uint8)
print(mallinfo().hblkhd > 100 << 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc before 2.33, or another library")
@pytest.mark.parametrize(("environ", "said"), [({}, "True\nFalse\n"), ({"MALLOC_ARENA_MAX": "8"}, "False\nTrue\n")])
def test_a_process_that_learns_keeps_the_memory_of_large_arrays_unless_the_environment_decides(environ, said):
    done = subprocess.run([*PYTHON, "-c", KEEPS], capture_output=True, text=True, env=environ)
    assert done.stdout == said, done.stderr


ROLE = """
import os, sys, time
from streamd.processes import end_with_supervisor, gone_supervisor

end_with_supervisor()
print(os.getpid(), flush=True)
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
# The signal may come a moment after the parent changes.
time.sleep(0.5)
print("goes on", gone_supervisor(), flush=True)
"""
STARTER = """
import os, subprocess, sys, time

child = subprocess.Popen([sys.executable, "-P", "-c", sys.argv[1], str(os.getpid())],
                         env=os.environ | ({"SUPERVISED_BY": str(os.getpid())} if sys.argv[2] else {}))
time.sleep(600)
"""


@pytest.mark.parametrize("supervised", ["", "yes"])
def test_a_role_ends_with_its_supervisor_and_outlives_a_shell(supervised):
    starter = subprocess.Popen([*PYTHON, "-c", STARTER, ROLE, supervised], stdout=subprocess.PIPE, text=True,
                               env={k: v for k, v in os.environ.items() if k != "SUPERVISED_BY"})
    child = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    # The pipe closes when the role has ended.
    assert starter.stdout.read() == ("" if supervised else "goes on None\n")
    soon(lambda: not is_alive(child), "it ended")
    starter.stdout.close()


def test_the_supervisor_that_has_ended_is_named(monkeypatch):
    for started_by, gone in ((os.getppid(), None), (1 << 22, 1 << 22)):
        monkeypatch.setenv("SUPERVISED_BY", str(started_by))
        assert gone_supervisor() == gone
