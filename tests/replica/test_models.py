"""The trainer's registry and a replica's, over a topic in memory and a store in a folder."""

import contextlib
import dataclasses
import json
import shutil
import time

import msgspec
import pytest

from streamd.errors import KafkaError, StoreError
from streamd.eventlog.upkeep.holds import (
    Hold,
    asked_to_compact,
    compact_done,
    read_holds,
    write_hold,
)
from streamd.registry.journal import Move
from streamd.registry.outcome import outcome_of
from streamd.replica.members import member_name
from streamd.replica.models import records
from streamd.replica.models.publisher import ModelsPublisher
from streamd.replica.models.state import ModelsState
from streamd.store.objects import Store
from streamd.store.sweep import sweep_store
from streamd.store.versions import FOLDER, stored_versions
from streamd.windows.history import HistoryReader, append_record
from tests.replica.models_world import (
    Killed,
    MemoryTopic,
    ReplicaSide,
    TrainerSide,
    candidate,
    content,
    logged_windows,
    window,
)


@pytest.fixture
def trainer(tmp_path, log, url):
    return TrainerSide(tmp_path / "trainer", log, url)


@pytest.fixture
def replica(tmp_path, log, url):
    return ReplicaSide(tmp_path / "replica", log, url)


@contextlib.contextmanager
def store_away(tmp_path):
    """In the place of the store's folder is a file meanwhile."""
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    try:
        yield
    finally:
        (tmp_path / "store").unlink()
        (tmp_path / "away").rename(tmp_path / "store")


def kinds(log):
    return [json.loads(v)["record"]["type"] for v in log.values]


def request(id="a" * 32, action="promote", version="", event=0, at=1_000_000.0, **more):
    return records.Request(**{"term": 0, "id": id, "action": action, "who": "api", "why": "try", "member": "m-1", "at": at,
                              "version": version, "event": event, **more})


def test_a_replica_has_what_the_trainer_has_byte_for_byte(trainer, replica):
    for n in range(1, 8):
        trainer.learn(n)
        trainer.settle()
        replica.step()
        assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
    assert replica.registry.champion() == "17-7" and len(replica.registry.names()) == 4
    assert replica.registry.load("17-7").manifest.edge == 7


def test_a_replica_that_comes_late_fetches_only_what_is_kept(trainer, replica, tmp_path):
    for n in range(1, 8):
        trainer.learn(n)
        trainer.settle()
    before = len(list((tmp_path / "store/objects").rglob("*")))
    sweep_store(Store(trainer.url), 1)
    assert len(list((tmp_path / "store/objects").rglob("*"))) < before
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)


def test_files_that_versions_share_are_sent_and_fetched_once(trainer, replica, tmp_path):
    for n in (1, 2):
        trainer.learn(n)
        trainer.settle()
        replica.step()
    rows = [replica.registry.folder / name / "memory-001.safetensors" for name in ("11-1", "12-2")]
    assert rows[0].samefile(rows[1])
    objects = [p for p in (tmp_path / "store/objects").rglob("*") if p.is_file()]
    assert sum(p.read_bytes() == rows[0].read_bytes() for p in objects) == 1


