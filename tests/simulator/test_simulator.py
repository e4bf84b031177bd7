"""Seeds of the simulator: new ones each day, those that once failed for good, and the simulator's own promises."""

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.broker import Broker
from tests.simulator.checks import Checks, Directory
from tests.simulator.mutations import MUTATIONS
from tests.simulator.scheduler import Scheduler

ROOT = Path(__file__).parents[2]
SECONDS = 10
"""Time of CPU for the seeds of the day."""
ONCE_FAILED = {
    0: "ingest went on with the client that it had closed, after one that broke",
    6: "a power cut took the position of a leader back before the begin of the trimmed changelog",
    1008: "a disk that lied left the position in the changelog, without the lines before it and without `published`, and the member led",
    10: "a standby that had lost `published` replaced its log by an older manifest's",
    739001: "a power cut took the line of a commit that a killed writer had not synced, and from which the next one had gone on",
}
"""Seeds that found something in the code of their day. What a seed draws changes with the simulator; a test of its own holds each finding."""


def run(*arguments):
    """Run the command. Returns: its output, after it succeeded."""
    return output_of("-m", "tests.simulator", *map(str, arguments))


def output_of(*arguments):
    """Run Python in a process of its own: the threads of other tests would act in the simulated world. Returns: its output, after it
    succeeded."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


def test_seeds_of_the_day():
    first = datetime.datetime.now(datetime.UTC).date().toordinal() * 1000
    assert " seeds, " in run(1000, first, "--cpu-seconds", SECONDS)


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_seeds_that_once_failed(seed):
    run(1, seed, "--seconds", 40)


def test_a_seed_replays_to_the_same_turns():
    first, second = (re.search(r"digest (\w+)", run(1, 7, "--seconds", 10)).group(1) for _ in range(2))
    assert first == second


def test_versions_are_promoted_and_rolled_back():
    run(3, 0, "--trained", 1, "--seconds", 20)


ONE_MACHINE = """
from tests.simulator import world as worlds
from tests.simulator.__main__ import main

worlds.KINDS = (("leader",),)
main()
"""


def test_moves_windows_and_versions_of_one_machine_are_lines_of_its_log():
    assert " seeds, " in output_of("-c", ONE_MACHINE, "8", "0", "--trained", "1", "--seconds", "30")


ODD_POLLS = """
from tests.simulator import clients
from tests.simulator.world import World

clients.ODD_POLLS = 0.2
world = World(3)
world.odds = 1
world.faults.is_on = False
world.run(20)
print(world.checks.model.num_edges)
"""


def test_ingest_goes_on_with_a_new_client_where_one_breaks():
    """kafka-python's consumer may fail for good after an error that no list names."""
    assert int(output_of("-c", ODD_POLLS)) > 100


BROKEN = """
import numpy as np
from streamd.ingest.order import batch_builder
from tests.simulator.__main__ import main

# Late events keep their times.
batch_builder._find_late = lambda rows, watermark: (rows["time"].copy(), np.zeros(len(rows), bool))
main()
"""


def test_a_seed_that_fails_shrinks_and_replays():
    found = output_of("-c", BROKEN, "100", "0", "--seconds", "20", "--first-failure", "--shrink-seconds", "2")
    seed = re.search(r"^seed (\d+) fails at turn \d+: ", found, re.MULTILINE).group(1)
    options = re.search(r"python -m tests.simulator (.*)$", found, re.MULTILINE).group(1).split()
    assert options[1] == seed and "--without" in options
    end = re.search(r"^seed \d+ fails at turn \d+, digest .*$", found, re.MULTILINE).group()
    assert end in output_of("-c", BROKEN, *options, "--shrink-seconds", "0")


def bytes_read():
    """Bytes that this process has read from files."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text()).group(1))


def test_checks_read_each_dead_letter_once(tmp_path):
    """A seed with many of them took minutes."""
    checks, path = Checks(Broker(Scheduler(0))), tmp_path / "deadletter" / "current.jsonl"
    path.parent.mkdir()
    path.touch()
    checks.begin(Directory("a", tmp_path))
    before = bytes_read()
    with path.open("a") as file:
        for offset in range(200):
            file.write(json.dumps({"topic_id": "id", "partition": 0, "offset": offset, "index": 0, "text": 10_000 * "x"}) + "\n")
            file.flush()
            assert checks.is_letter(("id", 0, offset, 0)) and not checks.is_letter(("id", 0, offset + 1, 0))
    assert bytes_read() - before < 2 * path.stat().st_size


def test_neither_journal_memory_nor_the_cost_of_an_event_grows_with_a_run():
    output_of("-m", "tests.simulator.growth")


def test_growth_of_a_log_without_retention_is_found():
    kept = "from tests.simulator.growth import grown, measure; print(grown(measure(('leader',), 1000, None)))"
    assert "journal_bytes" in output_of("-c", kept)


def test_each_mutation_fits_the_product():
    """A search for a mutation takes minutes; a renamed function would end it only then."""
    found = {(path, old): (ROOT / path).read_text().count(old) for mutation in MUTATIONS for path, old, _ in mutation.edits}
    assert {edit: count for edit, count in found.items() if count != 1} == {}
