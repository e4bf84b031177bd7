"""What fails in housekeeping ends neither the reading of events nor the rest of housekeeping, and is done once it can be."""

import dataclasses
import errno
import os
from contextlib import closing

import numpy as np
import pytest
from structlog.testing import capture_logs

from streamd.errors import DiskError
from streamd.eventlog.layout import FEATURES, KEYS
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep import retries
from streamd.eventlog.upkeep.holds import Hold, ask_to_compact, asked_to_compact, write_hold
from streamd.eventlog.upkeep.housekeeper import WORKS, Housekeeper
from streamd.eventlog.upkeep.retries import Retries
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.ingest.loop import IngestLoop
from streamd.schema import EdgeSet, NodeSet
from streamd.settings.loading import RetentionSettings
from streamd.storage import Disk
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import (
    SECOND,
    SETS,
    ManualClock,
    batch,
    declared,
    sets_rows,
    sets_stream,
    write_log,
    write_sets_log,
)
from tests.ingest.world import World

SEGMENT = 50
NUM_EVENTS = 220


class FullDisk(Disk):
    """A disk that is `full`: files can be made on it, and not written."""

    full = False

    def __init__(self):
        self._fds = set()

    def open(self, path, flags):
        new = self.full and flags & os.O_CREAT and not path.exists()
        fd = super().open(path, flags)
        (self._fds.add if new else self._fds.discard)(fd)
        return fd

    def write(self, fd, data, offset):
        if self.full and fd in self._fds:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, offset)


def metric(name, work):
    return metrics.INGEST.get_sample_value(f"streamd_housekeeping_{name}", {"work": work})


def failing():
    return {work for work in WORKS if metric("failing", work)}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0)


@pytest.fixture
def log(tmp_path):
    """Four full segments of three edge sets and a part of a fifth. User 3 is deleted, and that is to become physical."""
    src, dst, time, sets = sets_stream(NUM_EVENTS)
    write_sets_log(tmp_path, src, dst, time, sets, watermark=int(time[-1]), segment_edges=SEGMENT)
    with closing(LogWriter(tmp_path, SETS, SEGMENT, FullDisk())) as made:
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = 3, -1, -1
        made.commit(dataclasses.replace(empty_batch(SETS), deletions_X=rows), Progress(), made.watermark)
        ask_to_compact(tmp_path, made.num_edges)
        yield made


def commit_one(log):
    """A further event, a second later."""
    time = np.array([log.newest_us + SECOND])
    log.commit(dataclasses.replace(empty_batch(SETS), src_E=np.zeros(1, np.int64), dst_E=np.ones(1, np.int64), time_E=time,
                                   msg_ED=sets_rows(np.array([2]))), Progress(), int(time[0]))


def overwritten(path, at, data):
    """Put bytes into a file. Returns: what puts the old ones back."""
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(len(data))
        file.seek(at)
        file.write(data)
    return lambda: overwritten(path, at, old)


def strays(log):
    """Files and folders of segments that no line of the journal names."""
    named = {log.data_dir / s.path for s in log.state.segments}
    found = [*log.data_dir.glob("edges/default/*.tguf"), *log.data_dir.glob("edges/[0-9]*")]
    return [p for p in found if p not in named] + list(log.data_dir.rglob("*.replacement-*"))


def moved(path):
    away = path.with_name("away")
    path.rename(away)
    return lambda: away.rename(path)


def damaged_segment(log, number):
    return overwritten(log.data_dir / log.state.segments[number].path / "views.tguf", 0, bytes(16))


def full(log):
    log.files.disk.full = True
    return lambda: setattr(log.files.disk, "full", False)


def damaged_hold(log):
    write_hold(log.data_dir, "serve", Hold(log.num_edges, log.num_edges))
    return overwritten(log.data_dir / "roles/serve/hold", 0, b"?")


def refuse_letters(log):
    """Letters that cannot be purged, by the disk of the test's own purge."""
    log.files.disk.letters_fail = True
    return lambda: setattr(log.files.disk, "letters_fail", False)


