"""On a replica another log is put in the place of the one that a server reads: it ends, and its next start answers right."""

import shutil

import pytest

from streamd.eventlog.journal.changelog_position import CHANGELOG
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.replica.follower.bootstrap import LOG_PARTS, bootstrap, newest_manifest
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.builders import batch, stream
from tests.replica.twin import Topic
from tests.server.world import SCHEMA, World, ask, wait

SRC, DST, TIME = stream(600)


class Machines:
    """A leader that commits, and a replica with a server that has its first 300 events and its version."""

    def __init__(self, folder):
        self.folder, self.topic, self.store = folder, Topic(10**6), Store(f"file://{folder}/store")
        self.commit(0, 300)
        self.leader = World(folder / "leader")
        self.leader.train(2)
        upload(self.leader.path, self.store)
        self.follow()
        shutil.copytree(self.leader.path / "models", self.path / "models")
        self.replica = self.server().start()

    path = property(lambda self: self.folder / "replica")

    def server(self):
        return World(self.path, log__name="t", log__member="replica")

    def commit(self, begin, end):
        """Commits of ten events, in one process of the leader."""
        path = self.folder / "leader"
        log = LogWriter(path, SCHEMA, 100, publisher=lead(path, self.topic.producer(), self.topic.reader(), member="m"))
        for at in range(begin, end, 10):
            keys = [f"n:{i}" for i in range(40)] if at == 0 else ()
            rows = slice(at, at + 10)
            log.commit(batch(SCHEMA, SRC[rows], DST[rows], TIME[rows], keys, at), Progress(), int(TIME[at + 9]))
        log.close()

    def follow(self):
        follower = Follower(self.path, self.topic.reader())
        while follower.step(0):
            pass
        follower.close()

    def go_on(self):
        """The leader goes on, and the changelog no longer has what the replica would need next."""
        self.commit(300, 500)
        self.leader.train(1)
        upload(self.leader.path, self.store)
        self.topic.delete_before(self.topic.end)

    def wipe(self):
        """The replica's volume is lost but for what roles keep, under the server's eyes."""
        for part in ("published", CHANGELOG, "models", *LOG_PARTS):
            path = self.path / part
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def alike(one, other):
    """Whether two answers are equal; products of other sizes may round a score's last bit otherwise, by the processor."""
    scores = [[found.pop("score") for found in answer["scores"]] for answer in (one, other)]
    return one == other and scores[0] == pytest.approx(scores[1], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("wiped", [False, True])
def test_a_server_ends_where_its_log_is_replaced_and_answers_right_after_its_restart(tmp_path, wiped):
    machines = Machines(tmp_path)
    before = ask(machines.replica)
    assert before["as_of"]["version"] == machines.leader.registry.champion()
    machines.go_on()
    if wiped:
        machines.wipe()
    bootstrap(machines.store, newest_manifest(machines.store, machines.topic.changelog), machines.path)
    wait(lambda: machines.replica.failures, 30)
    machines.replica.stop()

    # What it had made of the old log, also at its end, leads nobody astray.
    again = machines.server().start()
    leader = machines.leader.start()
    try:
        version = leader.registry.champion()
        shutil.rmtree(machines.path / "models")
        shutil.copytree(machines.leader.path / "models", machines.path / "models")
        wait(lambda: ask(again)["as_of"]["version"] == ask(leader)["as_of"]["version"] == version, 60)
        wait(lambda: again.engine.status.edge == leader.engine.status.edge == 500)
        for src in ("n:0", "n:3", "n:7"):
            wait(lambda src=src: alike(ask(again, src), ask(leader, src)))

        # The follower and the server go on behind the manifest.
        machines.commit(500, 560)
        machines.follow()
        wait(lambda: again.engine.status.edge == leader.engine.status.edge == 560)
        # Memory is moved on in slices, behind the graph.
        wait(lambda: alike(ask(again), ask(leader)) and ask(again)["as_of"]["last_edge"] == 559)
    finally:
        again.stop()
        leader.stop()
