"""Local dead letters on disks that fail: what was flushed is there, and no torn line takes the next letter with it."""

import json
import threading
import time

import pytest
from structlog.testing import capture_logs

from streamd.errors import DiskError
from streamd.ingest.dead_letters.purge import PURGE_LOCK, LetterPurge, lock_of
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from streamd.storage import DISK
from tests.faults import Crash, FaultyDisk
from tests.ingest.world import World

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


def test_the_log_names_ten_letters_of_each_reason_and_where_further_ones_are_counted(tmp_path):
    world = World(tmp_path, 1)
    now = world.clock.now_us()
    for n in range(12):
        world.send(0, {"src": "a", "time": now})
        if n % 4 == 0:
            world.send(0, {"src": "", "dst": "b", "time": now})
    with capture_logs() as logged:
        world.run(3).stop()
    named = [line["reason"] for line in logged if line["event"] == "dead_letter"]
    assert named.count("missing_field") == 10 and named.count("bad_key") == 3
    further, = (line for line in logged if line["event"] == "dead_letters_counted_only")
    assert further["reason"] == "missing_field" and further["metric"] == 'streamd_dead_letters_total{reason="missing_field"}'
    assert "streamd deadletter list --reason missing_field" in further["action"]


def about(n, name=""):
    """A letter of about 300 bytes that names a node: every third one is "gone"."""
    value = json.dumps({"src": name or ("gone" if n % 3 == 0 else f"kept:{n}"), "dst": "x"}).encode()
    return DeadLetter("t", 0, n, -1, "bad_time", "", 5, value, key=b"k" * 20)


def filled(folder, disk=DISK, num_letters=12):
    """Letters in both files."""
    letters = LocalDeadLetters(folder, MAX_BYTES, disk)
    for n in range(num_letters):
        letters.add(about(n))
    letters.flush()
    assert (folder / "previous.jsonl").exists()
    return letters


def test_letters_that_come_during_a_purge_are_kept_whatever_file_they_fill(tmp_path):
    """Of the letters before it those that name the key go, whether their file is renamed, dropped or neither meanwhile."""
    for pace in (1, 2, 3, 5, 10**9):
        folder = tmp_path / f"{pace}"
        letters = filled(folder, num_letters=14)
        first, number = held(folder)[0], 100
        for turn, _ in enumerate(letters.purge(["gone"])):
            if turn % pace == 0:
                letters.add(about(number, "other"))
                number += 1
        for last in range(3):
            letters.add(about(number + last, "other"))
        letters.flush()
        found = held(folder)
        assert not [n for n in found if n < 100 and n % 3 == 0], "what was there before is searched"
        assert found == sorted(found) and found[-1] == number + 2
        assert set(found) >= {n for n in range(first, number + 3) if n >= found[0] and (n >= 100 or n < 12 and n % 3)}
        assert {p.name for p in folder.iterdir()} == {"previous.jsonl", "current.jsonl", PURGE_LOCK}


def test_purges_of_several_processes_follow_one_another_and_lose_no_letter(tmp_path):
    """Each knows its own files only, as the ingest and the commands of one directory do."""
    letters = filled(tmp_path, num_letters=14)
    there = held(tmp_path)
    first, second = LetterPurge(tmp_path), LetterPurge(tmp_path)
    one, other = first.remove(["gone"]), second.remove(["kept:13"])
    next(one)
    next(other)
    assert second.is_waiting and not first.is_waiting
    # A third that starts meanwhile leaves the copy of the first alone, and letters go on to come.
    LocalDeadLetters(tmp_path, MAX_BYTES)
    for number, _ in enumerate(one):
        next(other, None)
        if number == 3:
            letters.add(about(100, "other"))
    list(other)
    letters.add(about(101, "other"))
    letters.flush()
    assert held(tmp_path) == [n for n in there if n % 3 and n != 13] + [100, 101]
    assert first.num_removed == len([n for n in there if n % 3 == 0]) and second.num_removed == 1


def test_a_letter_that_another_process_is_writing_is_kept_whole(tmp_path):
    filled(tmp_path)
    line = b'{"topic": "t", "offset": 100, "num_bytes": 1, "value_base64": "MQ=="}\n'
    has_begun = threading.Event()

    def write():
        with lock_of(tmp_path), (tmp_path / "current.jsonl").open("ab", buffering=0) as file:
            file.write(line[:20])
            has_begun.set()
            time.sleep(0.2)
            file.write(line[20:])
    thread = threading.Thread(target=write)
    thread.start()
    has_begun.wait()
    list(LetterPurge(tmp_path).remove(["gone"]))
    thread.join()
    assert held(tmp_path)[-1] == 100 and not [n for n in held(tmp_path) if n % 3 == 0]


@pytest.mark.parametrize("mode", ["kill", "power"])
def test_a_purge_that_is_stopped_loses_no_other_letter_and_can_be_done_again(tmp_path, mode):
    trial = FaultyDisk()
    letters = filled(tmp_path / "trial", trial)
    before = trial.calls
    list(letters.purge(["gone"]))
    for at in range(before, trial.calls):
        folder, disk = tmp_path / f"{at}", FaultyDisk(at, mode)
        letters = filled(folder, disk)
        kept = [n for n in held(folder) if n % 3]
        with pytest.raises(Crash):
            list(letters.purge(["gone"]))
        disk.abandon(None)
        assert [n for n in held(folder) if n % 3] == kept
        letters = LocalDeadLetters(folder, MAX_BYTES)
        list(letters.purge(["gone"]))
        letters.add(about(100, "other"))
        letters.flush()
        assert held(folder)[-len(kept) - 1:] == [*kept, 100] and not list(folder.glob(".*"))


@pytest.mark.parametrize("mode", ["full", "unsynced"])
def test_a_purge_that_a_disk_refuses_leaves_letters_that_can_be_added_to(tmp_path, mode):
    trial = FaultyDisk()
    letters = filled(tmp_path / "trial", trial)
    before = trial.calls
    list(letters.purge(["gone"]))
    for at in range(before, trial.calls):
        folder, disk = tmp_path / f"{at}", FaultyDisk(at, mode)
        letters = filled(folder, disk)
        kept = [n for n in held(folder) if n % 3]
        with pytest.raises(DiskError, match="dead letter"):
            list(letters.purge(["gone"]))
        letters.add(about(100, "other"))
        letters.flush()
        assert {p.name for p in disk.open_files} == {"current.jsonl"}
        # A power cut takes none of them, and with a second purge it brings none back.
        if at % 2:
            list(letters.purge(["gone"]))
        disk.cut_power()
        disk.abandon(None)
        found = held(folder)
        assert [n for n in found if n % 3] == [*kept, 100] and (found == [*kept, 100] or not at % 2)
        assert not list(folder.glob(".*")) or not at % 2


@pytest.mark.parametrize(("record_key", "keys", "found"), [
    (b"user:8", ["8"], True), (b"user:8", [8], True), (b"user:8", ["user:8"], True), (b"user:8", ["user:80"], False), (b"user:8", ["9", 80], False),
    (b"", ["8"], False), (b"", [""], True), ("größe".encode(), ["öß"], True), (b"\xff", ["8"], True), (b"a\\u0062", ["z"], True)])
def test_a_key_that_is_any_part_of_the_records_key_is_found(tmp_path, record_key, keys, found):
    letters = LocalDeadLetters(tmp_path, 10**6)
    letters.add(DeadLetter("t", 0, 1, -1, "bad_time", "", 5, b'{"src": 1, "dst": 2}', key=record_key))
    letters.flush()
    list(letters.purge(keys))
    assert held(tmp_path) == ([] if found else [1])
