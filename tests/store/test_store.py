"""A data directory goes to a store and comes back as it was, whatever happens on the way."""

import dataclasses
import os
import random
import shutil
import threading
from contextlib import closing, contextmanager

import fsspec
import msgspec
import numpy as np
import pytest
from crc32c import crc32c
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import DataDirectoryError, LockedError, StoreError, StreamdError
from streamd.eventlog.layout import MOVES
from streamd.eventlog.recovery import last_state, lock_directory
from streamd.eventlog.upkeep.holds import read_holds
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema
from streamd.registry import Registry
from streamd.registry.journal import decoded_moves
from streamd.store import manifests, snapshot
from streamd.store.file_set import OBJECTS, Piece, StoredFile, object_names
from streamd.store.leases import LEASE_SECONDS, UPLOADS
from streamd.store.manifests import Manifest
from streamd.store.objects import Store, without_secrets
from streamd.store.restore import choose, restore
from streamd.store.sweep import sweep_store
from streamd.store.upload import upload
from tests.builders import (
    SECOND,
    SETS,
    batch,
    compact,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)
from tests.faults import Crash, FaultyDisk
from tests.registry.test_registry import candidate

SCHEMA = Schema(2, 3, 1)


def rich_log(path, num_commits=12, segment_edges=150):
    """A log with edges, labels, deletes of nodes and edges, node features and several segments."""
    src, dst, time = stream(num_commits * 40)
    log = LogWriter(path, SCHEMA, segment_edges)
    keys = [f"n:{i}" for i in range(35)]
    log.keys.update({key: i for i, key in enumerate(keys)})
    for i in range(num_commits):
        grow(log, src, dst, time, i, keys if i == 0 else ())
    return log


def grow(log, src, dst, time, i, keys=()):
    """Commit number i of the stream: at most 40 edges, a label, an update of a node's features; every third deletes."""
    a = log.num_edges
    b = min(a + 40, a + log.remaining_rows(), len(src))
    rows = dataclasses.replace(
        batch(SCHEMA, src[a:b], dst[a:b], time[a:b], keys, i),
        label_node_L=np.array([i % 30]), label_time_L=time[a:a + 1], label_target_L=np.array([[float(i)]], np.float32),
        node_F=np.array([i % 30]), node_row_F=np.array([0]), node_edge_F=np.array([0]),
        node_values_F=np.full((1, 3), i + 1, np.float32))
    if i % 3 == 2:
        gone = np.zeros(1, DELETION)
        gone["src"], gone["dst"], gone["time"] = 30 + i % 5, -1, -1
        rows = dataclasses.replace(rows, deletions_X=gone)
    log.commit(rows, Progress(), int(time[b - 1]))


def committed(path):
    """All that a log's journal vouches for, as bytes by name: files up to their committed ends, rows of segments."""
    from streamd.eventlog.segment_files import SegmentFiles

    state = last_state(path, Schema())
    out = {name: (path / name).read_bytes()[: file.num_bytes] for name, file in state.files.items()}
    for s in state.segments:
        files = SegmentFiles(path / s.path, s, state.schema)
        out[s.path] = b"".join(np.ascontiguousarray(x).tobytes() for x in files.edges(0, s.num_edges))
        out[s.path] += files.features(np.arange(s.num_edges), state.schema).tobytes()
        if s.num_labels:
            out[s.path] += b"".join(np.ascontiguousarray(x).tobytes() for x in files.label_columns(s.num_labels))
    return state, out


def round_trip(path, store, back):
    done = upload(path, store)
    restore(store, choose(store), back)
    assert committed(back) == committed(path) and verify_log(back)[1] == []
    return done


@pytest.fixture
def store(tmp_path):
    return Store(f"file://{tmp_path}/store", timeout_seconds=1)