@pytest.mark.parametrize("step", ["upload", "checkpoint", "mark", "checkpointed", "version", "move", "window", "kept", "sweep"])
def test_a_trainer_killed_at_any_step_sends_nothing_twice_and_loses_nothing(step, trainer, replica, log):
    for n in (1, 2, 3):
        trainer.learn(n)
        trainer.settle()
    for n in (4, 5):
        trainer.learn(n)
    left = [step]

    def die(name):
        if left and name == left[0]:
            left.clear()
            raise Killed

    trainer.start(die)
    with pytest.raises(Killed):
        trainer.settle()
    trainer.start()
    trainer.settle()
    trainer.settle()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
    moves = [json.loads(v)["record"]["line"] for v in log.values if json.loads(v)["record"]["type"] == "move"]
    assert len(moves) == len(set(moves)) == 5 and kinds(log).count("window") == 0 and kinds(log).count("version") == 5
    assert [one["end_edge"] for one in logged_windows(replica.settings.data_dir)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", ["download", "downloaded", "move", "prune"])
def test_a_replica_killed_at_any_step_goes_on(step, trainer, replica):
    for n in (1, 2):
        trainer.learn(n)
        trainer.settle()
    replica.step()
    for n in (3, 4, 5):
        trainer.learn(n)
        trainer.settle()

    def die(name):
        if name == step:
            raise Killed

    replica.start(die)
    with pytest.raises(Killed):
        replica.step()
    # Whoever is champion can be loaded.
    assert replica.registry.load(replica.registry.champion())
    replica.start()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
    assert not list(replica.registry.folder.glob(".*.tmp"))


def test_an_append_of_unknown_outcome_counts_once(trainer, replica, log):
    trainer.learn(1)
    for n, fault in enumerate(("lose_next", "keep_but_fail_next"), start=2):
        setattr(log, fault, True)
        with pytest.raises(KafkaError):
            trainer.settle()
        trainer.settle()
        trainer.learn(n)
    trainer.settle()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
    assert kinds(log).count("version") == 3


def test_a_record_that_arrives_late_a_second_time_changes_nothing(trainer, replica, log):
    for n in (1, 2, 3, 4, 5):
        trainer.learn(n)
        trainer.settle()
    log.values += list(log.values[:7])
    replica.step()
    trainer.settle()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
    assert replica.follower.state.num_skipped >= 7


def test_while_kafka_is_away_the_registry_is_the_queue(trainer, replica, log):
    log.is_away = True
    for n in range(1, 7):
        trainer.learn(n)
        with pytest.raises(KafkaError):
            trainer.settle()
    log.is_away = False
    trainer.settle()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
    assert len(replica.registry.journal.moves()) == 6


def test_while_the_store_is_away_no_move_names_a_version_that_nobody_can_fetch(trainer, replica, log, tmp_path):
    trainer.learn(1)
    trainer.settle()
    replica.step()
    store = tmp_path / "store"
    store.rename(tmp_path / "away")
    store.write_text("no folder")
    trainer.learn(2)
    with pytest.raises(StoreError):
        trainer.settle()
    replica.step()
    assert replica.registry.champion() == "11-1"
    store.unlink()
    (tmp_path / "away").rename(store)
    trainer.settle()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)


def test_a_sweep_by_a_clock_hours_ahead_lets_no_record_name_what_is_gone(trainer, replica, log, monkeypatch):
    trainer.learn(1)
    swept = []

    class Swept(Store):
        def put(self, name, data):
            # The other machine takes the mark of this upload for that of a killed one.
            if name.startswith(FOLDER) and not swept:
                swept.append(sweep_store(Store(trainer.url), 1, time.time() + 7200))
            super().put(name, data)

    with monkeypatch.context() as patch:
        patch.setattr("tests.replica.models_world.Store", Swept)
        trainer.start()
    with pytest.raises(StoreError, match=r"has nothing for objects/.*, a part of .*safetensors"):
        trainer.settle()
    assert swept[0][1] > 0 and "version" not in kinds(log)

    # The next step sends what is gone again.
    trainer.settle()
    replica.step()
    assert "version" in kinds(log) and content(replica.settings.data_dir) == content(trainer.settings.data_dir)


def test_a_version_is_not_champion_on_a_replica_before_it_is_whole(trainer, replica, tmp_path):
    trainer.learn(1)
    trainer.settle()
    replica.step()
    trainer.learn(2)
    trainer.settle()
    version = stored_versions(Store(trainer.url))["12-2"]
    weights = tmp_path / "store" / next(f for f in version.files if f.path == "model.safetensors").pieces[0].object
    good = weights.read_bytes()
    for bad in (b"x" * len(good), good[:-1], None):
        weights.unlink() if bad is None else weights.write_bytes(bad)
        with pytest.raises(StoreError):
            replica.step()
        assert replica.registry.champion() == "11-1" and replica.registry.names() == ["11-1"]
    weights.write_bytes(good)
    replica.step()
    assert replica.registry.champion() == "12-2"


