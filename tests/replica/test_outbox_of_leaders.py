"""Learned lines of a log on several machines: followers have them byte for byte, and what a deposed leader left in its outbox is judged again."""

import json

import pytest
from structlog.testing import capture_logs

from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.layout import LEARNED, MOVES, WINDOWS
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.replica.follower.bootstrap import bootstrap, newest_manifest
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.eventlog.test_outbox import edges, numbers
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference
from tests.replica.twin import Topic


def leader(path, topic, disk=outbox.DISK):
    """Ingest of a machine that has won a term."""
    line = topic.line()
    publisher = lead(path, line.producer(), line.reader(), disk, member=path.name)
    return LogWriter(path, Schema(), 8, disk, publisher=publisher)


def acknowledge(log):
    while log.show_acknowledged() < log.seq or not outbox.is_empty(log.data_dir):
        log.commits.wait()


def follow(path, topic):
    reader = topic.reader()
    follower = Follower(path, reader)
    while reader.position < reader.bounds()[1]:
        follower.step(0)
    follower.close()


def put(path, n, file=MOVES):
    outbox.put(path, [(file, b'{"n":%d}' % n)])


@pytest.mark.parametrize("has_moved", [True, False])
def test_a_deposed_machine_that_leads_again_takes_what_it_left_only_if_it_still_follows(tmp_path, has_moved):
    topic, a, b = Topic(), tmp_path / "a", tmp_path / "b"
    log = leader(a, topic)
    put(a, 0)
    acknowledge(log)
    put(a, 1)
    # It is killed before it takes the batch; another machine leads, and the trainer there moves the champion or does not yet.
    log.files.close()
    log = leader(b, topic)
    assert numbers(b) == [0]
    if has_moved:
        put(b, 2)
        acknowledge(log)
    log.close()

    log = leader(a, topic)
    with capture_logs() as logs:
        acknowledge(log)
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["outbox_outdated"] * has_moved
    assert numbers(a) == ([0, 2] if has_moved else [0, 1]) and (a / outbox.OUTDATED).exists() == has_moved
    put(a, 3, WINDOWS)
    acknowledge(log)
    log.close()
    follow(b, topic)
    assert numbers(b) == numbers(a) and numbers(b, WINDOWS) == [3] and not difference(a, b)
    for path in (a, b):
        assert verify_log(path)[1] == []


def test_lines_that_only_a_deposed_leader_has_are_truncated_like_its_rows(tmp_path):
    topic, a, b = Topic(), tmp_path / "a", tmp_path / "b"
    log = leader(a, topic)
    put(a, 0)
    acknowledge(log)
    line = log.commits._publisher._producer.topic
    # The commit with the move is durable here, and never reaches the broker.
    line.hold, line.patience = True, 10**9
    put(a, 1)
    log.show_acknowledged()
    assert log.seq == 2 and published_seq(a) == 1 and not outbox.is_empty(a) and numbers(a) == [0]
    log.files.close()
    line.lose()
    log = leader(b, topic)
    put(b, 2)
    acknowledge(log)
    log.close()
    log = leader(a, topic)
    acknowledge(log)
    log.close()
    assert numbers(a) == numbers(b) == [0, 2] and (a / outbox.OUTDATED).exists()
    assert [json.loads(line)["seq"] for line in (a / MOVES).read_bytes().splitlines()] == [1, 2] and verify_log(a)[1] == []


@pytest.mark.parametrize("mode", ["kill", "power"])
def test_a_leader_stopped_at_any_system_call_takes_each_line_once(tmp_path, mode):
    def begun(folder):
        topic = Topic()
        log = leader(folder / "a", topic)
        log.commit(edges(0), log.progress, 1)
        put(folder / "a", 0)
        acknowledge(log)
        log.close()
        put(folder / "a", 1)
        return topic

    opened = []

    def live(folder, topic, disk):
        opened[:] = [None]
        opened[0] = log = leader(folder / "a", topic, disk)
        acknowledge(log)
        log.close()

    trial = FaultyDisk()
    live(tmp_path / "calls", begun(tmp_path / "calls"), trial)
    for at in range(trial.calls):
        folder = tmp_path / f"{at}"
        topic = begun(folder)
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            live(folder, topic, disk)
        disk.abandon(opened[0])
        live(folder, topic, outbox.DISK)
        follow(folder / "b", topic)
        assert numbers(folder / "a") == numbers(folder / "b") == [0, 1], f"{mode} at call {at}"
        assert not difference(folder / "a", folder / "b") and verify_log(folder / "b")[1] == []
        assert all((folder / "a" / path).read_bytes() == (folder / "b" / path).read_bytes() for path in LEARNED)


def test_a_standby_that_has_learned_and_takes_a_manifest_keeps_its_own_files_and_gets_the_lines_of_the_log(tmp_path):
    topic, a, b = Topic(10**6), tmp_path / "a", tmp_path / "b"
    log = leader(a, topic)
    put(a, 0)
    acknowledge(log)
    follow(b, topic)
    # It led, learned, and was deposed with a batch on its way.
    for path in ("models/11-1/manifest.json", "models/journal.jsonl", "train/checkpoints/1/state", "train/windows.jsonl"):
        (b / path).parent.mkdir(parents=True, exist_ok=True)
        (b / path).write_bytes(path.encode())
    put(b, 7)
    for n in (1, 2):
        put(a, n)
        acknowledge(log)
    upload(a, store := Store(f"file://{tmp_path}/store"))
    put(a, 3)
    acknowledge(log)
    log.close()
    topic.delete_before(topic.end - 1)

    bootstrap(store, newest_manifest(store), b)
    assert numbers(b) == [0, 1, 2]
    follow(b, topic)
    assert numbers(b) == [0, 1, 2, 3] and not difference(a, b) and verify_log(b)[1] == []
    log = leader(b, topic)
    acknowledge(log)
    log.close()
    assert numbers(b) == [0, 1, 2, 3] and (b / outbox.OUTDATED).exists()
    for path in ("models/11-1/manifest.json", "models/journal.jsonl", "train/checkpoints/1/state", "train/windows.jsonl"):
        assert (b / path).read_bytes() == path.encode()
