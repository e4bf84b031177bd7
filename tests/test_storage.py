"""Files and folders written whole: there as before or as meant, whatever stops the writing, and nothing left behind."""

import numpy as np
import pytest
from crc32c import crc32c

from streamd.storage import DISK, FileWithHoles, remove_scratch, write_durably, write_folder_durably
from streamd.tensors import write_arrays
from tests.faults import Crash, FaultyDisk

OLD, NEW = b"old" * 1000, b"new" * 1500


def calls(write, path):
    disk = FaultyDisk()
    write(path, disk)
    return disk.calls


def write_file(path, disk):
    write_durably(path / "file", NEW, disk)


def write_folder(path, disk):
    write_folder_durably(path / "folder", {"a": OLD, "b": NEW}, disk)


def write_some_arrays(path, disk):
    write_arrays(path / "file", {"a": np.arange(300), "b": np.ones((40, 3), np.float32)}, disk)


def state(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("mode", ["kill", "torn", "power", "full", "broken"])
@pytest.mark.parametrize("write", [write_file, write_folder, write_some_arrays])
def test_a_write_that_stops_anywhere_leaves_the_old_or_the_new(tmp_path, write, mode):
    (tmp_path / "trial").mkdir()
    number = calls(write, tmp_path / "trial")
    wanted = {"file": OLD} | state(tmp_path / "trial")
    for at in range(number):
        path = tmp_path / f"{at}"
        path.mkdir()
        (path / "file").write_bytes(OLD)
        disk = FaultyDisk(at, mode)
        with pytest.raises((Crash, OSError)):
            write(path, disk)
        disk.abandon(None)
        failed = mode in ("full", "broken")
        if not failed:
            remove_scratch(path)
        found = state(path)
        assert found in ({"file": OLD}, wanted), (at, list(found))
        assert not failed or not list(path.glob(".*")), "what fails takes its scratch with it"


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_what_was_written_survives_a_power_cut(tmp_path, write):
    for seed in range(20):
        path = tmp_path / f"{seed}"
        path.mkdir()
        disk = FaultyDisk(mode="power", seed=seed)
        write(path, disk)
        disk.cut_power()
        disk.abandon(None)
        want = {"file": NEW} if write is write_file else {"folder/a": OLD, "folder/b": NEW}
        assert state(path) == want


def test_a_folder_that_is_there_is_not_written_over(tmp_path):
    write_folder_durably(tmp_path / "folder", {"a": OLD})
    with pytest.raises(AssertionError, match="there already"):
        write_folder_durably(tmp_path / "folder", {"a": NEW})


@pytest.mark.parametrize("piece_bytes", [1, 1000, 4096, 5000, 1 << 20])
def test_a_file_with_holes_reads_as_what_was_meant_and_takes_only_the_blocks_that_hold_something(tmp_path, piece_bytes):
    blocks = np.zeros((40, 4096), np.uint8)
    for block, byte in ((0, 0), (3, 4095), (4, 7), (17, 0), (25, 4095)):
        blocks[block, byte] = 1
    for size in (blocks.size, 26 * 4096, 25 * 4096 + 5, 3 * 4096, 1, 0):
        data = blocks.tobytes()[:size]
        file = FileWithHoles(tmp_path / "file")
        for at in range(0, size, piece_bytes):
            file.append(data[at:at + piece_bytes])
        file.finish()
        DISK.close(file.fd)
        assert (file.num_bytes, file.crc) == (size, crc32c(data)) and (tmp_path / "file").read_bytes() == data
        held = {a // 4096 for a in range(size) if data[a]}
        assert (tmp_path / "file").stat().st_blocks * 512 == 4096 * len(held), size