def test_an_older_version_that_the_store_lost_keeps_nobody_waiting(trainer, replica, tmp_path):
    for n in (1, 2, 3):
        trainer.learn(n)
        trainer.settle()
    trainer.registry.prove("13-3", "good")
    trainer.settle()
    version = stored_versions(Store(trainer.url))["11-1"]
    (tmp_path / "store" / version.files[0].pieces[0].object).unlink()
    with pytest.raises(StoreError):
        replica.step()
    assert replica.registry.champion() == "13-3" and len(replica.registry.journal.moves()) == 4


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_a_request_is_done_once_by_the_trainer_and_seen_by_all(action, trainer, replica, log):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    asking = MemoryTopic(log)
    asked = records.encode(request(action=action, version="11-1" if action == "promote" else ""))
    asking.append(asked)
    asking.append(asked)
    trainer.settle()
    trainer.start()
    trainer.settle()
    replica.step()
    moves = replica.registry.journal.moves()
    assert [m.request for m in moves if m.request] == ["a" * 32]
    assert (moves[-1].champion, moves[-1].action, moves[-1].who, moves[-1].why) == ("11-1", action, "api@m-1", "try")
    assert trainer.registry.moved_by_hand() == "11-1"


def test_a_request_that_was_done_before_a_kill_is_not_done_again(trainer, replica, log):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    MemoryTopic(log).append(records.encode(request(version="11-1")))

    def die(name):
        if name == "move":
            raise Killed

    trainer.start(die)
    with pytest.raises(Killed):
        trainer.settle()
    trainer.registry.promote("12-2", "operator", "back")
    trainer.start()
    trainer.settle()
    assert trainer.registry.champion() == "12-2" and trainer.publisher.state.champion == "12-2"
    assert sum(m.request == "a" * 32 for m in trainer.publisher.state.moves) == 1


@pytest.mark.parametrize(("asked", "reason"), [
    (request(version="99-9"), "no version"), (request(version="11-1", at=1.0), "more than an hour old"),
    (request(action="rollback"), "no version to roll back to")])
def test_a_request_that_cannot_be_done_is_refused_with_the_reason(asked, reason, trainer, replica, log):
    trainer.learn(1)
    MemoryTopic(log).append(records.encode(asked))
    trainer.settle()
    trainer.settle()
    replica.step()
    assert kinds(log).count("refused") == 1 and reason in replica.follower.state.refused["a" * 32]
    assert not trainer.publisher.state.open
    for side in (trainer, replica):
        assert reason in outcome_of(side.registry, "a" * 32).reason, "callers of both machines are told"


def test_a_replica_asks_for_the_present_champion_and_gets_a_move(trainer, log):
    trainer.learn(1)
    trainer.settle()
    MemoryTopic(log).append(records.encode(request(version="11-1")))
    trainer.settle()
    assert trainer.publisher.state.moves[-1].request == "a" * 32


def test_windows_learned_again_take_the_place_of_those_before(trainer, replica):
    for n in (1, 2, 3):
        trainer.learn(n)
    trainer.settle()
    replica.step()
    history = trainer.settings.data_dir / "train/windows.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    again = dataclasses.replace(window(4), first_edge=1)
    history.write_bytes(lines[0] + again.line())
    trainer.checkpoint(4)
    trainer.settle()
    replica.step()
    assert HistoryReader(replica.settings.data_dir).refresh()[-1] == again and content(replica.settings.data_dir) == content(trainer.settings.data_dir)


@pytest.mark.parametrize("dies_at", ["", "window"])
def test_a_replica_reads_the_windows_of_a_leader_of_the_release_before_until_the_log_has_them(dies_at, trainer, replica, monkeypatch):
    def send(publisher):
        """As the release before did it."""
        lines = publisher._history.read_text().splitlines()
        publisher._topic.append([
            lambda number, index=index, line=line: records.Scored(term=publisher.state.term, number=number, index=index, line=line)
            for index, line in enumerate(lines) if publisher.state.windows[index: index + 1] != [line]])
        return True

    def step():
        """A step, after one that is killed."""
        def die(name):
            if name == dies_at:
                raise Killed

        replica.start(die)
        with contextlib.suppress(Killed):
            replica.step()
        replica.start()
        replica.step()
        assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)

    history = replica.settings.data_dir / "train/windows.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(ModelsPublisher, "_send_windows", send)
        for n in (1, 2):
            trainer.learn(n)
            trainer.settle()
            step()
            assert len(history.read_bytes().splitlines()) == n and not logged_windows(replica.settings.data_dir)
    # The leader is upgraded, too.
    trainer.start()
    trainer.learn(3)
    trainer.settle()
    step()
    assert not history.exists() and len(logged_windows(replica.settings.data_dir)) == 3


