"""The leader's archive: the store always holds what a new follower needs, whatever happens between two steps."""

import contextlib
import hashlib
import os
import random
import shutil
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from streamd.errors import FencedError, StoreError
from streamd.eventlog.journal.changelog_position import (
    ChangelogId,
    ChangelogPosition,
    PositionFile,
    read_position,
)
from streamd.eventlog.upkeep.holds import compact_done, read_compacted
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.store import archive as archives
from streamd.store import manifests, ranges
from streamd.store.archive import Archive, read_forgotten
from streamd.store.file_set import OBJECTS, object_names
from streamd.store.leases import REMOVALS, UPLOADS
from streamd.store.objects import Store
from streamd.store.restore import choose, restore
from streamd.store.sweep import Sweep, sweep_store
from streamd.store.upload import upload
from streamd.store.versions import object_of, upload_version
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from tests.builders import SECOND, ManualClock, compact, stream
from tests.faults import Crash, FaultyDisk
from tests.store.changelogs import TwinChangelog
from tests.store.test_store import committed, grow, rich_log

SRC, DST, _ = stream(20_000)
TIME = np.arange(20_000) * SECOND + 10**12
CHANGELOG_ID = ChangelogId("cluster", "id", "t.changelog")
BOOTSTRAP, MANIFEST_SECONDS = 1000.0, 600.0


class Leader:
    """A log that grows, its place in a changelog in memory, and the archive of its directory."""

    def __init__(self, path, url, changelog=None, segment_edges=150):
        self.path, self.url, self.changelog = path, url, changelog or TwinChangelog()
        self.clock, self.store, self.num = ManualClock(), Store(url, timeout_seconds=1, sleep=lambda s: None), 12
        self.term = 0
        self.log = rich_log(path, segment_edges=segment_edges)
        self.position = PositionFile(path, CHANGELOG_ID)
        self.acknowledge()
        self.begin()

    def begin(self, store=None, disk=None):
        """Start the archive's process, as after a kill."""
        more = {} if disk is None else {"disk": disk}
        self.archive = Archive(self.path, store or self.store, self.changelog, manifest_seconds=MANIFEST_SECONDS, clock=self.clock,
                               beat=Heartbeat(self.path, "archive"), bootstrap_seconds=BOOTSTRAP, **more)

    def acknowledge(self):
        """Each commit is one record: the offset behind commit n is 10 n."""
        self.changelog.end = 10 * self.log.state.seq
        self.position.write(ChangelogPosition(self.term, self.log.state.seq, self.changelog.end))

    def commit(self, seal=False):
        if seal:
            self.log.seal()
        grow(self.log, SRC, DST, TIME, self.num)
        self.num += 1
        self.acknowledge()

    def step(self, seconds=archives.PAUSE_SECONDS):
        self.clock.advance(seconds)
        self.archive.step()

    @property
    def newest(self):
        """Commit of the newest manifest, 0 for none."""
        return max((manifests.commit_of(n)[1] for n in manifests.names(self.store)), default=0)

    def close(self):
        self.position.close()
        self.log.close()

    def check(self, back):
        """The newest manifest makes this log, as it is now or was."""
        shutil.rmtree(back, ignore_errors=True)
        manifest = choose(self.store)
        restore(self.store, manifest, back)
        assert verify_log(back)[1] == []
        place = read_position(back)
        assert place == ChangelogPosition(manifest.term, manifest.changelog_seq, manifest.changelog_offset)
        assert place.changelog == CHANGELOG_ID
        if manifest.seq == self.log.state.seq:
            assert committed(back) == committed(self.path)
        return manifest


@pytest.fixture
def leader(tmp_path):
    with closing(Leader(tmp_path / "log", f"file://{tmp_path}/store")) as one:
        yield one


def version(path, name, data=b"weights"):
    folder = path / "models" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(data)


def age(path, seconds=60):
    """Let all files be as old as the index asks for: a change in the same tick of the clock would not show."""
    for file in path.rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            at = file.stat().st_mtime - seconds
            os.utime(file, (at, at))


