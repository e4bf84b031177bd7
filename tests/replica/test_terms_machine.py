"""Three members that claim, are killed, paused, deposed and started again, over one changelog, against a plain reading of its records.

Whatever a member shows is a beginning of the one history that the records tell; at the end all have all of it, byte for byte."""

import itertools
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from streamd.errors import ChangelogError, DivergedError, FencedError, KafkaError, StoreError
from streamd.eventlog import node_features as features
from streamd.eventlog.journal import journal
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.upkeep.verify import verify_log
from streamd.replica.changelog.admission import Admission
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import HEAD_BYTES, Claim, Heartbeat
from streamd.replica.follower.bootstrap import newest_manifest, take_manifest
from streamd.replica.follower.follower import Follower
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference, lines_of
from tests.replica.rivals import commit, leader
from tests.replica.twin import Topic, record

NAMES = "abc"
MEMBERS = st.sampled_from(NAMES)
PATIENCE = 3
"""Turns after which even a broker that holds back takes what is on its way."""


def told_by(records):
    """The history that records tell, as plainly as it can be said. Returns: the lines' checksums, by commit from 1."""
    term, history, part = 1, [], 0
    for entry in records:
        if isinstance(entry, Claim):
            if entry.term == term + 1:
                term, part = entry.term, 0
        elif not isinstance(entry, Heartbeat) and (entry.term, entry.seq, entry.part) == (term, len(history) + 1, part):
            part += 1
            if part == entry.parts:
                history.append(entry.line)
                part = 0
    return history


class Member:
    """A machine. It leads, follows, or does not run; while nothing of it is called, it is paused."""

    def __init__(self, path, link):
        self.path, self.link, self.log, self.follower, self.disk = path, link, None, None, FaultyDisk()

    def die(self):
        """All at once. Returns: what it had on its way, which may arrive yet."""
        log = self.log if self.log is not None else self.follower._applier if self.follower is not None else None
        self.disk.abandon(log)
        self.log = self.follower = None
        self.disk = FaultyDisk()
        sent = [receipt.record for receipt in self.link.sent]
        self.link.sent.clear()
        self.link.unacknowledged.clear()
        return sent