def test_a_log_with_everything_in_it_comes_back_byte_for_byte(tmp_path, store):
    with closing(rich_log(tmp_path / "log")) as log:
        round_trip(tmp_path / "log", store, tmp_path / "back")
        assert len(log.state.segments) == 3 and log.state.last.num_labels
    assert not (tmp_path / "log/roles/backup/snapshot").exists() and "backup" not in read_holds(tmp_path / "log")
    with closing(LogWriter(tmp_path / "back", SCHEMA, 150)) as log:
        before = log.num_edges
        log.commit(batch(SCHEMA, np.array([1]), np.array([2]), np.array([log.watermark + SECOND])), Progress(), log.watermark + SECOND)
        assert log.num_edges == before + 1
    assert verify_log(tmp_path / "back")[1] == []


def test_a_log_of_several_edge_sets_comes_back(tmp_path, store):
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path / "log", src, dst, time, sets, watermark=int(time[-1]), segment_edges=250)
    round_trip(tmp_path / "log", store, tmp_path / "back")
    LogWriter(tmp_path / "back", SETS, 250).close()


def test_the_header_counts_what_the_manifest_holds(tmp_path, store):
    from streamd.eventlog.tguf.reader import open_tguf

    with closing(rich_log(tmp_path / "log")):
        round_trip(tmp_path / "log", store, tmp_path / "back")
    state = last_state(tmp_path / "back", SCHEMA)
    for segment in state.segments:
        header = open_tguf(tmp_path / "back" / segment.path).header
        assert (header.num_edges, header.num_labels) == (segment.num_edges, segment.num_labels)


def test_a_journal_file_that_a_crash_tore_comes_back_as_it_is(tmp_path, store):
    """A line is torn, a new writer begins another file, and the log goes on: what is torn belongs to no commit."""
    src, dst, time = stream(900)
    with closing(rich_log(tmp_path / "log", 3)):
        pass
    newest = max((tmp_path / "log/journal").glob("*.journal"))
    newest.write_bytes(newest.read_bytes() + b'0badc0de {"seq":')
    with closing(LogWriter(tmp_path / "log", SCHEMA, 150)) as log:
        grow(log, src, dst, np.maximum(time, log.watermark), 3)
        assert len(list((tmp_path / "log/journal").glob("*.journal"))) > 1
        round_trip(tmp_path / "log", store, tmp_path / "back")
        assert upload(tmp_path / "log", store).objects == 0
    LogWriter(tmp_path / "back", SCHEMA, 150).close()


def test_a_later_backup_sends_only_what_is_new(tmp_path, store):
    src, dst, time = stream(900)
    with closing(rich_log(tmp_path / "log")) as log:
        first = round_trip(tmp_path / "log", store, tmp_path / "one")
        again = upload(tmp_path / "log", store)
        assert (again.objects, again.num_bytes) == (0, 0)
        grow(log, src, dst, time + int(log.watermark), 12)
        later = round_trip(tmp_path / "log", store, tmp_path / "two")
        assert 0 < later.num_bytes < first.num_bytes / 5
        restore(store, choose(store, first.manifest.seq), tmp_path / "old")
        assert committed(tmp_path / "old") == committed(tmp_path / "one")
        for i in range(13, 13 + 70):
            grow(log, np.tile(src, 9), np.tile(dst, 9), np.arange(8100) * SECOND + int(log.watermark), i)
            upload(tmp_path / "log", store)
        last = round_trip(tmp_path / "log", store, tmp_path / "three")
        assert max(len(f.pieces) for f in last.manifest.files) <= 66, "many small pieces are put together again"


def test_what_compaction_replaced_is_stored_anew(tmp_path, store):
    with closing(rich_log(tmp_path / "log")) as log:
        round_trip(tmp_path / "log", store, tmp_path / "one")
        compact(log)
        assert any(s.revision for s in log.state.segments) and any(f.revision for f in log.state.files.values())
        round_trip(tmp_path / "log", store, tmp_path / "two")
    assert b"n:32" in committed(tmp_path / "one")[1]["nodes.keys"] and b"n:32" not in committed(tmp_path / "two")[1]["nodes.keys"]