def test_nothing_of_a_window_is_told_before_its_checkpoint_is_stored(trainer, replica, log, tmp_path):
    trainer.learn(1)
    trainer.settle()

    # The trainer is amid window 2: version and move are there, and the window's record.
    trainer.registry.publish(candidate(2, "11-1"))
    append_record(trainer.settings.data_dir, window(2))
    trainer.publisher.step()
    replica.step()
    assert kinds(log).count("version") == kinds(log).count("move") == len(logged_windows(log.leader)) == 1
    assert replica.registry.champion() == "11-1"

    # Its checkpoint cannot be stored.
    trainer.checkpoint(2)
    with store_away(tmp_path):
        with pytest.raises(StoreError):
            trainer.settle()
        replica.step()
        assert kinds(log).count("move") == len(logged_windows(log.leader)) == 1 and replica.registry.champion() == "11-1"
    trainer.settle()
    replica.step()
    assert replica.registry.champion() == "12-2" and len(logged_windows(replica.settings.data_dir)) == 2
    order = [k for k in kinds(log) if k in ("checkpointed", "version", "move", "window")]
    assert order == ["checkpointed", "version", "move"] * 2


def test_a_move_by_hand_does_not_wait_for_a_checkpoint(trainer, tmp_path):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    with store_away(tmp_path):
        trainer.registry.promote("11-1", "operator", "the newer one is odd")
        trainer.publisher.step()
        assert trainer.publisher.state.champion == "11-1"


def test_a_server_beside_the_trainer_goes_by_what_the_topic_has(trainer, replica, log, tmp_path):
    trainer.learn(1)
    assert trainer.registry.shown() is None, "its checkpoint is not stored: the rule answers"
    trainer.settle()
    assert trainer.registry.shown().champion == "11-1"
    with store_away(tmp_path):
        for n in range(2, 8):
            trainer.learn(n)
            with pytest.raises(StoreError):
                trainer.step()
        assert trainer.registry.champion() == "17-7" and trainer.registry.shown().champion == "11-1"
        assert trainer.registry.load("11-1").memory, "what serves keeps its memory however many versions come"
        trainer.start()
        assert trainer.registry.shown().champion == "11-1", "also where the trainer was restarted"
    trainer.settle()
    replica.step()
    assert trainer.registry.shown() == replica.registry.shown() == trainer.registry.journal.last()


def test_a_rollback_while_the_store_is_away_passes_over_what_only_the_trainer_knows(trainer, replica, log, tmp_path):
    for n in (1, 2):
        trainer.learn(n)
        trainer.settle()
    trainer.registry.prove("11-1", "it is the older one")
    trainer.settle()
    replica.step()
    with store_away(tmp_path):
        trainer.learn(3)
        with pytest.raises(StoreError):
            trainer.step()
        trainer.registry.rollback("operator", "it is worse")
        with pytest.raises(StoreError):
            trainer.step()
        replica.step()
        assert trainer.registry.shown() == replica.registry.shown() == trainer.registry.journal.last()
        assert replica.registry.shown().champion == "11-1"
    trainer.learn(4)
    trainer.settle()
    replica.step()
    assert replica.registry.shown().champion == "14-4"
    assert "13-3" not in [move.champion for move in replica.registry.journal.moves()]
    elsewhere = TrainerSide(tmp_path / "elsewhere", log, trainer.url)
    assert elsewhere.registry.champion() == "14-4" and elsewhere.edge == 4


