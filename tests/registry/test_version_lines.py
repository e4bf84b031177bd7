"""Versions as lines of the log: bytes that are missing without a line are lost, and said to be."""

import contextlib
import json
import random
import shutil
import threading
import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from streamd.errors import VersionError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.delivery import WAIT, Wait
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.layout import MOVES, VERSIONS
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema, empty_batch
from streamd.registry import Registry
from streamd.registry.manifest import memory_names
from streamd.registry.registry import find_damage, read_manifests
from streamd.settings.paths import Paths
from tests.builders import settings, stream, write_log
from tests.faults import Crash, FaultyDisk
from tests.registry.test_registry import candidate
from tests.server.world import wait


@pytest.fixture
def path(tmp_path):
    write_log(tmp_path, *stream(8))
    return tmp_path


def of(path, disk=outbox.DISK, keep=2, patience=WAIT, **values):
    chosen = settings(path, **values)
    return Registry(Paths.of(chosen, "serve"), keep, chosen.log, disk, patience)


def lines(path, file=VERSIONS):
    return [json.loads(line) for line in (path / file).read_bytes().splitlines()]


def check_agrees(registry):
    """The folders are those that the log has, with memory or without."""
    logged = registry.version_lines.versions()
    assert sorted(logged) == sorted(registry.names())
    for manifest in read_manifests(registry):
        there = [(registry.folder / manifest.name / name).exists() for name in memory_names(manifest)]
        assert set(there) == {logged[manifest.name].has_memory}
    assert not list(find_damage(registry))


def test_a_version_and_the_move_that_names_it_are_in_one_commit(path):
    registry = of(path)
    registry.publish(candidate(1))
    (line,) = lines(path)
    assert line["name"] == "11-1" and line["checksums"] == registry.manifest("11-1").checksums and line["edge"] == 1
    assert line["seq"] == lines(path, MOVES)[0]["seq"] and verify_log(path)[1] == []
    check_agrees(registry)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_promotion_and_the_removals_that_it_causes_are_one_commit(path, keep):
    registry = of(path, keep=keep)
    for n in range(1, 8):
        before = LogReader.open(path).state.seq
        registry.publish(replace(candidate(n), parent=f"{n + 9}-{n - 1}"))
        made = [line for line in lines(path) if line["seq"] == before + 1]
        assert LogReader.open(path).state.seq == before + 1 and made[0]["name"] == f"{n + 10}-{n}"
        # The first one stays, as the shadow.
        gone = [] if n < keep + 2 else [(f"{n + 10 - keep}-{n - keep}", "version")]
        assert [(line["name"], line["removed"]) for line in made[1:]] == gone, n
        check_agrees(registry)
    assert verify_log(path)[1] == []


def test_what_is_removed_has_a_line_and_what_is_lost_has_none(path):
    registry = of(path)
    for n in range(1, 6):
        registry.publish(replace(candidate(n), parent=f"{n + 9}-{n - 1}"))
    removed = {(line["name"], line["removed"]) for line in lines(path) if "removed" in line}
    assert ("12-2", "version") in removed and ("11-1", "version") not in removed, "the shadow stays"
    check_agrees(registry)
    shutil.rmtree(registry.folder / "15-5")
    assert list(find_damage(of(path))) == [("15-5", "its folder is missing, and the log has no removal of it")]
    with capture_logs() as logs:
        of(path).sweep()
    assert [one["version"] for one in logs if one["event"] == "version_lost"] == ["15-5"]

    # It is forgotten once it would have been removed anyway.
    for n in range(6, 10):
        of(path).publish(candidate(n))
    assert list(find_damage(of(path))) == []
    check_agrees(of(path))