def test_a_log_that_was_restored_and_went_another_way_mixes_nothing(tmp_path, store):
    """Both logs have commits of the same numbers behind the first backup, with other rows."""
    src, dst, time = stream(900)
    with closing(rich_log(tmp_path / "log", 6)) as log:
        old = round_trip(tmp_path / "log", store, tmp_path / "other").manifest.seq
        grow(log, src, dst, np.maximum(time, log.watermark), 6)
        newest = upload(tmp_path / "log", store).manifest.seq
    with closing(LogWriter(tmp_path / "other", SCHEMA, 150)) as log:
        with pytest.raises(StoreError, match="another log"):
            upload(tmp_path / "other", store)
        while log.state.seq <= newest:
            grow(log, dst, src, np.maximum(time, log.watermark), log.state.seq)
        assert old < newest < log.state.seq
        round_trip(tmp_path / "other", store, tmp_path / "back")


@contextmanager
def busy_writer(path):
    """A log whose writer commits, drops segments and compacts until the block ends; what goes wrong in it is raised there."""
    src, dst, time = stream(40_000, hours=300)
    log, stop, wrong = rich_log(path), threading.Event(), []

    def write():
        try:
            i = 12
            while not stop.is_set() and log.num_edges < 39_000:
                grow(log, src, dst, np.maximum(time, log.watermark), i)
                if i % 40 == 0 and len(log.state.sealed) > 3:
                    log.drop_before(log.state.sealed[1].end)
                if i % 55 == 0:
                    compact(log)
                i += 1
        except BaseException as error:  # noqa: BLE001 - shown by the test
            wrong.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
        log.close()
    assert not wrong


def test_a_backup_beside_a_writer_that_commits_drops_and_compacts(tmp_path, store):
    seqs = []
    with busy_writer(tmp_path / "log"):
        for number in range(6):
            seqs.append(upload(tmp_path / "log", store).manifest.seq)
            restore(store, choose(store, seqs[-1]), tmp_path / f"back{number}")
    assert seqs == sorted(seqs) and len(set(seqs)) > 1


def test_what_was_learned_goes_with_the_log_and_half_written_files_do_not(tmp_path, store):
    rich_log(tmp_path / "log").close()
    for name in ("models/7-1/model.safetensors", "models/7-1/manifest.json", "models/journal.jsonl", "train/windows.jsonl",
                 "train/checkpoints/00000000000000000100.000000/cursor.json", "roles/train/hold", "roles/train/facts/1.safetensors",
                 "roles/train/heartbeat.json", "models/.8-1.tmp/model.safetensors", "roles/serve-2/facts/1.safetensors"):
        (tmp_path / "log" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "log" / name).write_bytes(b'{"edge":0,"clean_edge":0}' if name.endswith("hold") else name.encode())
    made = round_trip(tmp_path / "log", store, tmp_path / "back").manifest
    assert (made.versions, made.checkpoint) == (["7-1"], "00000000000000000100.000000")
    assert {str(p.relative_to(tmp_path / "back")) for p in (tmp_path / "back").rglob("*") if p.is_file()} == {
        *(f.path for f in made.files), "published"}
    assert {f.path for f in made.files if f.path.startswith(("models", "train", "roles"))} == {
        "models/7-1/model.safetensors", "models/7-1/manifest.json", "models/journal.jsonl", "train/windows.jsonl",
        "train/checkpoints/00000000000000000100.000000/cursor.json", "roles/train/hold", "roles/train/facts/1.safetensors"}


def test_a_backup_has_the_versions_that_its_newest_move_names(tmp_path, monkeypatch):
    """A version is made and promoted while the versions are linked, and the one before is dropped."""
    write_log(tmp_path / "log", *stream(30))
    registry = Registry.of(settings(tmp_path / "log", registry__keep=1))
    for n in (1, 2):
        registry.publish(candidate(n))
    link = snapshot._link_versions_and_roles
    made = []

    def link_slowly(*args):
        found = link(*args)
        if not made:
            made.append(registry.publish(candidate(3)).version)
        return found

    monkeypatch.setattr(snapshot, "_link_versions_and_roles", link_slowly)
    with snapshot.take_snapshot(tmp_path / "log") as taken:
        copy = Registry.of(settings(taken.folder))
        assert made == ["13-3"] and f"models/{made[0]}/manifest.json" in taken.learned
        last = decoded_moves((taken.folder / MOVES).read_bytes())[-1]
        assert last.champion == "13-3" in copy.names() and last.shadow in copy.names()