def test_a_round_comes_with_a_sealed_segment_a_version_a_checkpoint_and_in_time(tmp_path):
    leader = Leader(tmp_path / "log", f"file://{tmp_path}/store", segment_edges=2000)
    leader.step(0)
    assert leader.newest == leader.log.state.seq
    leader.commit()
    leader.step()
    assert leader.newest == leader.log.state.seq - 1, "a commit alone is no reason"
    for happens in (lambda: leader.commit(seal=True), lambda: version(leader.path, "7-1"),
                    lambda: (leader.path / "train/checkpoints/100.0").mkdir(parents=True)):
        happens()
        leader.step()
        assert leader.newest == leader.log.state.seq
        leader.commit(seal=True)
        leader.step(1)
        assert leader.newest < leader.log.state.seq, "rounds have a pause between them"
        leader.step()
        leader.commit()
    leader.step(MANIFEST_SECONDS - 10)
    assert leader.newest == leader.log.state.seq - 1
    leader.step(10)
    assert leader.newest == leader.log.state.seq
    manifest = leader.check(tmp_path / "back")
    assert (manifest.changelog_seq, manifest.changelog_offset) == (manifest.seq, 10 * manifest.seq)
    assert manifest.versions == ["7-1"]
    leader.close()


def test_a_quiet_log_has_a_manifest_of_now(leader):
    leader.step(0)
    first = choose(leader.store).created_at
    leader.step(MANIFEST_SECONDS)
    assert choose(leader.store).created_at == first + MANIFEST_SECONDS and len(manifests.names(leader.store)) == 1


@pytest.fixture
def hashed(monkeypatch):
    """Bytes that were hashed, in a list."""
    seen = []

    class Counting:
        @staticmethod
        def sha256(data):
            seen.append(len(data))
            return hashlib.sha256(data)

    monkeypatch.setattr(ranges, "hashlib", Counting)
    read = ranges._read
    monkeypatch.setattr(ranges, "_read", lambda *args: (seen.append(len(data := read(*args))), data)[1])
    return seen


def test_a_round_reads_what_changed_and_no_more(leader, hashed, tmp_path):
    version(leader.path, "7-1", b"x" * 3_000_000)
    version(leader.path, "8-1", b"y" * 2_000_000)
    age(leader.path)
    leader.step(0)
    assert sum(hashed) > 10_000_000, "hashed and read"
    leader.begin()
    hashed.clear()
    leader.step(MANIFEST_SECONDS)
    newest_journal = max((leader.path / "journal").glob("*.journal")).stat().st_size
    assert sum(hashed) <= newest_journal, "the index outlives the process; one journal file is compared"

    version(leader.path, "9-1", b"z" * 1_000_000)
    hashed.clear()
    leader.step()
    assert 2_000_000 <= sum(hashed) < 2_100_000 and leader.check(tmp_path / "back").versions == ["7-1", "8-1", "9-1"]

    # A file of the same size and name with other bytes is another file.
    path = leader.path / "models/9-1/model.safetensors"
    path.unlink()
    path.write_bytes(b"w" * 1_000_000)
    leader.step(MANIFEST_SECONDS)
    leader.check(tmp_path / "back")
    assert (tmp_path / "back/models/9-1/model.safetensors").read_bytes() == b"w" * 1_000_000


def test_a_damaged_index_means_that_files_are_read_again(leader, tmp_path):
    version(leader.path, "7-1")
    age(leader.path)
    leader.step(0)
    index = leader.path / "roles/archive/index"
    good = index.read_bytes()
    for content in (b"", good[:-5], good.replace(b"7-1", b"7-2"), b"{}"):
        index.write_bytes(content)
        leader.begin()
        leader.step(MANIFEST_SECONDS)
        leader.check(tmp_path / "back")


def test_an_object_that_somebody_removed_is_sent_again(leader, tmp_path):
    version(leader.path, "7-1")
    age(leader.path)
    leader.step(0)
    for name in leader.store.sizes(OBJECTS):
        leader.store.remove([name])
        leader.step(MANIFEST_SECONDS)
        leader.check(tmp_path / "back")


