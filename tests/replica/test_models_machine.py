"""Whatever happens in whatever order, all machines end with the trainer's versions, moves and windows."""

import contextlib
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

from streamd.errors import KafkaError, StoreError
from streamd.replica.models import records
from tests.replica.models_world import (
    Killed,
    MemoryLog,
    ReplicaSide,
    TrainerSide,
    content,
)

TRAINER_STEPS = ("request", "upload", "checkpoint", "mark", "checkpointed", "version", "move", "window", "kept", "sweep", "released", "compacted")
REPLICA_STEPS = ("download", "downloaded", "move", "window", "prune")


class Machines(RuleBasedStateMachine):
    """A trainer and two replicas. Ahead of each step something may fail, once, at any of its parts."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        self.log = MemoryLog()
        url = f"file://{self.folder}/store"
        self.trainer = TrainerSide(self.folder / "trainer", self.log, url)
        self.replicas = [ReplicaSide(self.folder / f"replica{i}", self.log, url) for i in (0, 1)]
        self.learned = self.asked = 0
        self.starting = set()
        """Processes that wait for Kafka: a trainer claims before it does anything else, again until the topic takes it."""

    def teardown(self):
        if hasattr(self, "folder"):
            self.heal()
            shutil.rmtree(self.folder)

    def _attempt(self, side, dies_at):
        """Let a side step, perhaps die on the way, and start again where it died."""

        def die(name):
            if name == dies_at:
                raise Killed

        if dies_at:
            self.starting.add(side)
        if self._runs(side, die):
            with contextlib.suppress(Killed, KafkaError, StoreError):
                side.step()
        if dies_at:
            self.starting.add(side)
            self._runs(side)

    def _runs(self, side, on_step=lambda _: None):
        """Start a side that waits for Kafka. Returns: whether it runs."""
        if side in self.starting:
            with contextlib.suppress(Killed, KafkaError, StoreError):
                side.start(on_step)
                self.starting.remove(side)
        return side not in self.starting

    @rule()
    def learn(self):
        if self._runs(self.trainer):
            self.learned += 1
            self.trainer.learn(self.learned)

    @rule(dies_at=st.sampled_from((None, *TRAINER_STEPS)))
    def trainer_steps(self, dies_at):
        self._attempt(self.trainer, dies_at)

    @rule(which=st.integers(0, 1), dies_at=st.sampled_from((None, *REPLICA_STEPS)))
    def replica_steps(self, which, dies_at):
        self._attempt(self.replicas[which], dies_at)

    @rule(fault=st.sampled_from(["lose_next", "keep_but_fail_next"]))
    def append_fails(self, fault):
        setattr(self.log, fault, True)

    @rule()
    def kafka_goes_or_comes(self):
        self.log.is_away = not self.log.is_away

    @rule()
    def an_old_record_arrives_again(self):
        if self.log.values:
            self.log.values.append(self.log.values[len(self.log.values) // 2])

    @rule(action=st.sampled_from(["promote", "rollback"]), number=st.integers(1, 5), twice=st.booleans())
    def ask(self, action, number, twice):
        self.asked += 1
        asked = records.Request(term=0, id=f"{self.asked:032x}", action=action, who="api", why="", member="m", at=1e6, version=f"{number + 10}-{number}")
        self.log.values += [records.encode(asked)] * (1 + twice)

    @invariant()
    def a_champion_can_be_loaded(self):
        for replica in getattr(self, "replicas", ()):
            if champion := replica.registry.champion():
                assert replica.registry.load(champion).manifest.name == champion

    def heal(self):
        """Nothing fails any more, and all is the same everywhere; each request was done or refused once."""
        self.log.is_away = self.log.lose_next = self.log.keep_but_fail_next = False
        assert all(self._runs(side) for side in (self.trainer, *self.replicas))
        for _ in range(2):
            self.trainer.settle()
        moves = self.trainer.registry.journal.moves()
        assert self.trainer.publisher.state.moves == moves and not self.trainer.publisher.state.open
        done = [move.request for move in moves if move.request]
        assert len(done) == len(set(done)) and not set(done) & set(self.trainer.publisher.state.refused)
        for replica in self.replicas:
            replica.step()
            assert content(replica.settings.data_dir) == content(self.trainer.settings.data_dir)


@pytest.mark.parametrize("examples", [5, pytest.param(150, marks=pytest.mark.slow)])
def test_all_machines_end_with_the_same(examples):
    chosen = settings(max_examples=examples, stateful_step_count=20, deadline=None, derandomize=True, database=None,
                      suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machines, settings=chosen)
