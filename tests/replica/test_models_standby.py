"""Trainers that claim, what the store keeps for the next one, and what a directory keeps of an earlier one."""

import json
import os
import threading

import pytest

from streamd.errors import FencedError, LockedError
from streamd.eventlog.upkeep.holds import asked_to_compact, compact_done, read_holds
from streamd.registry import Registry
from streamd.registry.locks import lock_writer
from streamd.replica.models import records
from streamd.replica.models.checkpoint_marker import (
    MARKER,
    Stored,
    read_marker,
    remove_marker,
    write_marker,
)
from streamd.replica.models.state import ModelsState
from streamd.store.checkpoints import stored_checkpoints
from streamd.store.objects import Store
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from tests.builders import settings
from tests.replica.models_world import (
    Killed,
    MemoryTopic,
    ReplicaSide,
    TrainerSide,
    beginning_of,
    content,
    logged_windows,
)
from tests.replica.models_world import (
    window as record_of,
)
from tests.server.world import wait


@pytest.fixture
def trainer(tmp_path, log, url):
    return TrainerSide(tmp_path / "trainer", log, url)


def kinds(log):
    return [json.loads(v)["record"]["type"] for v in log.values]


def claim(term, id):
    return records.encode(records.Claimed(term=term, member="m", id=id * 32, at=1.0))


def compaction(event):
    return records.encode(records.Request(term=0, id="c" * 32, action="compact", who="operator", why="", member="m", at=1e6, event=event))


def test_the_first_claim_of_the_next_term_wins_and_no_other():
    state = ModelsState()
    state.take([claim(3, "a"), claim(2, "b"), claim(2, "c"), claim(4, "d"), claim(3, "e"), claim(1, "f")])
    assert (state.term, state.trainer, state.num_skipped) == (3, "e" * 32, 4)


def test_numbers_begin_anew_with_each_term_and_late_records_do_not_count():
    state = ModelsState()

    def window(term, number, index, line):
        return records.encode(records.Scored(term=term, number=number, index=index, line=line))

    state.take([window(1, 1, 0, "a"), window(1, 2, 1, "b"), claim(2, "a"), window(1, 3, 2, "late"), window(2, 1, 2, "c"), window(2, 1, 2, "again")])
    assert state.windows == ["a", "b", "c"] and state.num_skipped == 2


@pytest.mark.parametrize("fault", ["lose_next", "keep_but_fail_next"])
def test_a_claim_whose_outcome_is_unknown_is_found_in_the_topic(fault, trainer, log):
    setattr(log, fault, True)
    with pytest.raises(Exception, match="not acknowledged"):
        trainer.claim()
    assert kinds(log).count("claimed") == (1 if fault == "lose_next" else 2)
    trainer.trainer_term.claim(MemoryTopic(log), state := ModelsState())
    assert state.trainer == trainer.trainer_term.id and kinds(log).count("claimed") == 2


def test_a_trainer_that_wakes_up_does_no_request_and_appends_nothing(trainer, tmp_path, log, url):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    other = TrainerSide(tmp_path / "other", log, url)
    asked = records.Request(term=0, id="a" * 32, action="promote", who="api", why="", member="m", at=1e6, version="11-1")
    log.values.append(records.encode(asked))
    before = len(log.values)
    with pytest.raises(FencedError):
        trainer.publisher.step()
    assert len(log.values) == before and trainer.registry.champion() == "12-2"
    other.settle()
    assert other.registry.champion() == "11-1" == other.publisher.state.champion


def test_an_append_that_was_on_its_way_while_another_one_claimed_counts_for_nobody(trainer, tmp_path, log, url):
    trainer.learn(1)
    trainer.settle()
    replica = ReplicaSide(tmp_path / "replica", log, url)
    replica.step()
    trainer.learn(2)

    def rival(name):
        if name == "move":
            trainer.on_step = lambda _: None
            rivals.append(TrainerSide(tmp_path / "other", log, url))

    rivals = []
    trainer.on_step = rival
    with pytest.raises(FencedError):
        trainer.publisher.step()
    assert kinds(log)[-1] == "move"
    replica.step()
    assert replica.registry.champion() == "11-1", "the late move does not count"
    rivals[0].settle()
    replica.step()
    assert replica.registry.champion() == "12-2" and content(rivals[0].settings.data_dir) == content(replica.settings.data_dir)


@pytest.mark.parametrize("step", ["fetch", "unmark", "version", "moves", "prune", "clear", "files", "place", "mark"])
def test_a_takeover_that_is_killed_begins_again(step, trainer, tmp_path, log, url):
    other = TrainerSide(tmp_path / "other", log, url)
    other.learn(1)
    trainer = TrainerSide(tmp_path / "trainer", log, url)
    for n in (1, 2, 3):
        trainer.learn(n)
        trainer.settle()

    # It is marked with a checkpoint of its own, from which another trainer has gone on since.
    old = [Stored(name="checkpoints/0000000002-" + 32 * "a" + ".json")]
    write_marker(other.settings.data_dir, old)

    def die(name):
        if name == step:
            raise Killed

    with pytest.raises(Killed):
        other.start(die)
    # What a kill left is no directory that learning goes on from by itself.
    assert read_marker(other.settings.data_dir) == (old if step in ("fetch", "unmark") else [])
    other.start()
    assert other.edge == 3 and content(other.settings.data_dir) == content(trainer.settings.data_dir)
    assert not (other.settings.data_dir / "train/.taken").exists()
    replay = [side.settings.data_dir / "train/replay" for side in (other, trainer)]
    assert [p.name for p in replay[0].iterdir()] == [p.name for p in replay[1].iterdir()]


