"""What a role says of itself, and what ends it where it can say nothing any more."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from structlog.testing import capture_logs

from streamd.roles import folder_of
from streamd.telemetry import heartbeat
from streamd.telemetry.heartbeat import Heartbeat, read_beat, refusals

STALLING = """
import sys, threading, time, signal
from pathlib import Path
from streamd.telemetry import heartbeat
heartbeat.STALLED_SECONDS, heartbeat.WATCHDOG_SECONDS = 0.5, 0.05
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
beat = heartbeat.Heartbeat(Path(sys.argv[1]), "ingest")
beat.touch("running")
beat.end_when_stalled()
for _ in range(20):
    beat.touch("running")
    time.sleep(0.05)
print("well", flush=True)
while sys.argv[2] == "stalls":
    pass
"""


def test_a_role_whose_loop_stands_still_is_ended_by_name_though_it_is_deaf_to_signals(tmp_path):
    for does, status in (("stalls", 1), ("ends", 0)):
        role = subprocess.Popen([sys.executable, "-c", STALLING, str(tmp_path), does], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert role.stdout.readline() == b"well\n", "a loop that turns is left alone"
        if does == "stalls":
            role.send_signal(signal.SIGTERM)
        said, _ = role.communicate(timeout=20)
        assert role.returncode == status and (b"role_stalled" in said) == (does == "stalls")


def test_a_refusal_is_told_until_the_role_runs_again(tmp_path):
    assert refusals(tmp_path, ("ingest", "train")) == {}
    beat = Heartbeat(tmp_path, "ingest")
    beat.touch("refused", why="another cluster")
    Heartbeat(tmp_path, "train").touch("learning")
    assert refusals(tmp_path, ("ingest", "train")) == {"ingest": "another cluster"}
    beat.touch("running")
    assert refusals(tmp_path, ("ingest", "train")) == {} and read_beat(tmp_path, "ingest").state == "running"


def test_a_process_of_this_machine_must_exist_one_of_another_machine_must_have_given_a_sign(tmp_path):
    Heartbeat(tmp_path, "train").touch("learning")
    path = folder_of(tmp_path, "train") / "heartbeat.json"
    content = json.loads(path.read_text())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    other = {"host": "another-pod"}
    now = time.time()
    for more, before, alive in (({}, now, False), (other, now, True), (other | {"time": now - 100}, now, False), (other, now - 11, False),
                                (other | {"time": now - 30}, now, True)):
        path.write_text(json.dumps(content | {"pid": gone.pid} | more))
        os.utime(path, (before, before))
        assert read_beat(tmp_path, "train").alive is alive


def test_containers_that_share_a_hosts_name_are_told_apart(tmp_path):
    """Each container of a pod counts its processes for itself: a pid of one says nothing in another."""
    assert str(Path("/proc/self/ns/pid").readlink()) in heartbeat.HOST and socket.gethostname() in heartbeat.HOST


def test_a_role_gives_signs_of_life_while_its_loop_works_for_long_and_where_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.05)
    beat = Heartbeat(tmp_path, "train", interval_seconds=0.02)
    beat.touch("compiling")
    first = read_beat(tmp_path, "train")
    assert wait_for(lambda: read_beat(tmp_path, "train").heartbeat_ns > first.heartbeat_ns)
    assert read_beat(tmp_path, "train").age_seconds >= first.age_seconds, "its loop did not turn"

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with capture_logs() as said:
        beat.touch("learning")
        before = read_beat(tmp_path, "train").heartbeat_ns
        assert wait_for(lambda: read_beat(tmp_path, "train").heartbeat_ns > before)
    assert [x["event"] for x in said] == ["heartbeat_not_written"]
    assert read_beat(tmp_path, "train").state == "compiling", "nothing of it was written"


def test_a_failing_task_is_in_all_heartbeats_until_it_succeeds(tmp_path, monkeypatch):
    beat = Heartbeat(tmp_path, "ingest")
    for now, task, error in ((10.0, "retention", "full"), (20.0, "models", "away"), (30.0, "retention", "still full"), (40.0, "models", "")):
        monkeypatch.setattr(heartbeat.time, "time", lambda now=now: now)
        beat.note_failure(task, error)
    beat.touch("running", lag=1)
    assert read_beat(tmp_path, "ingest").detail == {"lag": 1, "failing": {"retention": {"since": 10.0, "error": "still full"}}}
    beat.note_failure("retention", "")
    beat.touch("paused")
    assert read_beat(tmp_path, "ingest").detail["failing"] == {}


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