def test_a_takeover_behind_a_move_by_hand_goes_on_from_it(trainer, log, tmp_path):
    """The newest checkpoint is older than the move, which passed over others."""
    for n in (1, 2):
        trainer.learn(n)
        trainer.settle()
    with store_away(tmp_path):
        trainer.learn(3)
        trainer.registry.promote("11-1", "operator", "by hand")
        with pytest.raises(StoreError):
            trainer.step()
    elsewhere = TrainerSide(tmp_path / "elsewhere", log, trainer.url)
    assert elsewhere.registry.champion() == "11-1" and elsewhere.edge == 2
    elsewhere.learn(3)
    assert elsewhere.registry.shown().champion == "11-1"
    elsewhere.settle()
    assert elsewhere.registry.shown().champion == "13-3"


def test_a_topic_that_was_made_anew_gets_all_again(trainer, replica, log):
    for n in (1, 2, 3):
        trainer.learn(n)
    trainer.settle()
    log.values.clear()
    trainer.publish()
    for _ in range(2):
        trainer.settle()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir) and kinds(log)[0] == "claimed"


def test_a_trainer_restored_from_a_backup_goes_on_from_the_newest_checkpoint(trainer, replica, log, tmp_path):
    trainer.learn(1)
    trainer.settle()
    shutil.copytree(trainer.settings.data_dir, tmp_path / "backup")
    for n in (2, 3):
        trainer.learn(n)
        trainer.settle()
    replica.step()
    restored = TrainerSide(tmp_path / "backup", log, trainer.url)
    assert restored.edge == 3 and content(restored.settings.data_dir) == content(replica.settings.data_dir)
    restored.learn(4)
    restored.settle()
    replica.step()
    assert content(restored.settings.data_dir) == content(replica.settings.data_dir)


def test_a_trainer_restored_where_no_checkpoint_was_stored_takes_the_replicas_with_it(trainer, replica, log, tmp_path):
    trainer.learn(1)
    trainer.settle()
    shutil.copytree(trainer.settings.data_dir, tmp_path / "backup")
    for n in (2, 3):
        trainer.learn(n)
        trainer.settle()
    # As an older release left the topic.
    log.values = [v for v, kind in zip(log.values, kinds(log), strict=True) if kind not in ("claimed", "checkpointed")]
    log.values = [records.encode(msgspec.structs.replace(records.decode(v), term=1)) for v in log.values]
    replica.start()
    replica.step()
    restored = TrainerSide(tmp_path / "backup", log, trainer.url)
    for _ in range(2):
        restored.settle()
    replica.step()
    assert replica.registry.champion() == "11-1" and "older state" in replica.registry.journal.last().why
    restored.learn(2)
    restored.settle()
    replica.step()
    assert replica.registry.champion() == restored.registry.champion() == "12-2"
    assert (replica.registry.folder / "12-2/manifest.json").read_bytes() == (restored.registry.folder / "12-2/manifest.json").read_bytes()


def test_a_replica_made_of_a_newer_backup_waits_for_the_topic(trainer, replica, tmp_path):
    for n in (1, 2):
        trainer.learn(n)
        trainer.settle()
    trainer.learn(3)
    for part in ("models", "train"):
        shutil.rmtree(replica.settings.data_dir / part, ignore_errors=True)
        shutil.copytree(trainer.settings.data_dir / part, replica.settings.data_dir / part)
    replica.step()
    assert replica.registry.champion() == "13-3" and "13-3" in replica.registry.names()
    trainer.settle()
    replica.step()
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)


@pytest.mark.parametrize("value", [
    None, b"", b"{}", b"\xff", b"[1]", b"x" * 1_000_000, b'{"crc":"00000000","record":{"type":"move","term":1,"number":1,"line":"{}"}}',
    records.encode(records.Kept(term=1, number=1, versions={"../x": True})),
    records.encode(records.Moved(term=1, number=1, line="{}")),
    records.encode(records.Scored(term=1, number=1, index=5, line="{}")),
    records.encode(request(version="../x")), records.encode(request(version="1-1", why="x" * 2000))])
def test_a_record_that_cannot_be_trusted_is_passed_over(value):
    state = ModelsState()
    state.take([value])
    assert state.num_skipped == 1 and (state.number, state.open, state.moves, state.windows) == (0, {}, [], [])