def test_one_backup_of_a_directory_runs_at_a_time(tmp_path, store):
    rich_log(tmp_path / "log").close()
    with os.fdopen(lock_directory(tmp_path / "log/roles/backup/lock")), pytest.raises(LockedError, match="backup"):
        upload(tmp_path / "log", store)
    with pytest.raises(StreamdError, match="holds no log"):
        upload(tmp_path / "nothing", store)


@pytest.mark.parametrize("mode", ["kill", "torn", "full"])
def test_a_restore_that_stops_anywhere_leaves_no_log_and_can_be_run_again(tmp_path, store, mode):
    write_log(tmp_path / "log", *stream(300), Schema(2, 0, 0), segment_edges=100)
    upload(tmp_path / "log", store)
    counting = FaultyDisk()
    restore(store, choose(store), tmp_path / "count", disk=counting)
    for at in range(counting.calls):
        disk = FaultyDisk(at, mode)
        try:
            restore(store, choose(store), tmp_path / "back", disk=disk)
        except (Crash, DataDirectoryError):
            # Only the sync of the folder around it comes after the rename.
            assert not (tmp_path / "back").exists() or at >= counting.calls - 1
        assert disk.struck or mode == "torn"
        if not (tmp_path / "back").exists():
            restore(store, choose(store), tmp_path / "back")
        assert committed(tmp_path / "back") == committed(tmp_path / "log")
        shutil.rmtree(tmp_path / "back")


def test_damage_of_any_object_is_found_by_name_and_leaves_nothing(tmp_path, store):
    with closing(rich_log(tmp_path / "log", 6)):
        upload(tmp_path / "log", store)
    objects = sorted(p for p in (tmp_path / "store/objects").rglob("*") if p.is_file())
    assert len(objects) > 5
    for number, path in enumerate(objects):
        good = path.read_bytes()
        bad = bytearray(good)
        bad[random.Random(number).randrange(len(bad))] ^= 1
        for content in (bytes(bad), good[:-1], good + b"x", None):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            with pytest.raises(StoreError, match=path.name):
                restore(store, choose(store), tmp_path / "back")
            assert not (tmp_path / "back").exists() and not list(tmp_path.glob(".back*"))
        path.write_bytes(good)
    name, = manifests.names(store)
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes().replace(b'"seq":', b'"seq": '))
    with pytest.raises(StoreError, match=f"{name} differs from its checksum"):
        choose(store)


def test_rows_that_were_damaged_before_the_backup_are_found_by_the_restore(tmp_path, store):
    write_log(tmp_path / "log", *stream(120), Schema(2, 0, 0))
    path = tmp_path / "log/edges/default/00000000000000000000.tguf"
    raw = bytearray(path.read_bytes())
    raw[4096 + 8 * 45] ^= 4
    path.write_bytes(raw)
    upload(tmp_path / "log", store)
    with pytest.raises(StoreError, match=r"00000\.tguf edges \[0, 97\)"):
        restore(store, choose(store), tmp_path / "back")


MANIFEST = Manifest(term=0, seq=3, created_at=0.0, log={}, changelog_offset=None, versions=[], checkpoint="", files=[])
OBJECT = f"{OBJECTS}/ab/{'c' * 62}"


@pytest.mark.parametrize("file", [
    StoredFile("../x", 1, []), StoredFile("/etc/passwd", 1, []), StoredFile("edges/../../x", 1, []), StoredFile("lock", 1, []),
    StoredFile("edges//x", 1, []), StoredFile("models/.8.tmp/x", 1, []), StoredFile("edges/a\\b", 1, []), StoredFile("nodes.keys", -1, []),
    StoredFile("nodes.keys", 1 << 60, []), StoredFile("nodes.keys", 4, [Piece(OBJECT, 5, 0, [(0, 5)])]),
    StoredFile("nodes.keys", 9, [Piece(OBJECT, 4, 0, [(0, 5)])]), StoredFile("nodes.keys", 9, [Piece("objects/../x", 4, 0, [(0, 4)])]),
    StoredFile("nodes.keys", 9, [Piece(OBJECT, 4, 0, [(-1, 4)])]), StoredFile("nodes.keys", 1 << 40, [Piece(OBJECT, 1 << 30, 0, [(0, 1 << 30)])]),
], ids=str)
def test_nothing_in_a_manifest_is_trusted(file):
    with pytest.raises(StoreError, match="cannot be trusted"):
        manifests.KIND.decode(MANIFEST.name, manifests.KIND.encode(msgspec.structs.replace(MANIFEST, files=[file])))


