"""Trainers that claim, die, are paused and wake up: each replica is shown each window once, and nothing of a trainer behind the claim of another."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from streamd.errors import FencedError, KafkaError, StoreError
from streamd.replica.models import records
from tests.replica.models_world import (
    Killed,
    MemoryLog,
    MemoryTopic,
    ReplicaSide,
    TrainerSide,
    content,
    follow_log,
    logged_windows,
)

STEPS = ("upload", "checkpoint", "mark", "checkpointed", "version", "move", "window", "kept", "sweep")
TAKING = ("fetch", "unmark", "version", "moves", "prune", "clear", "files", "place", "mark")
WHICH = st.integers(0, 1)


class Plain:
    """What the records say, read by the plain rule: a claim counts where its term is the next one, and a trainer's record where it is of the
    newest claim and its number is news."""

    def __init__(self, values):
        self.windows, self.moves, self.versions = [], [], {}
        term, number = 1, 0
        for value in values:
            record = json.loads(value)["record"]
            kind = record["type"]
            if kind == "claimed" and record["term"] == term + 1:
                term, number = term + 1, 0
            elif "number" in record and record["term"] == term and record["number"] > number:
                number = record["number"]
                if kind == "window":
                    self.windows[record["index"] :] = [record["line"]]
                elif kind == "move":
                    self.moves.append(record["line"])
                elif kind == "version":
                    self.versions[record["version"]["name"]] = record["version"]["manifest"]
                elif kind == "kept":
                    self.versions = {n: m for n, m in self.versions.items() if n in record["versions"]}


class Trainers(RuleBasedStateMachine):
    """Two directories, in each of which a trainer or a follower runs, and a replica."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        self.log = MemoryLog()
        self.url = f"file://{self.folder}/store"
        self.replica = ReplicaSide(self.folder / "replica", self.log, self.url)
        self.sides = [None, None]
        self.followers = [None, None]
        self.clock = 0.0
        self.asked = 0
        self.shown = []
        for i in (0, 1):
            self._follow(i)

    def teardown(self):
        if hasattr(self, "folder"):
            self.heal()
            shutil.rmtree(self.folder)

    def _folder(self, i):
        return self.folder / f"trainer{i}"

    def _follow(self, i):
        """The trainer of a directory is no more, and a follower writes there."""
        self.sides[i] = None
        self.followers[i] = ReplicaSide(self._folder(i), self.log, self.url)

    def _claim(self, i):
        """A trainer begins in a directory, and ends what ran there."""
        self.followers[i] = self.sides[i] = None
        try:
            self.sides[i] = TrainerSide(self._folder(i), self.log, self.url)
        except (KafkaError, StoreError):
            self._follow(i)

    @rule(i=WHICH)
    def claims(self, i):
        """Also where a trainer runs, which is killed, amid a window perhaps."""
        self._claim(i)

    @rule(i=WHICH, dies_at=st.sampled_from(TAKING))
    def dies_while_it_takes(self, i, dies_at):
        def die(name):
            if name == dies_at:
                raise Killed

        self.followers[i] = self.sides[i] = None
        with contextlib.suppress(Killed, KafkaError, StoreError):
            TrainerSide(self._folder(i), self.log, self.url, dies=die)
        self._follow(i)

    def _next(self, side):
        self.clock += 1
        return side.edge + 1, self.clock

    @rule(i=WHICH, half=st.booleans())
    def learn(self, i, half):
        side = self.sides[i]
        if side is None or side.is_half:
            return
        n, at = self._next(side)
        side.learn_half(n, at)
        side.is_half = half
        if not half:
            side.checkpoint(n)

    @rule(i=WHICH)
    def learn_the_rest(self, i):
        side = self.sides[i]
        if side is not None and side.is_half:
            side.is_half = False
            side.checkpoint(side.edge + 1)

    @rule(i=WHICH, at=st.sampled_from((None, *STEPS)), what=st.sampled_from(["dies", "is paused"]))
    def trainer_steps(self, i, at, what):
        """It may die at a step, or be paused there until another one has claimed, learned and stored."""
        side = self.sides[i]
        if side is None:
            return
        left = [at]

        def on_step(name):
            if name != left[0]:
                return
            left.clear()
            left.append(None)
            if what == "dies":
                raise Killed
            self._claim(1 - i)
            rival = self.sides[1 - i]
            if rival is not None:
                with contextlib.suppress(KafkaError, StoreError):
                    rival.learn(*self._next(rival))
                    rival.publisher.step()

        side.on_step = on_step
        before = len(self.log.values)
        is_fenced = side.trainer_term.id != self._newest_claim()
        try:
            if not side.is_half:
                side.rest()
            side.publisher.step()
            assert not is_fenced or self.log.is_away
        except Killed:
            self._claim(i)
        except FencedError:
            assert not is_fenced or len(self.log.values) == before, "it has appended behind another one's claim"
            self._follow(i)
        except (KafkaError, StoreError):
            side.publish()
        else:
            side.on_step = lambda _: None

    def _newest_claim(self):
        term, found = 1, ""
        for value in self.log.values:
            record = json.loads(value)["record"]
            if record["type"] == "claimed" and record["term"] == term + 1:
                term, found = record["term"], record["id"]
        return found

    @rule(i=WHICH)
    def follower_steps(self, i):
        if self.followers[i] is not None:
            with contextlib.suppress(KafkaError, StoreError):
                self.followers[i].step()

    @rule(i=WHICH)
    def a_volume_is_lost(self, i):
        if self.sides[i] is None:
            # All that its log has is in the changelog.
            follow_log(self.folder / "replica", MemoryTopic(self.log))
            shutil.rmtree(self._folder(i))
            self._follow(i)

    @rule()
    def replica_steps(self):
        with contextlib.suppress(KafkaError, StoreError):
            self.replica.step()

    @rule(fault=st.sampled_from(["lose_next", "keep_but_fail_next"]))
    def append_fails(self, fault):
        setattr(self.log, fault, True)

    @rule()
    def kafka_goes_or_comes(self):
        self.log.is_away = not self.log.is_away

    @rule()
    def store_goes_or_comes(self):
        store, away = self.folder / "store", self.folder / "away"
        if away.exists():
            store.unlink()
            away.rename(store)
        elif store.exists():
            store.rename(away)
            store.write_text("no folder")

    @rule(at=st.integers(0, 200))
    def an_old_record_arrives_again(self, at):
        if self.log.values:
            self.log.values.append(self.log.values[at % len(self.log.values)])

    @rule(action=st.sampled_from(["promote", "rollback"]), number=st.integers(1, 5))
    def ask(self, action, number):
        self.asked += 1
        asked = records.Request(term=0, id=f"{self.asked:032x}", action=action, who="api", why="", member="m", at=1e6, version=f"{number + 10}-{number}")
        self.log.values.append(records.encode(asked))

    @invariant()
    def the_replica_is_shown_each_window_once(self):
        if not hasattr(self, "folder"):
            return
        lines = logged_windows(self.replica.settings.data_dir)
        assert [line["end_edge"] for line in lines] == list(range(1, len(lines) + 1))
        assert lines[: len(self.shown)] == self.shown, "a window that was shown was learned again"
        self.shown = lines

    @invariant()
    def servers_go_by_what_the_records_say(self):
        if not hasattr(self, "folder"):
            return
        told = set(Plain(self.log.values).moves)
        for side in (*self.sides, *self.followers, self.replica):
            shown = side and side.registry.shown()
            assert not shown or shown.line().decode().strip() in told

    @invariant()
    def the_replica_knows_what_the_records_say(self):
        if not hasattr(self, "folder"):
            return
        state = self.replica.follower.state
        plain = Plain(self.log.values[: self.replica.follower._topic.at])
        assert state.windows == plain.windows and {n: v.manifest for n, v in state.versions.items()} == plain.versions
        assert [move.line().decode().strip() for move in state.moves] == plain.moves

    def heal(self):
        """Nothing fails any more, and one trainer goes on: all machines have the same."""
        self.log.is_away = self.log.lose_next = self.log.keep_but_fail_next = False
        if (self.folder / "away").exists():
            self.store_goes_or_comes()
        self._claim(0)
        trainer = self.sides[0]
        trainer.learn(*self._next(trainer))
        for _ in range(3):
            trainer.settle()
        if self.sides[1] is not None:
            with pytest.raises(FencedError):
                self.sides[1].publisher.step()
        self._follow(1)
        for other in (self.replica, self.followers[1]):
            other.step()
            here, there = content(other.settings.data_dir), content(trainer.settings.data_dir)
            # Moves of a trainer that someone passed over by hand were told to nobody.
            journals = [one.pop("models/journal.jsonl").decode().splitlines() for one in (here, there)]
            told = Plain(self.log.values).moves
            assert here == there and set(journals[0]) <= {*told, *journals[1]}
            for journal in journals:
                assert [line for line in journal if line in told] == told and journal[-1] == told[-1]
        self.the_replica_is_shown_each_window_once()
        self.the_replica_knows_what_the_records_say()
        assert len(self.shown) == trainer.edge
        stored = list((self.folder / "store/checkpoints").iterdir())
        assert len(stored) <= 2, "older checkpoints leave the store"


@pytest.mark.parametrize("examples", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_each_window_is_shown_once_whoever_trains(examples):
    chosen = settings(max_examples=examples, stateful_step_count=30, deadline=None, derandomize=True, database=None,
                      suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Trainers, settings=chosen)