def test_a_version_that_would_write_elsewhere_is_passed_over(trainer, log):
    trainer.learn(1)
    trainer.settle()
    value = next(v for v, kind in zip(log.values, kinds(log), strict=True) if kind == "version")
    good = records.decode(value)
    files = good.version.files
    for bad in (msgspec.structs.replace(files[0], path="../../x.safetensors"), msgspec.structs.replace(files[0], size=7),
                msgspec.structs.replace(files[0], pieces=[msgspec.structs.replace(files[0].pieces[0], object="../x")])):
        state = ModelsState()
        state.take([records.encode(msgspec.structs.replace(good, version=msgspec.structs.replace(good.version, files=[bad])))])
        assert state.num_skipped == 1 and not state.versions


def test_records_of_an_older_term_do_not_count():
    state = ModelsState()
    move = Move(time=1.0, action="promote", champion="1-1", shadow="1-1", who="trainer", why="").line().decode().strip()
    claimed = records.Claimed(term=2, member="m", id="a" * 32, at=1.0)
    moved = [records.Moved(term=term, number=number, line=move) for term, number in ((2, 1), (1, 9))]
    state.take([records.encode(record) for record in (claimed, *moved)])
    assert len(state.moves) == 1 and state.num_skipped == 1


def test_while_the_store_is_slow_no_server_follows_a_version_without_memory(trainer, replica, log):
    trainer.learn(1)
    trainer.settle()
    replica.step()
    newer = [3, 4]

    def learn_more(_):
        while newer:
            trainer.learn(newer.pop(0))

    trainer.learn(2)
    trainer.publish(learn_more)
    trainer.publisher.step()
    assert not newer and trainer.publisher.state.champion == "12-2" and not trainer.registry.is_servable(trainer.registry.manifest("12-2"))
    assert trainer.registry.shown().champion == "11-1"
    replica.step()
    replica.registry.load(replica.registry.shown().champion)
    trainer.settle()
    replica.step()
    for side in (trainer, replica):
        side.registry.load(side.registry.shown().champion)
        assert side.registry.shown().champion == "14-4"


def test_a_replica_never_follows_a_version_that_was_stored_without_memory(trainer, replica, log):
    # Newer versions have taken its memory before anything is stored.
    for n in (1, 2, 3, 4):
        trainer.learn(n)
    assert not trainer.registry.is_servable(trainer.registry.manifest("12-2"))
    followed = set()

    replica.step()

    def look():
        replica.step()
        if (shown := replica.registry.shown()) is not None:
            replica.registry.load(shown.champion)
            followed.add(shown.champion)

    log.on_append = look
    trainer.settle()
    look()
    assert followed == {"11-1", "13-3", "14-4"}


# Compaction over machines


def holds(side, edge, name="serve"):
    write_hold(side.settings.data_dir, name, Hold(edge, edge))


def test_compaction_waits_until_every_member_answered(trainer, replica, log, tmp_path):
    other = ReplicaSide(tmp_path / "other", log, trainer.url)
    for side in (replica, other):
        holds(side, 100)
        side.step()
    trainer.settle()
    MemoryTopic(log).append(records.encode(request(action="compact", event=300)))
    trainer.settle()
    for side in (replica, other):
        side.step()
        assert asked_to_compact(side.settings.data_dir) == 300
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) is None

    # One server after the other stores newer state.
    holds(replica, 350)
    replica.step()
    trainer.settle()
    assert asked_to_compact(replica.settings.data_dir) is None and asked_to_compact(trainer.settings.data_dir) is None
    holds(other, 300)
    other.step()
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) == 300 and kinds(log)[-1] == "released"

    # Done on the leader, which says so.
    compact_done(trainer.settings.data_dir)
    trainer.settle()
    replica.step()
    assert kinds(log)[-1] == "compacted" and not replica.follower.state.open


