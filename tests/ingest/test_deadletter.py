"""Local dead letters on disks that fail: what was flushed is there, and no torn line takes the next letter with it."""

import json

import pytest

from streamd.errors import DiskError
from streamd.ingest.deadletter import DeadLetter, LocalDeadLetters
from tests.faults import Crash, FaultyDisk

MAX_BYTES = 3000


def letter(n):
    return DeadLetter("t", 0, n, -1, "bad_json", "why", 5, b"x" * (n % 7 * 20))


def live(folder, disk, flushed, first=0):
    letters = LocalDeadLetters(folder, MAX_BYTES, disk)
    for n in range(first, first + 12):
        letters.add(letter(n))
        if n % 3 == 2:
            letters.flush()
            flushed.append(n)
    return letters


def held(folder):
    """Numbers of the letters that can be read, oldest first."""
    out = []
    for name in ("previous.jsonl", "current.jsonl"):
        path = folder / name
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"\n"):
                out.append(json.loads(line)["offset"])
    return out


def calls(folder):
    disk = FaultyDisk()
    live(folder, disk, [])
    return disk.calls


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_letters_that_were_flushed_survive_a_stop_at_any_system_call(tmp_path, mode):
    for at in range(calls(tmp_path / "calls")):
        folder, flushed = tmp_path / f"{at}", [-1]
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            live(folder, disk, flushed)
        disk.abandon(None)
        letters = live(folder, FaultyDisk(), [], first=100)
        letters.flush()
        found = held(folder)
        assert found == sorted(found) and set(range(100, 112)) & set(found) >= {111}
        oldest = min(found)
        assert set(range(oldest, flushed[-1] + 1)) <= set(found), "from the oldest kept on none is missing"


@pytest.mark.parametrize("mode", ["full", "broken"])
def test_a_disk_that_refuses_letters_is_a_named_error(tmp_path, mode):
    for at in range(0, calls(tmp_path / "calls"), 3):
        with pytest.raises(DiskError, match="dead letter .* could not be written"):
            live(tmp_path / f"{at}", FaultyDisk(at, mode), [])


def test_a_letter_behind_a_torn_one_is_read(tmp_path):
    letters = LocalDeadLetters(tmp_path, 10**6)
    letters.add(letter(1))
    letters.flush()
    with (tmp_path / "current.jsonl").open("ab") as file:
        file.write(b'{"topic": "t", "offs')
    letters = LocalDeadLetters(tmp_path, 10**6)
    letters.add(letter(2))
    letters.flush()
    assert held(tmp_path) == [1, 2] and (tmp_path / "current.jsonl").read_bytes().count(b"\n") == 2