HARMS = {
    "a damaged oldest segment": ("retention", lambda log: damaged_segment(log, 0)),
    "an oldest segment that is gone": ("retention", lambda log: moved(log.data_dir / log.state.segments[0].path)),
    "a damaged segment with a deleted row": ("compaction", lambda log: damaged_segment(log, 2)),
    "damaged keys": ("compaction", lambda log: overwritten(log.data_dir / KEYS, 0, b"\3")),
    "a full disk": ("compaction", full),
    "letters that cannot be written": ("compaction", refuse_letters),
    "a damaged hold": ("holds", damaged_hold),
    "a damaged request": ("holds", lambda log: overwritten(log.data_dir / "holds/compact", 0, b"?")),
    "features that are gone": ("pruning", lambda log: moved(log.data_dir / FEATURES)),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_fails_is_counted_and_done_once_it_can_be_while_the_rest_and_the_events_go_on(log, harm):
    work, damage = HARMS[harm]

    def purge(keys):
        yield
        if getattr(log.files.disk, "letters_fail", False):
            raise DiskError("no room")

    mend = damage(log)
    cutoff = log.newest_us - 3600 * SECOND
    house = Housekeeper(log, RetentionSettings(max_age_seconds=3600), purge)
    before, events = metric("errors_total", work), log.num_edges
    with capture_logs() as said:
        for _ in range(6):
            house.step()
            commit_one(log)
    assert metric("errors_total", work) >= before + 3 and work in failing() and not log.files.in_doubt
    assert [x["work"] for x in said if x["event"] == "housekeeping_failed"].count(work) == 1, "not once a second"
    assert log.num_edges == events + 6 and not strays(log), "what fails takes no room"

    mend()
    for _ in range(60):
        house.step()
    assert not failing() and asked_to_compact(log.data_dir) is None and verify_log(log.data_dir)[1] == []
    reader = LogReader.open(log.data_dir)
    src, dst, time = reader.edges(reader.first_edge, reader.num_edges)
    assert 3 not in src.tolist() + dst.tolist() and reader.keys[3] is None
    assert reader.first_edge and time[log.state.segments[0].num_edges - 1] >= cutoff


@pytest.mark.parametrize("harm", ["a damaged oldest segment", "a full disk"])
def test_while_one_part_fails_the_others_are_done(log, harm):
    HARMS[harm][1](log)
    house = Housekeeper(log, RetentionSettings(max_bytes=1), lambda _: ())
    for _ in range(20):
        house.step()
    assert log.state.first_edge == 4 * SEGMENT, "a damaged segment can be dropped"


def test_a_full_disk_ends_no_compaction_of_a_log_of_one_set(tmp_path):
    """Its copies are files that get their names later, and its next segment is allocated whole."""
    src, dst, time, _ = sets_stream(90)
    write_log(tmp_path, src, dst, time, segment_edges=40)
    with closing(LogWriter(tmp_path, Schema(), 40, FullDisk())) as log:
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = src[85], -1, -1
        log.commit(dataclasses.replace(empty_batch(Schema()), deletions_X=rows), Progress(), log.watermark)
        ask_to_compact(tmp_path, 90)
        house = Housekeeper(log, RetentionSettings(), lambda _: ())
        for room in (False, True):
            log.files.disk.full = not room
            for _ in range(9):
                house.step()
            assert failing() == (set() if room else {"compaction"}) and not strays(log) and not log.files.in_doubt
        assert asked_to_compact(tmp_path) is None and verify_log(tmp_path)[1] == []


def test_an_error_that_leaves_the_log_in_doubt_ends_it(log, monkeypatch):
    house = Housekeeper(log, RetentionSettings(max_bytes=1), lambda _: ())

    def sync(fd):
        raise OSError(errno.EIO, "Input/output error")

    (log.data_dir / "holds/compact").unlink()
    with monkeypatch.context() as broken, pytest.raises(DiskError):
        broken.setattr(log.files.disk, "sync", sync)
        house.step()
    assert log.files.in_doubt


def test_segments_of_several_sets_are_dropped_by_age_as_those_of_one(tmp_path):
    src, dst, time, sets = sets_stream(NUM_EVENTS)
    write_sets_log(tmp_path, src, dst, time, sets, watermark=int(time[-1]), segment_edges=SEGMENT)
    with closing(LogWriter(tmp_path, SETS, SEGMENT)) as log:
        for age_s in (10**6, 3 * 3600, 3600):
            Housekeeper(log, RetentionSettings(max_age_seconds=age_s), lambda _: ()).step()
            old = [end for end in range(SEGMENT, NUM_EVENTS, SEGMENT) if time[end - 1] < time[-1] - age_s * SECOND]
            assert log.state.first_edge == max(old, default=0) and not failing(), age_s
        assert len(old) > 1


def test_segments_from_before_a_further_set_was_declared_are_dropped_by_age_too(tmp_path):
    one = Schema.declared((NodeSet("default"),), (EdgeSet("default", "default", "default"),))
    two = Schema.declared((NodeSet("default"),), (EdgeSet("default", "default", "default"), EdgeSet("likes", "default", "default")))
    for schema, first in ((one, 0), (two, 10)):
        with closing(LogWriter(tmp_path, schema, 5)) as log:
            for i in range(first, first + 10):
                event = batch(schema, np.array([0]), np.array([1]), np.array([i * SECOND]), () if i else ("a", "b"))
                if schema is two:
                    event = dataclasses.replace(event, msg_ED=schema.edge_rows(i % 2, np.zeros((1, 0), np.float32)))
                log.commit(event, Progress(), i * SECOND)
            Housekeeper(log, RetentionSettings(max_age_seconds=5 + first // 2), lambda _: ()).step()
            assert log.state.first_edge == {0: 0, 10: 5}[first] and not failing()


def test_ingest_reads_on_beside_a_segment_that_retention_cannot_read(tmp_path):
    world = World(tmp_path, segment_edges=10, **{name.replace(".", "__"): value for name, value in declared().items()})
    house = Housekeeper(world.writer, RetentionSettings(max_age_seconds=5), world.letters.purge)
    world.loop = IngestLoop(world.settings, world.writer, world.letters, world.clock, Heartbeat(tmp_path, "ingest"), house.step)
    world.loop.begin(world.source)
    for number in range(30):
        world.send(0, {"edge_set": "follows", "src": number, "dst": 0, "time": world.clock.now_us()})
        world.run(1)
        if number == 10:
            damaged = overwritten(tmp_path / world.writer.state.segments[0].path / "follows.tguf", 0, bytes(16))
    assert world.writer.num_edges == 30 and failing() == {"retention"} and world.writer.state.first_edge == 0
    damaged()
    world.run(2).stop()
    assert not failing() and world.writer.state.first_edge == 20


def test_pauses_grow_to_a_minute_and_what_is_not_through_counts_as_failing(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 1)
    clock, tried, left = ManualClock(), [], [9]
    noted = []
    keeper = Retries(WORKS, lambda: False, clock.monotonic, lambda *failure: noted.append(failure))

    def work():
        tried.append(clock.monotonic())
        left[0] -= 1
        if left[0] > 0:
            raise OSError("away")
        return left[0] < -1

    while clock.monotonic() < 300:
        keeper.run("retention", work)
        clock.advance(1)
        if left[0] in (0, -1):
            assert failing() == {"retention"}
    assert np.diff(tried)[:8].tolist() == [1, 2, 4, 8, 16, 32, 60, 60] and not failing()
    assert noted == [("retention", "away")] * 8 + [("retention", "")]


@pytest.mark.parametrize("work, most", [("retention", {"max_bytes": 1}), ("compaction", {})])
def test_what_could_not_be_unlinked_counts_as_failing_until_it_is(log, monkeypatch, work, most):
    house = Housekeeper(log, RetentionSettings(**most), lambda _: ())
    if work == "retention":
        (log.data_dir / "holds/compact").unlink()

    def remove(folder):
        if folder.exists():
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(log.files.disk, "remove_folder", remove)
        for _ in range(9):
            house.step()
            commit_one(log)
        assert work in failing() and strays(log) and not log.files.in_doubt
        assert work == "retention" or asked_to_compact(log.data_dir) is not None, "what was deleted is still there"
    for _ in range(60):
        house.step()
    assert not failing() and not strays(log) and asked_to_compact(log.data_dir) is None
    assert verify_log(log.data_dir)[1] == []