def test_a_leader_that_was_killed_as_a_follower_keeps_no_compaction_waiting(trainer, replica, log):
    """It is still a member in the topic, and as the leader it answers no request."""
    name = member_name(trainer.settings.data_dir)
    MemoryTopic(log).append(records.encode(records.Joined(term=0, member=name, at=1.0)))
    holds(replica, 300)
    replica.step()
    MemoryTopic(log).append(records.encode(request(action="compact", event=300)))
    replica.step()
    trainer.settle()
    assert kinds(log)[-1] == "released" and asked_to_compact(trainer.settings.data_dir) == 300
    assert name not in trainer.publisher.state.members and replica.follower.member.name in trainer.publisher.state.members


def test_a_compaction_beyond_the_logs_end_is_refused_and_keeps_no_other_waiting(trainer, replica, log):
    holds(replica, 100)
    replica.step()
    trainer.settle()
    MemoryTopic(log).append(records.encode(request(id="b" * 32, action="compact", event=601)))
    trainer.settle()
    replica.step()
    assert asked_to_compact(replica.settings.data_dir) is None, "servers would store newer state for ever"
    assert trainer.publisher.state.refused == {}, "the event may come in a moment"

    # A later one that names what the log has is done.
    MemoryTopic(log).append(records.encode(request(action="compact", event=600)))
    replica.step()
    assert asked_to_compact(replica.settings.data_dir) == 600
    holds(replica, 600)
    replica.step()
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) == 600
    compact_done(trainer.settings.data_dir)
    trainer.now += 61
    trainer.settle()
    assert kinds(log)[-2:] == ["refused", "compacted"] and trainer.publisher.state.open == {}
    assert trainer.publisher.state.refused == {"b" * 32: "Event 601 is beyond the log's end, 600."}


def test_a_compaction_beyond_the_logs_end_is_not_even_waited_for_as_long_as_a_lease(trainer, log):
    MemoryTopic(log).append(records.encode(request(action="compact", event=10**9)))
    trainer.settle()
    trainer.now += trainer.settings.holds.lease_seconds
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) is None and kinds(log)[-1] == "refused"


def test_a_member_that_does_not_answer_is_left_behind_and_starts_anew(trainer, replica, log):
    holds(replica, 100)
    facts = replica.settings.data_dir / "roles/serve/facts"
    facts.mkdir()
    replica.step()
    trainer.settle()
    MemoryTopic(log).append(records.encode(request(action="compact", event=300)))
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) is None
    trainer.now += trainer.settings.holds.lease_seconds
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) == 300 and not trainer.publisher.state.members
    compact_done(trainer.settings.data_dir)
    trainer.settle()

    # It comes back: what its server stored may hold what was deleted.
    replica.start()
    replica.step()
    assert not facts.exists() and read_holds(replica.settings.data_dir) == {}
    trainer.settle()
    assert list(trainer.publisher.state.members) == [replica.follower.member.name]


def test_a_member_that_stopped_is_not_waited_for(trainer, replica, log):
    replica.step()
    replica.follower.close()
    MemoryTopic(log).append(records.encode(request(action="compact", event=300)))
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) == 300


@pytest.mark.parametrize("step", ["released", "compacted"])
def test_a_trainer_killed_during_a_compaction_goes_on_with_it(step, trainer, log):
    MemoryTopic(log).append(records.encode(request(action="compact", event=300)))

    def die(name):
        if name == step:
            raise Killed

    trainer.start(die)
    with pytest.raises(Killed):
        trainer.settle()
        compact_done(trainer.settings.data_dir)
        trainer.settle()
    trainer.start()
    trainer.settle()
    compact_done(trainer.settings.data_dir)
    trainer.settle()
    assert [k for k in kinds(log) if k in ("released", "compacted")] == ["released", "compacted"]


def test_versions_that_the_trainer_dropped_leave_store_and_replicas(trainer, replica, tmp_path):
    for n in range(1, 8):
        trainer.learn(n)
        trainer.settle()
    replica.step()
    trainer.registry.prove("17-7", "good")
    trainer.registry.drop_before(1)
    trainer.settle()
    replica.step()
    names = sorted(trainer.registry.names())
    assert sorted(stored_versions(Store(trainer.url))) == names == sorted(replica.registry.names())
    assert candidate(1) and (tmp_path / "store" / FOLDER).exists()
