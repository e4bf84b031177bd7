"""Leader, changelog and follower as one state machine: killed at any system call, acknowledged late, twice or not at all.

At the end the two directories are equal byte for byte; at no time did a reader see what the changelog has not."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamd.errors import DiskError, FencedError
from streamd.eventlog import node_features as features
from streamd.eventlog.journal import journal
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.upkeep.prune import pruning
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Position
from streamd.replica.changelog.records import HEAD_BYTES
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.builders import compact
from tests.eventlog import test_crash as life
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference
from tests.replica.twin import Topic

CALLS = 60


class ReplicaMachine(RuleBasedStateMachine):
    schema = life.ONE_SET

    @initialize(parts=st.sampled_from([120, 400, 100_000]))
    def begin(self, parts):
        self.folder = Path(tempfile.mkdtemp(prefix="replica-machine-"))
        self.saved = journal.FILE_LINES, features.SLICE_BYTES, life.SCHEMA
        journal.FILE_LINES, features.SLICE_BYTES, life.SCHEMA = 4, 100, type(self).schema
        self.topic = Topic(HEAD_BYTES + parts)
        self.log = self.follower = None
        self.disks = {"leader": FaultyDisk(), "follower": FaultyDisk()}
        self.start_leader()

    def teardown(self):
        if not hasattr(self, "topic"):
            return
        try:
            self.topic.hold = False
            self.disks["leader"].at = self.disks["follower"].at = -1
            if self.log is not None and not self.log.files.closed:
                self.log.close()
            self.start_leader()
            life.live(self.log, self.log.progress.positions.get("t", {0: Position(0)})[0].offset + 1, housekeeping=False)
            self.log.close()
            self.drop_follower()
            self.follow()
            assert difference(self.a, self.b) == ""
            assert verify_log(self.b)[1] == []
        finally:
            self.drop_follower()
            journal.FILE_LINES, features.SLICE_BYTES, life.SCHEMA = self.saved
            shutil.rmtree(self.folder, ignore_errors=True)

    a = property(lambda self: self.folder / "a")
    b = property(lambda self: self.folder / "b")

    def start_leader(self):
        """A killed leader's records may arrive while the new one starts; it waits for acknowledgements, so none are held back."""
        held, self.topic.hold = self.topic.hold, False
        for _ in range(50):
            disk = self.disks["leader"]
            self.log = None
            try:
                publisher = lead(self.a, self.topic.producer(), self.topic.reader(), disk, member="m")
                self.log = LogWriter(self.a, life.SCHEMA, life.SEGMENT_EDGES, disk, publisher)
                self.topic.hold = held
                return self.log
            except (Crash, DiskError, FencedError) as error:
                self.abandon("leader", error)
        raise AssertionError("no start in 50 tries")

    def abandon(self, who, error):
        disk = self.disks[who]
        log = self.log if who == "leader" else None
        if isinstance(error, DiskError):
            if log is not None and not log.files.closed:
                log.close()
            disk.at = -1
            return
        disk.abandon(log)
        if who == "follower" and self.follower is not None:
            self.drop_follower()
        self.disks[who] = FaultyDisk()

    def as_leader(self, operation):
        try:
            operation()
        except (Crash, DiskError, FencedError) as error:
            self.topic.lose(self.arriving)
            self.abandon("leader", error)
            self.start_leader()

    arriving = 0
    variant = 0

    @rule(housekeeping=st.sampled_from(["", "", "", "seal", "compact", "drop", "prune"]), kept=st.integers(0, 3))
    def commit(self, housekeeping, kept):
        self.arriving = kept
        held, self.topic.hold = self.topic.hold, self.topic.hold and not housekeeping

        def run():
            i = self.log.progress.positions.get("t", {0: Position(0)})[0].offset
            self.live(i)
            if housekeeping == "seal":
                self.log.seal()
            elif housekeeping == "compact":
                compact(self.log)
            elif housekeeping == "drop" and len(self.log.state.segments) > 2:
                self.log.drop_before(self.log.state.segments[1].first_edge)
            elif housekeeping == "prune":
                list(pruning(self.log))

        if self.log.is_waiting and self.log.commits.num_pending > 14:
            self.topic.hold = False
        self.as_leader(run)
        self.topic.hold = held

    @rule()
    def hold_back(self):
        self.topic.hold = True

    @rule(stored=st.integers(0, 4), acknowledged=st.integers(0, 4))
    def let_through(self, stored, acknowledged):
        self.topic.store(stored)
        self.topic.acknowledge(acknowledged)
        self.as_leader(self.log.show_acknowledged)

    @rule()
    def release(self):
        self.topic.hold = False
        self.topic.turn()
        self.as_leader(self.log.show_acknowledged)

    @rule(who=st.sampled_from(["leader", "follower"]), at=st.integers(0, CALLS), mode=st.sampled_from(["kill", "torn", "power"]))
    def plan_a_crash(self, who, at, mode):
        disk = self.disks[who]
        disk.at, disk.mode = disk.calls + at, mode

    @rule(kept=st.integers(0, 3), late=st.booleans())
    def kill_the_leader(self, kept, late):
        """Of what it had sent some records arrive; others arrive only when the next leader has read the changelog's end."""
        self.arriving = kept
        sent = list(self.topic.sent[kept:])
        self.topic.lose(kept)
        self.disks["leader"].abandon(self.log)
        self.disks["leader"] = FaultyDisk()
        if late:
            self.topic.on_turn = lambda: self.arrive(sent)
        self.start_leader()
        self.topic.on_turn = lambda: None

    def commit_late(self):
        """Commit while records of the machine before arrive."""
        held, self.topic.hold = self.topic.hold, False
        for _ in range(3):
            self.as_leader(lambda: self.live(self.log.progress.positions.get("t", {0: Position(0)})[0].offset))
            self.as_leader(lambda: self.log.commits.await_acks())
        self.topic.hold = held

    def arrive(self, sent):
        for receipt in sent[:2]:
            self.topic.append(receipt.record)
        del sent[:2]

    @rule()
    def set_a_copy_aside(self):
        """Another machine's directory as of now, with lines that may never be published."""
        if not self.disks["leader"].all_synced and self.disks["leader"].mode == "power":
            return
        shutil.rmtree(self.folder / "spare", ignore_errors=True)
        shutil.copytree(self.a, self.folder / "spare", ignore=shutil.ignore_patterns("stash-*"))

    @precondition(lambda self: (self.folder / "spare").exists())
    @rule(late=st.booleans())
    def let_the_copy_lead(self, late):
        """The other machine takes over, with what the changelog has; lines of the one before may never have arrived, or arrive
        between its own."""
        held = self.topic.hold
        if late:
            self.topic.hold = True
            self.as_leader(lambda: self.live(self.log.progress.positions.get("t", {0: Position(0)})[0].offset))
        self.topic.hold = held
        sent = list(self.topic.sent) if late else []
        self.topic.lose(0)
        self.disks["leader"].abandon(self.log)
        self.disks["leader"] = FaultyDisk()
        self.a.rename(self.folder / "lost")
        (self.folder / "spare").rename(self.a)
        (self.folder / "lost").rename(self.folder / "spare")
        self.variant += 1
        self.topic.on_turn = lambda: self.arrive(sent)
        self.start_leader()
        if late:
            self.commit_late()
        self.topic.on_turn = lambda: None

    @rule()
    def stop_the_leader(self):
        held, self.topic.hold = self.topic.hold, False
        self.as_leader(lambda: (self.log.close(), self.start_leader()))
        self.topic.hold = held

    def live(self, i):
        """Commit number i, with fewer edges where another machine took over: no two leaders make the same commits."""
        batch = life.commit_number(i)
        kept = batch.num_edges - self.variant % (batch.num_edges + 1)
        none = batch.deletions_X.copy()
        none["edge"] = kept
        batch = dataclasses.replace(
            batch, **{name: getattr(batch, name)[:kept] for name in ("src_E", "dst_E", "time_E", "msg_ED")}, deletions_X=none,
            late_edge=batch.late_edge if kept else (), late_time=batch.late_time if kept else (),
            node_row_F=np.full(2, kept), node_edge_F=np.full(2, kept))
        self.log.commit(batch, life.Progress("c", {"t": "id"}, {"t": {0: Position(i + 1)}}), i * 10)

    def drop_follower(self):
        follower, self.follower = self.follower, None
        if follower is not None and follower._applier is not None and not follower._applier.files.closed:
            follower._applier.files.disk.abandon(follower._applier)

    @rule(reads=st.integers(1, 30), at_once=st.integers(1, 40))
    def follow_a_little(self, reads, at_once):
        self.follow(reads, at_once)

    def follow(self, reads=10**9, at_once=1000):
        tries = 0
        while True:
            tries += 1
            assert tries < 50
            try:
                if self.follower is None:
                    reader = self.topic.reader()
                    reader.max_records = at_once
                    self.follower = Follower(self.b, reader, self.disks["follower"])
                while reads > 0 and self.follower.step(0):
                    reads -= 1
                return
            except Crash as error:
                self.abandon("follower", error)

    @rule()
    def restart_the_follower(self):
        self.drop_follower()
        self.disks["follower"] = FaultyDisk()

    @invariant()
    def nothing_is_shown_that_the_changelog_lacks(self):
        if not hasattr(self, "topic"):
            return
        commits = [dict(h) for h, _ in self.topic.records if "kind" not in dict(h)]
        whole = {int(h["seq"]) for h in commits if int(h["part"]) == int(h["parts"]) - 1}
        newest = max(whole, default=0)
        assert published_seq(self.a) <= newest and published_seq(self.b) <= newest


class SetsReplicaMachine(ReplicaMachine):
    schema = life.THREE_SETS


TestReplicaMachine = ReplicaMachine.TestCase
TestSetsReplicaMachine = SetsReplicaMachine.TestCase
FEW = settings(max_examples=4, stateful_step_count=20, deadline=None, phases=(Phase.explicit, Phase.generate))
TestReplicaMachine.settings = TestSetsReplicaMachine.settings = FEW


@pytest.mark.slow
@pytest.mark.parametrize("machine", [ReplicaMachine, SetsReplicaMachine])
def test_the_machine_for_a_long_time(machine):
    run_state_machine_as_test(machine, settings=settings(FEW, max_examples=1000, stateful_step_count=40))