def test_an_unknown_format_is_refused_by_name():
    assert manifests.KIND.decode(MANIFEST.name, manifests.KIND.encode(MANIFEST)) == MANIFEST
    with pytest.raises(StoreError, match="has format 2, this streamd reads 1"):
        manifests.KIND.decode(MANIFEST.name, manifests.KIND.encode(msgspec.structs.replace(MANIFEST, format=2)))
    text = b'{"format":7,"other":1}'
    with pytest.raises(StoreError, match="has format 7"):
        manifests.KIND.decode(MANIFEST.name, b'{"crc":"%08x","manifest":%s}' % (crc32c(text), text))
    for junk in (b"", b"{}", b"\xff", b"[1]", b'{"crc":1,"manifest":2}'):
        with pytest.raises(StoreError, match="damaged"):
            manifests.KIND.decode(MANIFEST.name, junk)


def test_objects_that_no_kept_manifest_names_are_removed_and_no_others(tmp_path, store):
    src, dst, time = stream(900)
    with closing(rich_log(tmp_path / "log")) as log:
        upload(tmp_path / "log", store)
        compact(log)
        upload(tmp_path / "log", store)
        grow(log, src, dst, np.maximum(time, log.watermark), 12)
        upload(tmp_path / "log", store)
        store.put(f"{UPLOADS}/{2**40}-other", b"1")
        assert sweep_store(store, 2) == (0, 0), "another upload may count on any object"
        num_manifests, num_objects = sweep_store(store, 2, now=2**40 + LEASE_SECONDS + 1)
        assert num_manifests == 1 and num_objects > 0 and not store.sizes(UPLOADS)
        for name in manifests.names(store):
            restore(store, manifests.read(store, name), tmp_path / "back" / name[-8:-5])
        kept = {o for name in manifests.names(store) for o in object_names(manifests.read(store, name).files)}
        assert set(store.sizes(OBJECTS)) == kept and sweep_store(store, 2) == (0, 0)