class Struck(Store):
    """A store of which the process dies at call number `at`: before it, half way through it, or just behind it."""

    def __init__(self, url, at=-1, when="before"):
        super().__init__(url, timeout_seconds=1, sleep=lambda s: None)
        self.at, self.when, self.calls, self.dead = at, when, 0, False

    def _strike(self, act, half=lambda: None):
        if self.dead:
            raise Crash
        self.calls += 1
        struck = self.calls - 1 == self.at
        if struck and self.when == "half":
            half()
        self.dead = struck
        if struck and self.when != "behind":
            raise Crash
        out = act()
        if struck:
            raise Crash
        return out

    def put(self, name, data):
        def half():
            path = Path(self._path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".{path.name}.tmp").write_bytes(data[: len(data) // 2])

        self._strike(lambda: super(Struck, self).put(name, data), half)

    def remove(self, names):
        for name in names:
            self._strike(lambda name=name: super(Struck, self).remove([name]))

    def sizes(self, folder):
        return self._strike(lambda: super(Struck, self).sizes(folder))


def prepared(path):
    """A leader with a store that has two manifests, one older than a bootstrap, and a log that went on."""
    one = Leader(path / "log", f"file://{path}/store")
    one.step(0)
    one.commit(seal=True)
    one.step(BOOTSTRAP)
    one.commit(seal=True)
    version(one.path, "7-1")
    one.clock.advance(BOOTSTRAP + 1)
    return one


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_step_leaves_a_store_that_the_next_round_goes_on_with(tmp_path, stride):
    with closing(prepared(tmp_path / "x")) as one:
        counting = Struck(one.url)
        one.begin(counting)
        one.archive.step()
        assert one.changelog.first > 0
    base = tmp_path / "base"
    with closing(prepared(base)):
        pass
    draw = random.Random(0)
    at_each = [(at, draw.choice(["before", "half", "behind"])) for at in range(0, counting.calls, stride)]
    for at, when in at_each:
        folder = tmp_path / "again"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        # A writer of such a directory must tell the changelog; this one only reads it.
        place = (folder / "log/changelog").read_bytes()
        (folder / "log/changelog").unlink()
        log = LogWriter(folder / "log", rich_schema(), 150)
        with closing(log):
            (folder / "log/changelog").write_bytes(place)
            changelog = TwinChangelog(10 * log.state.seq)
            clock = ManualClock(1_700_000_000_000_000 + int(3 * BOOTSTRAP * 1e6))
            beat = Heartbeat(folder / "log", "archive")

            def begin(store, folder=folder, changelog=changelog, clock=clock, beat=beat):
                return Archive(folder / "log", store, changelog, manifest_seconds=MANIFEST_SECONDS, clock=clock, beat=beat,
                               bootstrap_seconds=BOOTSTRAP)

            struck = Struck(f"file://{folder}/store", at, when)
            with pytest.raises(Crash):
                begin(struck).step()
            # Now the newest manifest is right, and the changelog goes on from it.
            store = Store(f"file://{folder}/store", timeout_seconds=1)
            manifest = choose(store)
            restore(store, manifest, folder / "back")
            assert verify_log(folder / "back")[1] == []
            if manifest.seq == log.state.seq:
                assert committed(folder / "back") == committed(folder / "log")
            assert changelog.first <= manifest.changelog_offset

            # The next process ends where one that was never killed ends: no object is left over, none is missing.
            archive = begin(store)
            archive.step()
            clock.advance(BOOTSTRAP + 1)
            archive.step()
            assert not store.sizes(UPLOADS) and not store.sizes(REMOVALS)
            needed = {o for n in manifests.names(store) for o in object_names(manifests.read(store, n).files)}
            assert set(store.sizes(OBJECTS)) == needed, (at, when)
            assert len(manifests.names(store)) == len(store.sizes("manifests")) == 2
            assert choose(store).seq == log.state.seq


def rich_schema():
    from streamd.events import Schema

    return Schema(2, 3, 1)


@pytest.mark.parametrize(("mode", "stride"), [("full", 11), *(pytest.param(m, 1, marks=pytest.mark.slow) for m in ("kill", "torn", "full", "broken"))])
def test_a_disk_that_stops_or_is_full_while_a_snapshot_is_linked_costs_a_round_and_nothing_else(leader, tmp_path, mode, stride):
    version(leader.path, "7-1")
    age(leader.path)
    counting = FaultyDisk()
    leader.begin(disk=counting)
    leader.step(0)
    for at in range(0, counting.calls, stride):
        leader.commit(seal=at % 2 == 0)
        disk = FaultyDisk(at, mode)
        leader.begin(disk=disk)
        with contextlib.suppress(Crash):
            leader.step(MANIFEST_SECONDS)
        assert disk.struck or disk.calls <= at
        leader.check(tmp_path / "back")
        leader.begin()
        leader.step(MANIFEST_SECONDS)
        assert leader.check(tmp_path / "back").seq == leader.log.state.seq
        assert not (leader.path / "roles/archive/snapshot").exists()


def test_the_changelog_is_deleted_up_to_the_manifest_before_the_newest_once_no_bootstrap_needs_it(leader):
    leader.step(0)
    first = leader.log.state.seq
    leader.commit(seal=True)
    leader.step(BOOTSTRAP)
    assert leader.changelog.deletes == [10 * first]
    second = leader.log.state.seq
    leader.commit(seal=True)
    leader.step(40)
    assert leader.changelog.first == 10 * first, "who took the second manifest may still be reading its objects"
    leader.commit(seal=True)
    leader.begin()
    leader.step(BOOTSTRAP - 40)
    assert leader.changelog.first == 10 * second < 10 * leader.newest, "a new process knows when manifests were written"


def test_offsets_of_a_topic_that_was_made_anew_delete_nothing_of_the_new_one(leader):
    leader.changelog.end = 5000
    leader.position.write(ChangelogPosition(0, leader.log.state.seq, 5000))
    leader.step(0)
    # The topic made anew is claimed in a higher term, and its offsets begin at 0.
    leader.term, leader.changelog.first = 1, 0
    leader.commit(seal=True)
    leader.step(40)
    young = 10 * leader.newest
    leader.commit(seal=True)
    leader.changelog.end = 9000
    leader.step(BOOTSTRAP - 40)
    assert leader.newest == leader.log.state.seq and not leader.archive.error
    assert leader.changelog.deletes == [young], "who took the young manifest reads on from there"


def test_of_several_old_manifests_the_newest_says_where_the_changelog_begins(leader):
    offsets = []
    for _ in range(4):
        leader.commit(seal=True)
        leader.step(40)
        offsets.append(10 * leader.newest)
    leader.commit(seal=True)
    leader.step(BOOTSTRAP)
    assert leader.changelog.deletes == offsets[3:]


def test_the_objects_of_a_manifest_stay_as_long_as_a_bootstrap_takes(leader, tmp_path):
    version(leader.path, "0-1")
    leader.step(0)
    old = choose(leader.store)
    for i in range(4):
        (leader.path / f"models/{i}-1/model.safetensors").unlink()
        version(leader.path, f"{i + 1}-1", b"%d" % i)
        leader.commit(seal=True)
        leader.step(BOOTSTRAP / 5)
    assert old.name not in manifests.names(leader.store)
    restore(leader.store, old, tmp_path / "back")
    leader.commit(seal=True)
    leader.step(BOOTSTRAP)
    with pytest.raises(StoreError):
        restore(leader.store, old, tmp_path / "late")
    leader.check(tmp_path / "back")


def test_a_store_that_is_away_for_an_hour_costs_no_disk_deletes_nothing_and_gets_only_the_rest(leader, tmp_path):
    leader.step(0)
    first = leader.changelog.first
    leader.commit(seal=True)
    root = tmp_path / "store"
    root.rename(tmp_path / "gone")
    root.write_text("not a folder")
    with capture_logs() as logs:
        for _ in range(360):
            leader.step(10)
            assert not (leader.path / "roles/archive/snapshot").exists()
    beat = read_beat(leader.path, "archive")
    failing = beat.detail["failing"]["archive"]
    assert failing["error"] == beat.detail["error"] and abs(time.time() - failing["since"]) < 100
    assert not [line for line in logs if line["event"] == "archive_recovered"], "nothing went well in between"
    assert beat.state == "waiting" and "cannot be" in beat.detail["error"] and beat.detail["seq"] == 12
    assert leader.changelog.first == first and leader.changelog.deletes == []
    root.unlink()
    (tmp_path / "gone").rename(root)
    before = set(leader.store.sizes(OBJECTS))
    leader.step(60)
    leader.step(1)
    assert read_beat(leader.path, "archive").detail["failing"] == {}
    assert leader.check(tmp_path / "back").seq == leader.log.state.seq and before & set(leader.store.sizes(OBJECTS))


def test_failures_are_said_each_five_minutes_and_tried_again_after_growing_pauses(leader, monkeypatch):
    rounds = []

    def away(*_):
        rounds.append(1)
        raise StoreError(f"uploads/{len(rounds)} cannot be written to the store")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(archives, "upload", away)
        for _ in range(1200):
            leader.step(1)
    assert [line["error"][:9] for line in logs if line["event"] == "archive_failed"][:1] == ["uploads/1"]
    assert sum(line["event"] == "archive_failed" for line in logs) == 4 and 10 < len(rounds) < 30

    # The next failure after a round that went well is a new one.
    with capture_logs() as logs:
        leader.step(100)
        monkeypatch.setattr(archives, "upload", away)
        leader.commit(seal=True)
        leader.step(100)
    assert [line["event"] for line in logs if "archive" in line["event"]] == ["archive_recovered", "archive_failed"]


def test_a_broker_that_is_away_stops_no_manifest(leader):
    leader.changelog.away = True
    for _ in range(4):
        leader.commit(seal=True)
        leader.step(BOOTSTRAP)
        assert leader.newest == leader.log.state.seq
    leader.changelog.away = False
    leader.step(60)
    assert leader.changelog.first > 0, "what it could not delete then, it deletes now"


def test_a_manifest_of_a_higher_term_is_never_written_over(leader):
    leader.step(0)
    from msgspec.structs import replace

    other = replace(choose(leader.store), term=3)
    leader.store.put(other.name, manifests.KIND.encode(other))
    leader.commit(seal=True)
    leader.step()
    assert choose(leader.store).term == 3 and "another leader has written since" in leader.archive.error
    assert len(manifests.names(leader.store)) == 2


class MovingLead:
    """Whether the archive's machine leads; checked says how often it was asked for certain."""

    def __init__(self):
        self.here, self.checked, self.lost_at = True, 0, None

    def is_here(self):
        return self.here

    def check(self):
        self.checked += 1
        if self.lost_at is not None and self.checked >= self.lost_at:
            raise FencedError("Another member leads.")


@pytest.fixture
def moving(leader):
    leader.lead = MovingLead()
    leader.archive = Archive(leader.path, leader.store, leader.changelog, manifest_seconds=MANIFEST_SECONDS, clock=leader.clock,
                             beat=Heartbeat(leader.path, "archive"), bootstrap_seconds=BOOTSTRAP, lead=leader.lead)
    return leader


def test_a_standby_keeps_the_store_only_while_it_leads(moving):
    moving.lead.here = False
    for _ in range(5):
        moving.commit(seal=True)
        moving.step(MANIFEST_SECONDS)
    assert moving.newest == 0 and read_beat(moving.path, "archive").state == "following"
    moving.lead.here = True
    moving.step(0)
    assert moving.newest == moving.log.state.seq, "at once"
    moving.lead.here = False
    moving.step()
    stored = moving.newest
    moving.commit(seal=True)
    moving.step()
    assert moving.newest == stored


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_member_that_lost_the_lead_in_the_midst_of_a_round_goes_no_further(moving, at):
    """It is checked before the manifest, before old manifests go, and before records are deleted."""
    moving.step(0)
    for _ in range(3):
        moving.commit(seal=True)
        moving.step(BOOTSTRAP + 1)
    before, first, stored = moving.newest, moving.changelog.first, len(manifests.names(moving.store))
    moving.commit(seal=True)
    moving.lead.checked, moving.lead.lost_at = 0, at
    moving.step(BOOTSTRAP + 1)
    assert moving.archive.error == "Another member leads."
    assert (moving.newest == before) == (at == 1)
    assert len(manifests.names(moving.store)) == stored + (at == 2)
    assert moving.changelog.first == first, "no record was deleted"
    moving.lead.lost_at = None
    moving.step(BOOTSTRAP + 1)
    assert moving.newest == moving.log.state.seq and moving.changelog.first > first


def test_what_another_leader_stored_meanwhile_is_known_when_the_lead_comes_back(moving):
    moving.step(0)
    moving.lead.here = False
    moving.step()
    moving.commit(seal=True)
    upload(moving.path, moving.store)
    moving.clock.advance(BOOTSTRAP + 1)
    moving.lead.here = True
    moving.commit(seal=True)
    moving.step()
    assert moving.changelog.first == 0 or moving.changelog.first <= 10 * moving.newest
    assert moving.check(moving.path.parent / "back").seq == moving.log.state.seq


def test_a_leader_that_came_while_objects_were_sent_keeps_the_newest_manifest(leader):
    from msgspec.structs import replace

    upload(leader.path, leader.store)
    other = replace(choose(leader.store), term=1)

    class Slow(Store):
        def put(self, name, data):
            if name.startswith(OBJECTS):
                leader.store.put(other.name, manifests.KIND.encode(other))
            super().put(name, data)

    leader.commit(seal=True)
    with pytest.raises(StoreError, match="another leader has written since"):
        upload(leader.path, Slow(leader.url))
    assert choose(leader.store) == other


def test_a_place_in_the_changelog_that_cannot_be_read_makes_no_manifest(leader):
    leader.step(0)
    seq = leader.newest
    leader.commit(seal=True)
    (leader.path / "changelog").write_bytes(b"x" * 40)
    leader.step()
    assert leader.newest == seq and "is damaged" in leader.archive.error
    leader.acknowledge()
    leader.step(60)
    assert leader.newest == leader.log.state.seq


def test_a_place_ahead_of_what_readers_see_makes_no_manifest(leader):
    leader.position.write(ChangelogPosition(0, leader.log.state.seq + 1, 999))
    leader.step(0)
    assert leader.newest == 0
    leader.acknowledge()
    leader.step(60)
    assert choose(leader.store).changelog_offset == 10 * leader.log.state.seq


def test_a_compaction_leaves_store_and_changelog_at_once(leader, tmp_path):
    leader.step(0)
    leader.commit(seal=True)
    leader.step()
    old = {o for n in manifests.names(leader.store) for o in object_names(manifests.read(leader.store, n).files)}
    compact(leader.log)
    done = read_compacted(leader.path)
    assert done.seq == leader.log.state.seq and read_forgotten(leader.path) == 0
    leader.step(archives.SOON_SECONDS)
    assert leader.newest == done.seq and read_forgotten(leader.path) == 0, "the changelog has not acknowledged it"
    assert leader.archive.forgetting_waits() == "a manifest that is newer than the compaction"
    assert leader.changelog.first == 0, "who took a manifest lately reads on, until one lies behind the compaction"
    leader.acknowledge()
    leader.step(archives.SOON_SECONDS)
    assert read_forgotten(leader.path) == done.seq and leader.changelog.first == 10 * done.seq
    name, = manifests.names(leader.store)
    now = set(leader.store.sizes(OBJECTS))
    assert now == object_names(manifests.read(leader.store, name).files) and old - now
    keys = [p.read_bytes() for p in (tmp_path / "store/objects").rglob("*") if p.is_file()]
    assert not any(b"n:32" in data for data in keys), "a deleted key is in no object"
    leader.check(tmp_path / "back")


def test_a_compaction_waits_for_uploads_of_others_and_goes_on_after_them(leader):
    leader.step(0)
    compact(leader.log)
    leader.acknowledge()
    now = leader.clock.now_us() // 10**6
    leader.store.put(f"{UPLOADS}/{now}-other", b"1")
    leader.step(archives.SOON_SECONDS)
    leader.step(1)
    assert read_forgotten(leader.path) == 0
    assert leader.archive.forgetting_waits() == "1 uploads to the store are under way"
    leader.store.remove([f"{UPLOADS}/{now}-other"])
    leader.step(archives.SOON_SECONDS)
    assert read_forgotten(leader.path) == leader.log.state.seq and len(manifests.names(leader.store)) == 1


def test_a_compaction_waits_for_the_trainer_to_let_go_of_versions(leader):
    folder = leader.path / "models/7-1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"n:32 in memory")
    (folder / "manifest.json").write_text('{"name": "7-1"}')
    upload_version(folder, leader.store, {})
    leader.step(0)
    leader.step(BOOTSTRAP)
    assert len([o for o in leader.store.sizes(OBJECTS) if leader.store.get(o, 10**6) == b"n:32 in memory"]) == 1
    shutil.rmtree(folder)
    compact(leader.log)
    leader.acknowledge()
    leader.step(archives.SOON_SECONDS)
    assert "version 7-1" in leader.archive.forgetting_waits() and read_forgotten(leader.path) == 0
    leader.store.remove([object_of("7-1")])
    leader.step(archives.SOON_SECONDS)
    assert leader.archive.forgetting_waits() == "" and read_forgotten(leader.path) == leader.log.state.seq
    assert not [o for o in leader.store.sizes(OBJECTS) if leader.store.get(o, 10**6) == b"n:32 in memory"]


@pytest.mark.parametrize("stride", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_while_a_compaction_leaves_the_store_is_made_good(tmp_path, stride):
    with closing(Leader(tmp_path / "log", f"file://{tmp_path}/store")) as leader:
        for at in range(0, 60, stride):
            leader.commit(seal=True)
            leader.step(MANIFEST_SECONDS)
            compact(leader.log)
            leader.acknowledge()
            leader.begin(Struck(leader.url, at, "behind"))
            with contextlib.suppress(Crash):
                leader.step(archives.SOON_SECONDS)
            leader.begin()
            leader.step(archives.SOON_SECONDS)
            leader.step(archives.SOON_SECONDS)
            assert read_forgotten(leader.path) == leader.log.state.seq
            name, = manifests.names(leader.store)
            assert set(leader.store.sizes(OBJECTS)) == object_names(manifests.read(leader.store, name).files)
            assert leader.changelog.first == manifests.read(leader.store, name).changelog_offset


def test_a_compaction_that_was_done_before_a_crash_is_noted(tmp_path):
    compact_done(tmp_path, 7)
    assert read_compacted(tmp_path) is None, "there was no request"


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_removal_and_an_upload_that_begin_at_once_never_miss_each_other(leader, tmp_path, stride):
    """Whichever comes first at each call of the other, no manifest names what is gone."""
    leader.step(0)
    compact(leader.log)
    leader.acknowledge()

    class Interrupted(Store):
        """Runs something once, before call number `at`."""

        def __init__(self, url, at, act):
            super().__init__(url, timeout_seconds=5)
            self.left, self.act = at, act

        def before(self):
            self.left -= 1
            if self.left == -1:
                self.act()

        def put(self, name, data):
            self.before()
            super().put(name, data)

        def remove(self, names):
            for name in list(names):
                self.before()
                super().remove([name])

        def sizes(self, folder):
            self.before()
            return super().sizes(folder)

    # A removal begins at each step of an upload, and is through before the upload goes on.
    for at in range(0, 25, stride):
        leader.commit()
        upload(leader.path, Interrupted(leader.url, at, lambda: sweep_store(leader.store, 1)))
        leader.check(tmp_path / "back")
    # An upload begins at each step of a removal; it counts on objects that a killed one left, and no manifest names.
    class Killed(Store):
        def put(self, name, data):
            if name.startswith("manifests"):
                raise Crash
            super().put(name, data)

    def during():
        with contextlib.suppress(StoreError):
            upload(leader.path, Store(leader.url, sleep=lambda s: (_ for _ in ()).throw(StoreError("it waits"))))

    for at in range(0, 25, stride):
        leader.commit()
        with pytest.raises(Crash):
            upload(leader.path, Killed(leader.url))
        Sweep(Interrupted(leader.url, at, during), 1).remove()
        leader.check(tmp_path / "back")