@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_a_publication_stopped_at_any_system_call_loses_no_version_and_a_start_agrees_with_the_log(tmp_path, mode):
    def begun(path):
        write_log(path, *stream(8))
        for n in (1, 2, 3):
            of(path).publish(replace(candidate(n), parent=f"{n + 9}-{n - 1}"))
        return path

    trial = FaultyDisk()
    of(begun(tmp_path / "calls"), trial).publish(candidate(4))
    want = sorted(of(tmp_path / "calls").names())
    for at in range(trial.calls):
        path = begun(tmp_path / f"{at}")
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            of(path, disk).publish(candidate(4))
        disk.abandon(None)
        registry = of(path)
        registry.sweep()
        check_agrees(registry)
        registry.publish(candidate(4))
        check_agrees(registry)
        assert sorted(registry.names()) == want and registry.champion() == "14-4", f"{mode} at call {at}"
        made = [line["name"] for line in lines(path) if "removed" not in line]
        assert len(made) == len(set(made)), f"{mode} at call {at}"


def test_versions_of_an_older_release_get_their_lines_at_the_trainers_start(path):
    for n in (1, 2):
        of(path).publish(candidate(n))
    bare = path.parent / "older"
    write_log(bare, *stream(8))
    shutil.copytree(path / "models", bare / "models")
    (bare / "models/journal.jsonl").write_bytes(b"".join(move.line() for move in of(path).journal.moves()))
    registry = of(bare)
    assert registry.names() == ["11-1", "12-2"] and not list(find_damage(registry))
    registry.sweep()
    assert [line["name"] for line in lines(bare)] == ["11-1", "12-2"]
    check_agrees(registry)


def test_versions_that_went_while_other_machines_had_the_log_are_not_lost(path):
    for n in (1, 2):
        of(path).publish(candidate(n))
    (path / CHANGELOG).write_bytes(ChangelogPosition(1, 1, 1).pack())
    shared = of(path, keep=1, log__name="t")
    shared.rollback("operator", "worse")
    shared.publish(candidate(3))
    assert len(lines(path)) == 2 and "12-2" not in shared.names()
    (path / CHANGELOG).unlink()
    registry = of(path)
    with capture_logs() as logs:
        registry.sweep()
    assert not [one for one in logs if one["event"] == "version_lost"]
    check_agrees(registry)


@pytest.mark.usefixtures("ingest_asleep")
def test_trainer_server_and_command_move_and_prune_at_once_while_ingest_commits(path):
    """Each has objects of its own, as in its own process; ingest alone has the log open."""
    of(path).publish(candidate(1))
    log, stop, errors = LogWriter(path, Schema()), threading.Event(), []

    def trainer():
        registry = of(path, patience=Wait(60))
        for n in range(2, 12):
            registry.publish(replace(candidate(n), parent=registry.champion()))
            if n % 3 == 0:
                registry.prove(registry.champion(), "as good")
            # The lock is polled: let each operator have it.
            for who in ("operator 1", "operator 2"):
                wait(lambda who=who, n=n: n != 6 or any(move.who == who for move in registry.journal.moves()), 100)

    def operator(seed):
        rng, registry = random.Random(seed), of(path, patience=Wait(60))
        while not stop.is_set():
            with contextlib.suppress(VersionError):
                if rng.random() < 0.5:
                    registry.promote(rng.choice(registry.names()), f"operator {seed}", "")
                else:
                    registry.rollback(f"operator {seed}", "")
            time.sleep(0.01)

    def run(work, *args):
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    learning = threading.Thread(target=run, args=(trainer,))
    moving = [threading.Thread(target=run, args=(operator, seed)) for seed in (1, 2)]
    for thread in (learning, *moving):
        thread.start()
    n = 0
    while any(thread.is_alive() for thread in (learning, *moving)):
        if not learning.is_alive():
            stop.set()
        log.commit(empty_batch(Schema()), log.progress, log.watermark + (n := n + 1) % 2)
        time.sleep(0.001)
    log.close()
    assert not errors
    registry = of(path)
    check_agrees(registry)
    made = [line["name"] for line in lines(path) if "removed" not in line]
    assert made == [f"{n + 10}-{n}" for n in range(1, 12)], "each version has one line"
    moves = registry.journal.moves()
    # An operator may promote a version just before the trainer does.
    assert {move.champion for move in moves if move.action == "promote"} == set(made)
    assert {move.who for move in moves} == {"trainer", "operator 1", "operator 2"}
    ids = [move.request for move in moves if move.request]
    assert len(ids) == len(set(ids)) and outbox.is_empty(path) and verify_log(path)[1] == []
