"""A trainer's checkpoint as objects of a store, which is not trusted."""

import msgspec
import pytest

from streamd.errors import StoreError
from streamd.store.checkpoints import (
    FOLDER,
    KIND,
    LocalCheckpoint,
    download_checkpoint,
    read_checkpoint,
    stored_checkpoints,
    upload_checkpoint,
)
from streamd.store.file_index import FileIndex
from streamd.store.file_set import OBJECTS
from streamd.store.objects import Store
from streamd.store.sweep import sweep_store

FILES = {"checkpoint/cursor.json": b"{}", "checkpoint/state.safetensors": b"s" * 5000, "replay/1.safetensors": b"r" * 300,
         "facts/7.safetensors": b"f" * 900, "nightly/twin.json": b"t", "history": b"one\n", "moves": b"m\n"}


@pytest.fixture
def store(tmp_path):
    return Store(f"file://{tmp_path}/store", 0.1, sleep=lambda _: None)


def write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return LocalCheckpoint(folder=folder, checkpoint="00042.000000", nightly="00030", edge=42, held=3, purged_before=5,
                           files={name: len(data) for name, data in files.items()})


def read_back(store, stored, folder):
    download_checkpoint(store, stored, folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_was_stored_comes_back_and_only_what_changed_is_sent(store, tmp_path):
    first = upload_checkpoint(write(tmp_path / "1", FILES), 2, [], store, None, FileIndex())
    assert first.objects == len(FILES) and read_back(store, first.stored, tmp_path / "back1") == FILES
    changed = FILES | {"checkpoint/cursor.json": b'{"edge":43}', "history": b"one\ntwo\n", "moves": b"m\n"}
    second = upload_checkpoint(write(tmp_path / "2", changed), 2, [], store, first.stored, FileIndex())
    assert (second.objects, second.num_bytes) == (2, len(changed["checkpoint/cursor.json"]) + len(b"two\n"))
    assert read_back(store, second.stored, tmp_path / "back2") == changed


def test_a_history_that_was_learned_again_is_stored_whole(store, tmp_path):
    first = upload_checkpoint(write(tmp_path / "1", FILES), 2, [], store, None, FileIndex())
    changed = FILES | {"history": b"two\nmore\n"}
    second = upload_checkpoint(write(tmp_path / "2", changed), 3, [], store, first.stored, FileIndex())
    assert read_back(store, second.stored, tmp_path / "back") == changed


def test_only_the_part_of_a_file_that_counts_is_stored(store, tmp_path):
    local = write(tmp_path / "1", FILES | {"history": b"one\ntorn"})
    local.files["history"] = 4
    done = upload_checkpoint(local, 2, [], store, None, FileIndex())
    assert read_back(store, done.stored, tmp_path / "back")["history"] == b"one\n"


def test_a_sweep_leaves_what_a_checkpoint_names(store, tmp_path):
    done = upload_checkpoint(write(tmp_path / "1", FILES), 2, [], store, None, FileIndex())
    store.put(f"{OBJECTS}/ab/{'c' * 62}", b"nobody needs it")
    assert sweep_store(store, 2) == (0, 1)
    assert read_back(store, done.stored, tmp_path / "back") == FILES
    store.remove([done.name])
    assert sweep_store(store, 2) == (0, len(FILES))


def test_an_object_that_is_gone_or_differs_is_named(store, tmp_path):
    done = upload_checkpoint(write(tmp_path / "1", FILES), 2, [], store, None, FileIndex())
    piece = done.stored.file("replay/1.safetensors").pieces[0]
    store.put(piece.object, b"x" * piece.size)
    with pytest.raises(StoreError, match=piece.object):
        download_checkpoint(store, done.stored, tmp_path / "back")


def test_a_checkpoint_of_another_content_is_not_read(store, tmp_path):
    done = upload_checkpoint(write(tmp_path / "1", FILES), 2, [], store, None, FileIndex())
    other = upload_checkpoint(write(tmp_path / "2", FILES | {"history": b"x\n"}), 2, [], store, None, FileIndex())
    store.put(done.name, other.data)
    with pytest.raises(StoreError, match="checksum"):
        read_checkpoint(store, done.name, len(done.data), 1)
    store.put(done.name, done.data[:-5])
    with pytest.raises(StoreError, match="damaged"):
        stored_checkpoints(store)


@pytest.mark.parametrize("wrong", [
    {"format": 9}, {"checkpoint": "../x"}, {"nightly": "a/b"}, {"nightly": ""},
    {"path": "../../x"}, {"path": "replay/../x"}, {"path": "replay/.x"}, {"path": "models/x"}, {"path": "checkpoint/a/b"},
    {"size": 1}, {"size": -1}, {"twice": True}, {"object": "../x"}])
def test_a_checkpoint_that_cannot_be_trusted_is_refused(store, tmp_path, wrong):
    stored = upload_checkpoint(write(tmp_path / "1", FILES), 2, [], store, None, FileIndex()).stored
    at = next(i for i, file in enumerate(stored.files) if file.path == "replay/1.safetensors")
    file = stored.files[at]
    if "object" in wrong:
        file = msgspec.structs.replace(file, pieces=[msgspec.structs.replace(file.pieces[0], object=wrong["object"])])
    file = msgspec.structs.replace(file, **{k: v for k, v in wrong.items() if k in ("path", "size")})
    files = [*stored.files[:at], file, *stored.files[at + 1 :], *([file] if "twice" in wrong else [])]
    fields = {k: v for k, v in wrong.items() if k in ("format", "checkpoint", "nightly")}
    bad = msgspec.structs.replace(stored, files=files, **fields)
    with pytest.raises(StoreError):
        KIND.decode(f"{FOLDER}/x", KIND.encode(bad))