def test_a_trainer_that_is_restarted_goes_on_from_its_own_directory(trainer, log, tmp_path):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    trainer.learn(3)
    (tmp_path / "store").rename(tmp_path / "away")
    trainer.start()
    assert trainer.edge == 3, "it needs no store"


def test_a_follower_that_writes_here_makes_the_next_trainer_take_the_stored_checkpoint(trainer, tmp_path, log, url):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    trainer.learn(3)
    assert trainer.edge == 3
    # Version 3 was not told: the follower lets go of it.
    ReplicaSide(trainer.settings.data_dir, log, url).step()
    assert not (trainer.settings.data_dir / MARKER).exists()
    trainer.start()
    assert trainer.edge == 2 and trainer.history_bytes() == 2 * len(record_of(1).line()) and len(logged_windows(log.leader)) == 2


def test_a_marker_that_was_removed_while_the_trainer_stood_by_does_not_count(trainer, log):
    trainer.learn(1)
    trainer.settle()
    s = trainer.settings.model_copy(update={"log": trainer.settings.log.model_copy(update={"member": "standby"})})
    ingest, beat, begun = Heartbeat(s.data_dir, "ingest"), Heartbeat(s.data_dir, "train"), []
    ingest.touch("following")
    thread = threading.Thread(target=lambda: begun.append(beginning_of(s, lambda: MemoryTopic(log), beat).begin()))
    thread.start()
    wait(lambda: (now := read_beat(s.data_dir, "train")) is not None and now.state == "standby")
    # As the follower does that writes here.
    remove_marker(s.data_dir)
    wait(lambda: not trainer.edge)
    ingest.touch("leading", leading=True)
    thread.join(60)
    assert trainer.edge == 1, "it takes the stored checkpoint"
    begun[0].close()


def test_a_move_of_the_trainer_waits_for_the_checkpoint_behind_it(trainer, log):
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    trainer.registry.prove("12-2", "better")
    trainer.publisher.step()
    assert trainer.publisher.state.shadow == "11-1"
    trainer.settle()
    assert trainer.publisher.state.shadow == "12-2"


def test_a_damaged_mark_counts_as_none(tmp_path):
    write_marker(tmp_path, [])
    (tmp_path / MARKER).write_text("[{")
    assert read_marker(tmp_path) == []


def test_two_checkpoints_stay_in_the_store_and_their_events_in_the_log(trainer, tmp_path):
    for n in range(1, 6):
        trainer.purged = n
        trainer.learn(n)
        trainer.settle()
    store = Store(trainer.url)
    assert sorted(one.edge for one in stored_checkpoints(store).values()) == [4, 5]
    assert read_holds(trainer.settings.data_dir)["handover"].purged_before_event == 5


def test_what_deletes_hide_leaves_the_store_with_the_older_checkpoint(trainer, log):
    for n in (1, 2):
        trainer.learn(n)
        trainer.settle()
    MemoryTopic(log).append(compaction(300))
    trainer.settle()
    assert asked_to_compact(trainer.settings.data_dir) == 300 and len(stored_checkpoints(Store(trainer.url))) == 2

    # Only the newest one is rid of it. Until then housekeeping waits for the hold of the handover.
    assert read_holds(trainer.settings.data_dir)["handover"].purged_before_event < 300
    trainer.purged = 300
    trainer.settle()
    assert read_holds(trainer.settings.data_dir)["handover"].purged_before_event == 300
    assert [one.purged_before for one in stored_checkpoints(Store(trainer.url)).values()] == [300]
    compact_done(trainer.settings.data_dir, 1)
    trainer.settle()
    assert kinds(log)[-1] == "compacted"


def test_a_trainer_elsewhere_asks_again_for_a_compaction_that_was_let_go(trainer, tmp_path, log, url):
    trainer.learn(1)
    MemoryTopic(log).append(compaction(300))
    trainer.settle()
    assert "released" in kinds(log)
    other = TrainerSide(tmp_path / "other", log, url)
    other.settle()
    assert asked_to_compact(other.settings.data_dir) == 300 and "compacted" not in kinds(log)
    compact_done(other.settings.data_dir, 1)
    other.settle()
    assert kinds(log)[-1] == "compacted"


def test_one_process_at_a_time_writes_versions(trainer):
    lock = lock_writer(Registry.of(trainer.settings).folder)
    with pytest.raises(LockedError):
        lock_writer(Registry.of(trainer.settings).folder)
    assert lock >= 0


def test_a_trainer_that_loses_the_lead_before_it_begins_lets_the_follower_write(trainer, tmp_path, log, url):
    trainer.learn(1)
    trainer.settle()
    # Another machine leads for a moment; its log lacks what the checkpoint has.
    other = settings(tmp_path / "other", log__name="t", log__store=url, log__member="standby")
    ingest, stop, seen = Heartbeat(other.data_dir, "ingest"), threading.Event(), []
    ingest.note(leading=True)
    ingest.touch("leading")

    class Watched(Heartbeat):
        def touch(self, state, **detail):
            if state == "waiting for log":
                ingest.note(leading=False)
                ingest.touch("following")
            if state == "standby" and not stop.is_set():
                seen.append(state)
                if len(seen) == 2:
                    os.close(lock_writer(Registry.of(other).folder))
                    stop.set()

    assert beginning_of(other, lambda: MemoryTopic(log), Watched(None, "train"), stop).begin() is None
    assert seen == ["standby", "standby"] and "claimed" in kinds(log)[-1]
