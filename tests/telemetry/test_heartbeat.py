"""What a role says of itself, and what ends it where it can say nothing any more."""

import json
import signal
import subprocess
import sys

from streamd.roles import folder_of
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


def test_a_process_of_this_machine_must_exist_one_of_another_machine_cannot_be_looked_for(tmp_path):
    Heartbeat(tmp_path, "train").touch("learning")
    path = folder_of(tmp_path, "train") / "heartbeat.json"
    content = json.loads(path.read_text())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for more, alive in (({}, False), ({"host": "another-pod"}, True), ({"host": "another-pod", "time": content["time"] - 100}, False)):
        path.write_text(json.dumps(content | {"pid": gone.pid} | more))
        assert read_beat(tmp_path, "train").alive is alive
