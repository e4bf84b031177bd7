"""A memory is read back from its files bit for bit, whatever was written, deleted, linked to or damaged in between."""

import errno
import os

import numpy as np
import pytest
import torch
from safetensors import safe_open

from streamd.errors import VersionError
from streamd.models import Memory
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.files import MemoryFiles, MemoryReader, read_memory
from streamd.storage import Disk, ImmutableFile, link_or_copy
from streamd.tensors import file_checksum

DIM, WIDTH = 6, 2


def moved(memory, rng, nodes, count=20):
    """Moves memory over a chunk of events between some nodes, with states drawn at random."""
    src, dst = rng.choice(nodes, (2, count))
    time = np.sort(rng.integers(1, 100, count)) + memory.now_us
    states = torch.from_numpy(rng.normal(size=(len(memory.pending_node), DIM)).astype(np.float32))
    features = rng.normal(size=(count, WIDTH)).astype(np.float32)
    memory.commit(states, EdgeRows(memory.edge, src, dst, time, features))


def check_equal(got, want):
    assert (got.edge, got.now_us) == (want.edge, want.now_us)
    for name, tensor in want.tensors().items():
        other = got.tensors()[name]
        size = min(len(tensor), len(other))
        assert torch.equal(other[:size], tensor[:size]) and not tensor[size:].any() and not other[size:].any(), name


def read(files, memory, **how):
    return read_memory(files, memory.edge, memory.now_us, (DIM, WIDTH), "cpu", **how)


@pytest.mark.parametrize("seed", range(3))
def test_a_memory_that_moves_on_is_read_back_after_every_store(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("streamd.models.memory.files.SLICE_ROWS", 64)
    rng = np.random.default_rng(seed)
    memory, store, reader = Memory(DIM, WIDTH), MemoryFiles(tmp_path / "home"), MemoryReader()
    lengths = set()
    for turn in range(40):
        moved(memory, rng, np.arange(400) if turn < 10 else rng.integers(0, 500, 9))
        if turn == 25:
            # The trainer is started again: it goes on from what it reads.
            memory = read(store.store(memory), memory)
        files = store.store(memory)
        store.sweep()
        lengths.add(len(files))
        check_equal(read(files, memory), memory)
        if turn % 3:
            got = reader.read(files, memory.edge, memory.now_us, (DIM, WIDTH), "cpu")
            check_equal(got, memory)
            moved(got, rng, np.arange(400))
    assert max(lengths) > 4, "most turns write what changed only"


def test_what_is_written_depends_on_what_was_touched_and_nothing_new_is_not_written(tmp_path):
    rng = np.random.default_rng(1)
    memory, store = Memory(DIM, WIDTH), MemoryFiles(tmp_path)
    for _ in range(30):
        moved(memory, rng, np.arange(3000), 500)
    moved(memory, rng, np.arange(10))
    full = store.store(memory)
    moved(memory, rng, np.arange(10))
    changed = store.store(memory)
    assert changed[1] == full[1] and len(changed) == 3
    assert changed[2].path.stat().st_size < full[1].path.stat().st_size / 5
    assert store.store(memory.copy()) == changed


def test_a_deleted_nodes_state_is_in_no_file_after_the_next_store(tmp_path):
    rng = np.random.default_rng(2)
    memory, store = Memory(DIM, WIDTH), MemoryFiles(tmp_path)
    for _ in range(4):
        moved(memory, rng, np.arange(300), 300)
    secret = memory.tensors()["state"][7].numpy().tobytes()
    assert len(secret) == 4 * DIM and memory.tensors()["state"][7].any()
    files = store.store(memory)
    assert any(secret in f.path.read_bytes() for f in files)
    moved(memory, rng, np.arange(100, 110))
    moved(memory, rng, np.arange(100, 110))
    from streamd.events import NodeDeletes

    memory.forget(NodeDeletes(np.array([7]), np.array([memory.edge])))
    files = store.store(memory)
    store.sweep()
    assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())
    check_equal(read(files, memory), memory)


def test_going_on_from_a_checkpoint_writes_changes_only_and_keeps_what_versions_link_to(tmp_path):
    rng = np.random.default_rng(3)
    memory, store = Memory(DIM, WIDTH), MemoryFiles(tmp_path / "home")
    for _ in range(20):
        moved(memory, rng, np.arange(2000), 300)
    (tmp_path / "checkpoint").mkdir()
    linked = []
    for i, file in enumerate(store.store(memory)):
        path = tmp_path / "checkpoint" / str(i)
        link_or_copy(file.path, path)
        linked.append(ImmutableFile(path, file.checksum))
    again, after = MemoryFiles(tmp_path / "home"), read(linked, memory)
    again.resume(linked, after)
    moved(after, rng, np.arange(5))
    moved(after, rng, np.arange(5))
    files = again.store(after)
    again.sweep()
    assert len(files) == len(linked) + 1 and [f.checksum for f in files[1:-1]] == [f.checksum for f in linked[1:]]
    check_equal(read(files, after), after)
    check_equal(read(linked, memory), memory)


