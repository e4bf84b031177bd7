"""A process that writes the log, killed with -9 at random moments, hundreds of times; a reader watches all the while."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from tests.eventlog.test_crash import NUM_COMMITS, SCHEMA, SEGMENT_EDGES, agrees, contents, live

ROOT = Path(__file__).parents[2]
CHILD = """
import sys
from pathlib import Path
from streamd.eventlog.writer import LogWriter
from tests.eventlog.test_crash import SCHEMA, SEGMENT_EDGES, live
log = LogWriter(Path(sys.argv[1]), SCHEMA, SEGMENT_EDGES)
class Told(list):
    def append(self, number):
        print(number, flush=True)
print(0, flush=True)
live(log, acknowledged=Told())
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("runs", [6, pytest.param(400, marks=pytest.mark.slow)])
def test_a_writer_killed_at_random_moments_keeps_what_it_acknowledged(tmp_path, runs):
    expected, path = {0: {}}, tmp_path / "expected"
    log = LogWriter(path, SCHEMA, SEGMENT_EDGES)
    for i in range(1, NUM_COMMITS + 1):
        live(log, i, housekeeping=False)
        expected[i] = contents(path)[1]
    log.close()
    rng, in_the_middle = random.Random(7), 0
    for number in range(runs):
        path = tmp_path / f"{number}"
        path.mkdir()
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT, stdout=subprocess.PIPE,
                                 stdin=subprocess.PIPE)
        assert child.stdout.readline() == b"0\n"
        reader, seen, deadline = LogReader.open(path), 0, time.monotonic() + rng.uniform(0, 0.12)
        while time.monotonic() < deadline:
            reader.refresh()
            assert reader.num_edges >= seen, "a row that a reader saw is gone"
            seen = reader.num_edges
        os.kill(child.pid, signal.SIGKILL)
        told = [int(x) for x in child.stdout.read().splitlines() if x.isdigit()]
        child.wait()
        child.stdout.close()
        child.stdin.close()
        acknowledged = max(told, default=0)
        in_the_middle += acknowledged < NUM_COMMITS
        log = LogWriter(path, SCHEMA, SEGMENT_EDGES)
        position, got = contents(path)
        assert position in (acknowledged, acknowledged + 1) and agrees(got, expected[position]), number
        reader.refresh()
        assert reader.num_edges >= seen and verify_log(path)[1] == []
        live(log, housekeeping=False)
        log.close()
        assert agrees(contents(path)[1], expected[NUM_COMMITS]) and verify_log(path)[1] == []
    assert in_the_middle > runs / 4, "most were killed while they wrote"