class TermsMachine(RuleBasedStateMachine):
    @initialize(parts=st.sampled_from([120, 400, 100_000]), seed=st.integers(0, 2**32))
    def begin(self, parts, seed):
        self.folder = Path(tempfile.mkdtemp(prefix="terms-machine-"))
        self.saved = journal.FILE_LINES, features.SLICE_BYTES
        journal.FILE_LINES, features.SLICE_BYTES = 4, 100
        self.topic = Topic(HEAD_BYTES + parts)
        self.members = {name: Member(self.folder / name, self.topic.line()) for name in NAMES}
        for member in self.members.values():
            member.link.patience = PATIENCE
        self.store = Store(f"file://{self.folder}/store")
        self.ghosts, self.number, self.random = [], 20, random.Random(seed)
        self.lead("a", None, 0)
        self.follow("b", 1, 1)

    def leading(self, which):
        """One of the members that believe that they lead; if none does, one that then claims."""
        names = [name for name, member in self.members.items() if member.log is not None]
        if not names:
            names = [NAMES[which % 3]]
            self.lead(names[0], None, 0)
        return names[which % len(names)]

    def teardown(self):
        if not hasattr(self, "topic"):
            return
        try:
            self.all_come_to_one_end()
        finally:
            journal.FILE_LINES, features.SLICE_BYTES = self.saved
            for member in self.members.values():
                member.die()
            shutil.rmtree(self.folder, ignore_errors=True)

    def all_come_to_one_end(self):
        for member in self.members.values():
            self.ghosts.append(member.die())
            member.link.hold = member.link.silent = False
        while any(self.ghosts):
            self.arrive(0, 1)
        first = self.random.choice(NAMES)
        seen = len(told_by(self.topic.broker.told))
        for _ in range(5):
            self.lead(first, None, 0)
            self.commit(first)
            if self.members[first].log is not None:
                self.stop(first)
                break
        assert len(told_by(self.topic.broker.told)) > seen, "nobody can lead any more"
        for name in NAMES:
            if name != first:
                self.follow(name, 10**9, 1000)
                self.follow(name, 10**9, 1000)
        history = told_by(self.topic.broker.told)
        for name, member in self.members.items():
            assert published_seq(member.path) == len(history), name
            assert difference(self.members[first].path, member.path) == "", name
            assert verify_log(member.path)[1] == []

    # What a member does, and how it ends.

    def as_member(self, name, operation):
        """Do something, and end as the process would: by a kill, as one that was deposed, or where a record was refused."""
        member = self.members[name]
        try:
            operation()
        except (Crash, FencedError, KafkaError):
            self.ghosts.append(member.die())
        except OutOfRange:
            self.ghosts.append(member.die())
            self.take_manifest(member)
        except DivergedError:
            raise
        except ChangelogError as error:
            assert "older than the changelog" in str(error), error
            self.ghosts.append(member.die())
            self.take_manifest(member)

    def take_manifest(self, member):
        manifest = newest_manifest(self.store)
        if manifest is not None:
            take_manifest(self.store, manifest, member.path)

    def stop_following(self, name):
        member = self.members[name]
        if member.follower is not None:
            self.as_member(name, member.follower.close)
            member.follower = None

    @rule(name=MEMBERS, rival=st.none() | MEMBERS, held=st.integers(0, 2))
    def lead(self, name, rival, held):
        """Claim. rival: who does the same meanwhile; held: turns for which the claim is on its way."""
        member = self.members[name]
        if member.log is not None:
            self.as_member(name, lambda: (member.log.close(), setattr(member, "log", None)))
        self.stop_following(name)
        member.link.hold, holding = held > 0, member.link.hold
        member.link.turns = -held

        def meanwhile():
            if rival not in (None, name) and not rivals:
                rivals.append(rival)
                self.lead(rival, None, 0)
            self.arrive(0, self.random.randrange(3))
            for other in self.members.values():
                if other is not member:
                    other.link.store(self.random.randrange(4))

        rivals = []

        def start():
            member.log = leader(member.path, member.link, member.disk, heartbeat_seconds=0, waiting=meanwhile)

        self.as_member(name, start)
        member.link.hold = holding

    @rule(which=st.integers(0, 2), number=st.integers(1, 3))
    def commit_some(self, which, number):
        name = self.leading(which)
        for _ in range(number):
            self.commit(name)

    @rule(which=st.integers(0, 2), number=st.integers(1, 3))
    def commit_and_show_some(self, which, number):
        name = self.leading(which)
        for _ in range(number):
            self.commit(name)
            self.members[name].link.turn()
            self.show(name)

    def commit(self, name):
        member = self.members[name]
        if member.log is not None:
            self.number += 1
            self.as_member(name, lambda: commit(member.log, self.number))

    @rule(which=st.integers(0, 2))
    def look(self, which):
        """The leader looks what is acknowledged, and sends a heartbeat where it has nothing to say."""
        self.show(self.leading(which))

    def show(self, name):
        member = self.members[name]
        if member.log is not None:
            self.as_member(name, member.log.show_acknowledged)

    @rule(which=st.integers(0, 2), rival=MEMBERS, commits=st.integers(0, 2))
    def pause_before_showing(self, which, rival, commits):
        """A leader is stopped when it knows what is acknowledged, and goes on when another has led for a while."""
        name = self.leading(which)
        member = self.members[name]
        if member.log is None or name == rival:
            return
        publisher = member.log.commits._publisher
        acknowledged = publisher.acknowledged

        def paused():
            known = acknowledged()
            publisher.acknowledged = acknowledged
            self.lead(rival, None, 0)
            for _ in range(commits):
                self.commit(rival)
                self.show(rival)
            return known

        publisher.acknowledged = paused
        self.as_member(name, member.log.show_acknowledged)
        publisher.acknowledged = acknowledged

    @rule(which=st.integers(0, 2), how=st.sampled_from(["hold", "let go", "silent", "tell"]))
    def change_link(self, which, how):
        link = self.members[self.leading(which)].link
        if how in ("hold", "let go"):
            link.hold = how == "hold"
        else:
            link.silent = how == "silent"

    @rule(which=st.integers(0, 2), stored=st.integers(0, 6), acknowledged=st.integers(0, 6))
    def let_through(self, which, stored, acknowledged):
        link = self.members[self.leading(which)].link
        link.store(stored)
        link.acknowledge(acknowledged)

    @rule(which=st.integers(0, 2))
    def refuse(self, which):
        self.members[self.leading(which)].link.refuse()

    @rule(name=MEMBERS)
    def kill(self, name):
        self.ghosts.append(self.members[name].die())

    @rule(name=MEMBERS, at=st.integers(0, 60), mode=st.sampled_from(["kill", "torn"]))
    def plan_a_kill(self, name, at, mode):
        disk = self.members[name].disk
        disk.at, disk.mode = disk.calls + at, mode

    @rule(which=st.integers(0, 10), number=st.integers(1, 4))
    def arrive(self, which, number):
        """Records of a killed process, in order, as late as you like."""
        self.ghosts = [sent for sent in self.ghosts if sent]
        if self.ghosts:
            sent = self.ghosts[which % len(self.ghosts)]
            for record in sent[:number]:
                self.topic.append(record)
            del sent[:number]

    @rule(back=st.integers(1, 12))
    def arrive_twice(self, back):
        told = self.topic.broker.told
        if back <= len(told):
            self.topic.append(told[-back])

    @rule(name=MEMBERS, reads=st.integers(1, 10), at_once=st.integers(1, 40))
    def follow(self, name, reads, at_once):
        member = self.members[name]
        if member.log is not None:
            return

        def read():
            if member.follower is None:
                member.follower = Follower(member.path, self.topic.reader(), member.disk)
            reader, left = member.follower._reader, reads
            reader.max_records = at_once
            while left and reader.position < self.topic.end:
                member.follower.step(0)
                left -= 1

        self.as_member(name, read)

    @rule(name=MEMBERS)
    def stop(self, name):
        member = self.members[name]
        if member.log is not None:
            self.as_member(name, member.log.close)
            member.log = None
        self.stop_following(name)

    @rule(name=MEMBERS, trims=st.booleans())
    def store_a_manifest(self, name, trims):
        """And delete what is before it: whoever is behind takes the manifest."""
        path = self.members[name].path
        if not published_seq(path):
            return
        stored = newest_manifest(self.store)
        if stored is not None and stored.seq > published_seq(path):
            return
        try:
            made = upload(path, self.store).manifest
        except StoreError as error:
            # A deposed member's archive, one whose log ends before the newest manifest, and one whose position a kill tore.
            assert any(words in str(error) for words in ("manifest of term", "holds commit", "would lack the position")), error
            return
        if trims and made.changelog_offset is not None:
            self.topic.delete_before(max(self.topic.begin, made.changelog_offset))

    @invariant()
    def all_that_is_shown_is_of_one_history(self):
        if not hasattr(self, "topic"):
            return
        history = told_by(self.topic.broker.told)
        for name, member in self.members.items():
            shown = published_seq(member.path)
            assert shown <= len(history), f"{name} shows commit {shown} of {len(history)}"
            for seq, line in lines_of(member.path).items() if shown else ():
                assert seq > shown or line[:8].decode() == history[seq - 1], f"{name} shows another commit {seq}"


TestTermsMachine = TermsMachine.TestCase
FEW = settings(max_examples=6, stateful_step_count=25, deadline=None, phases=(Phase.explicit, Phase.generate))
TestTermsMachine.settings = FEW


@pytest.mark.parametrize(("commits", "parts", "length"), [(1, 3, 6), (2, 2, 6), (3, 1, 5)])
def test_commits_are_whole_once_all_their_parts_came_in_order_however_many_came_twice_or_never(commits, parts, length):
    due = [(seq, part) for seq in range(1, commits + 1) for part in range(parts)]
    for came in itertools.product(due, repeat=length):
        records = [record(seq=seq, part=part, parts=parts, term=2, line=f"{seq:08x}") for seq, part in came]
        in_order = 0
        for each in came:
            in_order += in_order < len(due) and each == due[in_order]
        admission = Admission(2, 0)
        for each in records:
            admission.judge(each)
        whole = in_order // parts
        claim = Claim(0, 2, "a", "0" * 32, 0)
        assert (admission.seq, len(told_by([claim, *records]))) == (whole, whole), came


@pytest.mark.slow
def test_the_machine_for_a_long_time():
    run_state_machine_as_test(TermsMachine, settings=settings(FEW, max_examples=1500, stateful_step_count=60))