class NoLinks(Disk):
    def link(self, old, new):
        raise OSError(errno.EPERM, "no links here")


def test_a_volume_without_links_gets_copies(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(1000))
    link_or_copy(tmp_path / "a", tmp_path / "b", NoLinks())
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert (tmp_path / "a").stat().st_ino != (tmp_path / "b").stat().st_ino


def spoiled(path, change):
    """Writes the file again with one array changed, and returns it with a checksum that says it is meant."""
    from streamd.tensors import Column, write_columns
    with safe_open(path, "np") as data:
        arrays = {name: data.get_tensor(name) for name in data.keys()}  # noqa: SIM118
    change(arrays)
    path.unlink()
    return ImmutableFile(path, write_columns(path, {n: Column(a.dtype, a.shape, [a]) for n, a in arrays.items()}))


def a_negative_node(arrays):
    arrays["node"][0] = -1


def a_node_beyond_all(arrays):
    arrays["node"][0] = 2**40


def a_state_that_is_no_number(arrays):
    arrays["state"][3, 2] = np.nan


def another_width(arrays):
    arrays["state"] = arrays["state"][:, :4]


@pytest.mark.parametrize("change", [a_negative_node, a_node_beyond_all, a_state_that_is_no_number, another_width])
def test_files_that_cannot_be_are_refused_by_name(tmp_path, change):
    rng = np.random.default_rng(4)
    memory, store = Memory(DIM, WIDTH), MemoryFiles(tmp_path)
    for _ in range(3):
        moved(memory, rng, np.arange(50))
    files = store.store(memory)
    with pytest.raises(VersionError, match=files[1].path.name):
        read([files[0], spoiled(files[1].path, change)], memory)


def test_damage_is_told_by_the_checksum_and_a_lost_file_by_its_name(tmp_path):
    rng = np.random.default_rng(5)
    memory, store = Memory(DIM, WIDTH), MemoryFiles(tmp_path)
    moved(memory, rng, np.arange(50))
    moved(memory, rng, np.arange(50))
    files = store.store(memory)
    data = bytearray(files[1].path.read_bytes())
    data[-9] ^= 4
    files[1].path.write_bytes(data)
    with pytest.raises(VersionError, match="differs from its checksum"):
        read(files, memory)
    assert file_checksum(files[1].path) != files[1].checksum
    files[1].path.unlink()
    with pytest.raises(VersionError, match="cannot be read"):
        read(files, memory)


def test_a_memory_of_the_release_before_is_read_and_its_empty_rows_take_no_pages(tmp_path):
    """One dense file with a row for every node and as many empty ones behind."""
    from safetensors.torch import save_file

    rng = np.random.default_rng(6)
    memory = Memory(DIM, WIDTH)
    for _ in range(3):
        moved(memory, rng, np.arange(50))
    tensors = memory.tensors()
    padded = {name: torch.cat([t, torch.zeros(5000, *t.shape[1:], dtype=t.dtype)]) if name in ("state", "last_us") else t
              for name, t in tensors.items()}
    save_file(padded, tmp_path / "state.safetensors")
    got = read([ImmutableFile(tmp_path / "state.safetensors", "")], memory)
    check_equal(got, memory)
    assert got.rows.num_positions <= 50 and len(got.rows.used_slots()) <= 4


class Stops(Disk):
    """Ends the process, as it were, at the n-th write."""

    def __init__(self, after):
        self.left = after

    def write(self, fd, data, offset):
        self.left -= 1
        if self.left < 0:
            super().write(fd, bytes(data[: len(data) // 2]), offset)
            raise OSError(errno.ENOSPC, "full")
        super().write(fd, data, offset)


@pytest.mark.parametrize("writes", range(9))
def test_a_store_that_fails_leaves_the_files_before_and_the_next_one_is_whole(tmp_path, writes):
    rng = np.random.default_rng(7)
    disk = Stops(10**6)
    memory, store = Memory(DIM, WIDTH), MemoryFiles(tmp_path, disk)
    for _ in range(5):
        moved(memory, rng, np.arange(200), 200)
    before, files = memory.copy(), store.store(memory)
    moved(memory, rng, np.arange(5))
    moved(memory, rng, np.arange(5))
    disk.left = writes
    try:
        store.store(memory)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    check_equal(read(files, before), before)
    disk.left = 10**6
    check_equal(read(store.store(memory), memory), memory)