class Away(MemoryFileSystem):
    """A store of which calls fail: by number, or all."""

    protocol = "away"
    store, pseudo_dirs = {}, [""]
    fails = staticmethod(lambda: False)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        if Away.fails():
            super().pipe_file(path, value[: len(value) // 2])
            raise TimeoutError("500 of away://user:sesame@host/x?token=open: read timed out")
        super().pipe_file(path, value)


@pytest.fixture
def away():
    fsspec.register_implementation("away", Away, clobber=True)
    Away.store.clear()
    yield Store("away://user:sesame@host/x?token=open", timeout_seconds=0.5, sleep=lambda seconds: None)
    Away.fails = staticmethod(lambda: False)


def test_a_store_that_fails_now_and_then_gets_everything(tmp_path, away):
    draw = random.Random(1)
    Away.fails = staticmethod(lambda: draw.random() < 0.5)
    rich_log(tmp_path / "log").close()
    patient = Store("away://user:sesame@host/x?token=open", timeout_seconds=60, sleep=lambda seconds: None)
    round_trip(tmp_path / "log", patient, tmp_path / "back")


def test_a_store_that_is_away_ends_the_backup_in_time_without_its_credentials_and_the_next_one_goes_on(tmp_path, away):
    rich_log(tmp_path / "log").close()
    calls = iter(range(10**9))
    Away.fails = staticmethod(lambda: next(calls) >= 8)
    with pytest.raises(StoreError, match="cannot be written to away://host/x: TimeoutError") as caught:
        upload(tmp_path / "log", away)
    said = f"{caught.value!r} {caught.value.__cause__} {caught.value.__context__ if not caught.value.__suppress_context__ else ''}"
    assert "sesame" not in said and "open" not in said and not manifests.names(away)
    with pytest.raises(StoreError, match="holds no manifest"):
        choose(away)
    Away.fails = staticmethod(lambda: False)
    there = {name for name, size in away.sizes(OBJECTS).items()}
    done = round_trip(tmp_path / "log", away, tmp_path / "back")
    assert len(there) > 4 and done.objects <= len(object_names(done.manifest.files)) - len(there) + 1, "the half upload alone is sent again"


class Guarded(MemoryFileSystem):
    """A store that lets in the password of now. It reads a file for it once, as libraries of clouds do."""

    protocol = "guarded"
    store, pseudo_dirs = {}, [""]
    file, password, refused = None, "", 0

    def __init__(self, **options):
        super().__init__(**options)
        self.own = Guarded.file.read_text()

    def _check(self):
        if self.own != Guarded.password:
            Guarded.refused += 1
            raise PermissionError("Access Denied")

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        self._check()
        super().pipe_file(path, value)

    def info(self, path, **kwargs):
        self._check()
        return super().info(path)


def test_a_secret_of_the_store_that_was_rotated_is_read_again_once(tmp_path):
    Guarded.file, Guarded.password, Guarded.refused = tmp_path / "credentials", "first", 0
    Guarded.file.write_text("first")
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    pauses = []
    store = Store("guarded://bucket/x", timeout_seconds=60, sleep=pauses.append)
    store.put("a", b"1")

    # The store takes the new one alone, and the file has it already.
    Guarded.password = "second"
    Guarded.file.write_text("second")
    store.put("b", b"2")
    assert store.get("a", 10) == b"1" and Guarded.refused == 1

    # The file follows later: until then each call is refused at once, after one further look at the file.
    Guarded.password, Guarded.refused = "third", 0
    with pytest.raises(StoreError, match="b cannot be read from guarded://bucket/x: PermissionError Access Denied"):
        store.get("b", 10)
    assert Guarded.refused == 2 and pauses == []
    Guarded.file.write_text("third")
    assert store.get("b", 10) == b"2"


def test_credentials_are_never_shown():
    assert without_secrets("s3://key:secret@host:9000/bucket/a?token=x#y") == "s3://host:9000/bucket/a"
    with pytest.raises(StoreError) as caught:
        Store("nothing-like-it://key:secret@host/bucket?token=hidden")
    assert "secret" not in str(caught.value) and "hidden" not in str(caught.value) and "streamd-gnn[s3]" in str(caught.value)


def test_the_commands_back_up_and_restore(tmp_path):
    rich_log(tmp_path / "log").close()

    def run(*words):
        return CliRunner().invoke(app, [str(w) for w in words])

    url = f"file://{tmp_path}/store"
    done = run("backup", url, "--data-dir", tmp_path / "log", "--keep", 1)
    assert done.exit_code == 0 and "commit 12" in done.output and "0 manifests" in done.output
    done = run("restore", url, "--data-dir", tmp_path / "back")
    assert done.exit_code == 0 and "restored to commit 12" in done.output
    assert committed(tmp_path / "back") == committed(tmp_path / "log")
    assert run("verify", "--data-dir", tmp_path / "back").exit_code == 0
    done = run("restore", url, "--data-dir", tmp_path / "back")
    assert isinstance(done.exception, DataDirectoryError) and "is not empty" in str(done.exception)
    done = run("restore", url, "--seq", 7, "--data-dir", tmp_path / "seven")
    assert isinstance(done.exception, StoreError) and "commit 7" in str(done.exception)


def test_two_that_send_the_same_object_at_once_leave_it_whole(tmp_path):
    url, data, failed = f"file://{tmp_path}/store", b"x" * 100_000, []

    def send():
        try:
            for number in range(30):
                Store(url).put(f"objects/ab/{number}", data)
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and {p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()} == {data}
