"""As process 1 of a container, streamd passes signals on and takes up orphans."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
isolated = pytest.mark.skipif(
    subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0, reason="this user may make no process namespace")
CHILD = """
import os, signal, sys, time
from streamd.init_process import leave_init
leave_init()
assert os.getpid() != 1 and os.getppid() == 1
{body}
"""
ORPHAN = """
# A grandchild whose parent ends belongs to process 1, and ends at once.
if not os.fork():
    if not os.fork():
        time.sleep(0.2)
    os._exit(0)
os.wait()
time.sleep(1)
print([p for p in os.listdir("/proc") if p.isdigit() and open(f"/proc/{p}/stat").read().split()[2] == "Z"])
sys.exit(7)
"""
SIGNALLED = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
time.sleep(60)
"""


def started(body):
    return subprocess.Popen([*UNSHARE, sys.executable, "-c", CHILD.format(body=body)], stdout=subprocess.PIPE, text=True)


@isolated
def test_process_1_takes_up_orphans_and_ends_as_its_child_does():
    process = started(ORPHAN)
    assert process.communicate(timeout=30)[0] == "[]\n" and process.returncode == 7


@isolated
def test_process_1_passes_a_signal_on_once_and_reports_a_killed_child():
    process = started(SIGNALLED)
    assert process.stdout.readline() == "ready\n"
    first, = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 3
    process = started("os.kill(os.getpid(), signal.SIGKILL)")
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL


def test_any_other_process_goes_on_as_it_is():
    body = "import os; from streamd.init_process import leave_init; before = os.getpid(); leave_init(); assert os.getpid() == before"
    subprocess.run([sys.executable, "-c", body], check=True, timeout=30)
